"""Filters that select ACLs (DescribeAcls, DeleteAcls), with Kafka's semantics.

The numbers of types, operations and permissions are those of Kafka's protocol.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from ponor_metadata.nouns.acls import AclOperation, AclPermission, AclRow, PatternType, ResourceType
from ponor_runtime.turns import Steps

from ponor_broker.security.acl_index import WILDCARD

UNKNOWN: Final = 0
ANY: Final = 1
MATCH: Final = 2
"""Pattern type of a filter: all patterns that match a resource of the name."""
_RESOURCE_TYPES: Final = {ANY, *map(int, ResourceType)}
_PATTERN_TYPES: Final = {ANY, MATCH, *map(int, PatternType)}
_OPERATIONS: Final = {ANY, *map(int, AclOperation)}
_PERMISSIONS: Final = {ANY, *map(int, AclPermission)}
_ROWS_PER_STEP: Final = 500


class AclFilter(NamedTuple):
    """Selects ACLs whose fields all match. None and ANY match every value."""

    resource_type: int
    name: str | None
    pattern_type: int
    principal: str | None
    host: str | None
    operation: int
    permission: int

    @property
    def has_unset(self) -> bool:
        """Whether a field has the number 0, with which Kafka cannot read the request."""
        return UNKNOWN in (self.resource_type, self.pattern_type, self.operation, self.permission)

    @property
    def has_unknown_pattern(self) -> bool:
        """Whether the resource or pattern type is unknown."""
        return self.resource_type not in _RESOURCE_TYPES or self.pattern_type not in _PATTERN_TYPES

    @property
    def has_unknown_entry(self) -> bool:
        """Whether the operation or permission is unknown."""
        return self.operation not in _OPERATIONS or self.permission not in _PERMISSIONS

    def matches(self, row: AclRow) -> bool:
        """Return whether the filter selects an ACL."""
        return (
            self.resource_type in (ANY, row.resource_type)
            and self.operation in (ANY, row.operation)
            and self.permission in (ANY, row.permission)
            and self.principal in (None, row.principal)
            and self.host in (None, row.host)
            and self._matches_pattern(row)
        )

    def _matches_pattern(self, row: AclRow) -> bool:
        if self.pattern_type not in (ANY, MATCH, row.pattern_type):
            return False
        if self.name is None or self.name == row.name:
            return True
        if self.pattern_type != MATCH:
            return False
        if row.pattern_type is PatternType.LITERAL:
            return row.name == WILDCARD
        return self.name.startswith(row.name)


def select(rows: Iterable[AclRow], filter_: AclFilter) -> Steps[list[AclRow]]:
    """Return the rows that a filter selects, in their order."""
    selected = []
    for number, row in enumerate(rows, start=1):
        if filter_.matches(row):
            selected.append(row)
        if number % _ROWS_PER_STEP == 0:
            yield
    return selected
