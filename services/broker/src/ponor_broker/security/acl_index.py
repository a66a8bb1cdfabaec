"""ACLs of one tenant, arranged so that a decision costs a few look-ups, however many ACLs there are.

The rules of one pattern, principal and host are two bit sets of operations: allowed and denied. A resource
has at most one literal pattern, the wildcard pattern, and one prefixed pattern per length of prefix that
occurs, so a decision looks up only these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain
from typing import Final, NamedTuple, TypeAlias

from ponor_metadata.nouns.acls import AclOperation, AclPermission, AclRow, PatternType, ResourceType

WILDCARD: Final = "*"
EVERY_PRINCIPAL: Final = "User:*"

Operations: TypeAlias = int
"""Bit set of operations: bit n is the operation with number n."""
_Rules: TypeAlias = tuple[Operations, Operations]
"""Allowed and denied operations. The garbage collector skips tuples of numbers and strings, so keys have
plain numbers instead of members of enumerations."""
_Pattern: TypeAlias = dict[tuple[str, str], _Rules]
"""The rules of one pattern by principal and host."""
_NO_RULES: Final[_Rules] = (0, 0)


class Found(NamedTuple):
    """What all ACLs of a resource say about one client.

    Attributes:
        allowed: operations of ALLOW rules for the client; implied operations are not added.
        denied: operations of DENY rules for the client.
        has_acls: whether the resource has an ACL of any client.
    """

    allowed: Operations
    denied: Operations
    has_acls: bool


class AclIndex:
    """The ACLs of one tenant by id, by pattern, and by principal and operation."""

    def __init__(self) -> None:
        self.rows: dict[bytes, AclRow] = {}
        self._patterns: dict[tuple[int, int, str], _Pattern] = {}
        self._prefix_lengths: dict[int, Counter[int]] = {kind: Counter() for kind in ResourceType}
        self._allowing: dict[tuple[int, str, int], dict[tuple[int, str, str], None]] = {}

    def add(self, row: AclRow) -> None:
        """Add an ACL. Does nothing if it is present."""
        if row.acl_id in self.rows:
            return
        self.rows[row.acl_id] = row
        key = int(row.resource_type), int(row.pattern_type), row.name
        pattern = self._patterns.get(key)
        if pattern is None:
            pattern = self._patterns[key] = {}
            if row.pattern_type is PatternType.PREFIXED:
                self._prefix_lengths[row.resource_type][len(row.name)] += 1
        client = row.principal, row.host
        allowed, denied = pattern.get(client, _NO_RULES)
        if row.permission is AclPermission.DENY:
            pattern[client] = allowed, denied | 1 << row.operation
            return
        pattern[client] = allowed | 1 << row.operation, denied
        by_operation = int(row.resource_type), row.principal, int(row.operation)
        self._allowing.setdefault(by_operation, {})[int(row.pattern_type), row.name, row.host] = None

    def remove(self, acl_id: bytes) -> None:
        """Remove an ACL. Does nothing if it is absent."""
        row = self.rows.pop(acl_id, None)
        if row is None:
            return
        key = row.resource_type, row.pattern_type, row.name
        pattern, client = self._patterns[key], (row.principal, row.host)
        allowed, denied = pattern[client]
        if row.permission is AclPermission.DENY:
            denied &= ~(1 << row.operation)
        else:
            allowed &= ~(1 << row.operation)
            allowing = self._allowing[row.resource_type, row.principal, row.operation]
            del allowing[row.pattern_type, row.name, row.host]
            if not allowing:
                del self._allowing[row.resource_type, row.principal, row.operation]
        if allowed | denied:
            pattern[client] = allowed, denied
        else:
            del pattern[client]
        if not pattern:
            del self._patterns[key]
            if row.pattern_type is PatternType.PREFIXED:
                self._forget_prefix(row.resource_type, len(row.name))

    def find(self, kind: ResourceType, name: str, principal: str, host: str) -> Found:
        """Return what the ACLs of a resource say about a client."""
        allowed = denied = 0
        has_acls = False
        for pattern in self._matching(kind, name):
            has_acls = True
            for rules in _rules_of(pattern, principal, host):
                allowed |= rules[0]
                denied |= rules[1]
        return Found(allowed, denied, has_acls)

    def allowing(
        self, kind: ResourceType, operation: AclOperation, principal: str
    ) -> list[tuple[int, str, str]]:
        """Return pattern type, name and host of a principal's ALLOW rules with this operation or ALL."""
        return list(
            chain.from_iterable(
                self._allowing.get((kind, who, what), ())
                for who in (principal, EVERY_PRINCIPAL)
                for what in (operation, AclOperation.ALL)
            )
        )

    def allows_all_names(
        self, kind: ResourceType, operation: AclOperation, principal: str, host: str
    ) -> bool:
        """Return whether a rule with the wildcard name allows this operation or ALL to a client."""
        pattern = self._patterns.get((kind, PatternType.LITERAL, WILDCARD), {})
        wanted = 1 << operation | 1 << AclOperation.ALL
        return any(allowed & wanted for allowed, _ in _rules_of(pattern, principal, host))

    def denied(
        self, kind: ResourceType, pattern_type: PatternType, name: str, principal: str, host: str
    ) -> Operations:
        """Return the operations that exactly this pattern denies to a client."""
        pattern = self._patterns.get((kind, pattern_type, name), {})
        denied = 0
        for rules in _rules_of(pattern, principal, host):
            denied |= rules[1]
        return denied

    def prefixes_of(self, kind: ResourceType, name: str) -> list[str]:
        """Return the prefixes of a name whose lengths occur among the prefixed patterns."""
        size = len(name)
        return [name[:length] for length in self._prefix_lengths[kind] if length <= size]

    def _matching(self, kind: ResourceType, name: str) -> Iterator[_Pattern]:
        patterns = self._patterns
        if (pattern := patterns.get((kind, PatternType.LITERAL, name))) is not None:
            yield pattern
        if name != WILDCARD and (pattern := patterns.get((kind, PatternType.LITERAL, WILDCARD))) is not None:
            yield pattern
        for prefix in self.prefixes_of(kind, name):
            if (pattern := patterns.get((kind, PatternType.PREFIXED, prefix))) is not None:
                yield pattern

    def _forget_prefix(self, kind: ResourceType, length: int) -> None:
        lengths = self._prefix_lengths[kind]
        lengths[length] -= 1
        if not lengths[length]:
            del lengths[length]


def _rules_of(pattern: _Pattern, principal: str, host: str) -> Iterator[_Rules]:
    for who in (principal, EVERY_PRINCIPAL) if principal != EVERY_PRINCIPAL else (principal,):
        for where in (host, WILDCARD):
            if (rules := pattern.get((who, where))) is not None:
                yield rules
