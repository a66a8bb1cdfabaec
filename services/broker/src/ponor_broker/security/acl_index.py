"""ACLs of one tenant, arranged so that a decision costs a few look-ups, however many ACLs there are.

The rules of one pattern, principal and host are two bit sets of operations: allowed and denied. A resource
has at most one literal pattern, the wildcard pattern, and one prefixed pattern per length of prefix that
occurs, so a decision looks up only these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias

from ponor_metadata.nouns.acls import AclOperation, AclPermission, AclRow, PatternType, ResourceType

WILDCARD: Final = "*"
EVERY_PRINCIPAL: Final = "User:*"

Operations: TypeAlias = int
"""Bit set of operations: bit n is the operation with number n."""
_Pattern: TypeAlias = dict[tuple[str, str], "_Rules"]
"""The rules of one pattern by principal and host."""


class _Rules:
    """The operations that one principal from one host may and must not perform."""

    __slots__ = ("allowed", "denied")

    def __init__(self) -> None:
        self.allowed: Operations = 0
        self.denied: Operations = 0


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
        self._patterns: dict[tuple[ResourceType, PatternType, str], _Pattern] = {}
        self._prefix_lengths: dict[ResourceType, Counter[int]] = {kind: Counter() for kind in ResourceType}
        self._allowing: dict[
            tuple[ResourceType, str, AclOperation], dict[tuple[PatternType, str, str], None]
        ] = {}

    def add(self, row: AclRow) -> None:
        """Add an ACL. Does nothing if it is present."""
        if row.acl_id in self.rows:
            return
        self.rows[row.acl_id] = row
        key = row.resource_type, row.pattern_type, row.name
        pattern = self._patterns.get(key)
        if pattern is None:
            pattern = self._patterns[key] = {}
            if row.pattern_type is PatternType.PREFIXED:
                self._prefix_lengths[row.resource_type][len(row.name)] += 1
        rules = pattern.setdefault((row.principal, row.host), _Rules())
        if row.permission is AclPermission.DENY:
            rules.denied |= 1 << row.operation
            return
        rules.allowed |= 1 << row.operation
        allowing = self._allowing.setdefault((row.resource_type, row.principal, row.operation), {})
        allowing[row.pattern_type, row.name, row.host] = None

    def remove(self, acl_id: bytes) -> None:
        """Remove an ACL. Does nothing if it is absent."""
        row = self.rows.pop(acl_id, None)
        if row is None:
            return
        key = row.resource_type, row.pattern_type, row.name
        pattern = self._patterns[key]
        rules = pattern[row.principal, row.host]
        if row.permission is AclPermission.DENY:
            rules.denied &= ~(1 << row.operation)
        else:
            rules.allowed &= ~(1 << row.operation)
            allowing = self._allowing[row.resource_type, row.principal, row.operation]
            del allowing[row.pattern_type, row.name, row.host]
            if not allowing:
                del self._allowing[row.resource_type, row.principal, row.operation]
        if not rules.allowed | rules.denied:
            del pattern[row.principal, row.host]
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
                allowed |= rules.allowed
                denied |= rules.denied
        return Found(allowed, denied, has_acls)

    def allowing(
        self, kind: ResourceType, operation: AclOperation, principal: str, host: str
    ) -> Iterator[tuple[PatternType, str]]:
        """Return the patterns of ALLOW rules for a client with this operation or ALL, the wildcard first."""
        keys = [
            (kind, who, what)
            for who in (principal, EVERY_PRINCIPAL)
            for what in (operation, AclOperation.ALL)
        ]
        hosts = (host, WILDCARD)
        tables = [table for key in keys if (table := self._allowing.get(key)) is not None]
        wildcard = PatternType.LITERAL, WILDCARD
        if any((*wildcard, each) in table for table in tables for each in hosts):
            yield wildcard
        for table in tables:
            for pattern_type, name, its_host in table:
                if its_host in hosts and (pattern_type, name) != wildcard:
                    yield pattern_type, name

    def denied(
        self, kind: ResourceType, pattern_type: PatternType, name: str, principal: str, host: str
    ) -> Operations:
        """Return the operations that exactly this pattern denies to a client."""
        pattern = self._patterns.get((kind, pattern_type, name), {})
        denied = 0
        for rules in _rules_of(pattern, principal, host):
            denied |= rules.denied
        return denied

    def prefixes_of(self, kind: ResourceType, name: str) -> Iterator[str]:
        """Return the prefixes of a name whose lengths occur among the prefixed patterns."""
        size = len(name)
        return (name[:length] for length in self._prefix_lengths[kind] if length <= size)

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
