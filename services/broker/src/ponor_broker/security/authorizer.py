"""Decide whether a principal may perform an operation, with the rules of Kafka's StandardAuthorizer (4.3.1).

A decision reads only memory. Until the ACLs are loaded for the first time, only super users are authorized.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ponor.metadata.v1.records_pb2 import RecordBatch
from ponor_metadata.nouns.acls import ACLS, AclOperation, AclRow, PatternType, ResourceType, acl_row
from ponor_metadata.tables.schema import View
from ponor_runtime.identity import DEFAULT_TENANT, TenantId
from ponor_runtime.turns import Steps

from ponor_broker.security.acl_index import WILDCARD, AclIndex, Found, Operations

CLUSTER_NAME: Final = "kafka-cluster"
"""Name of the only resource of type CLUSTER."""
OPERATIONS_UNKNOWN: Final = -(1 << 31)
"""Kafka's value for operations that the request did not ask for."""
_ANY_NAME: Final = "hardcode"
"""Kafka's name in `authorize_by_resource_type`: with an ACL for a resource of this name, Kafka decides
differently, too."""
_ROWS_PER_STEP: Final = 100
_PATTERNS_PER_STEP: Final = 100


def _bits(*operations: AclOperation) -> Operations:
    return sum(1 << operation for operation in operations)


_ALL: Final = _bits(AclOperation.ALL)
_IMPLYING: Final = {
    AclOperation.DESCRIBE: _bits(
        AclOperation.DESCRIBE, AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER
    ),
    AclOperation.DESCRIBE_CONFIGS: _bits(AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS),
}
"""Operations whose ALLOW rules also allow another one. DENY rules imply nothing."""
_ALLOWING: Final = {operation: _IMPLYING.get(operation, 1 << operation) | _ALL for operation in AclOperation}
_DENYING: Final = {operation: 1 << operation | _ALL for operation in AclOperation}
SUPPORTED: Final = {
    ResourceType.TOPIC: (
        AclOperation.READ,
        AclOperation.WRITE,
        AclOperation.CREATE,
        AclOperation.DELETE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        AclOperation.READ,
        AclOperation.DELETE,
        AclOperation.DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        AclOperation.CREATE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.CLUSTER_ACTION,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
        AclOperation.IDEMPOTENT_WRITE,
    ),
}
"""The operations that answers with authorized operations list (KIP-430)."""


class Authorizer:
    """Decides for the clients of one tenant.

    Hosts are numeric addresses, principals have the form TYPE:NAME. Both are compared as text.
    """

    def __init__(
        self,
        *,
        super_users: Iterable[str] = (),
        allow_without_acls: bool = False,
        tenant_id: TenantId = DEFAULT_TENANT,
    ) -> None:
        self._super_users = frozenset(super_users)
        self._allow_without_acls = allow_without_acls
        self._tenant_id = tenant_id
        self._index = AclIndex()
        self._loading: AclIndex | None = None
        self._removed: set[bytes] = set()
        """ACLs that were deleted since `load` began. It must not add them from its older view."""
        self.is_ready = False
        """Whether the ACLs were loaded."""

    @property
    def rows(self) -> dict[bytes, AclRow]:
        """All ACLs by id. Do not change it."""
        return self._index.rows

    def load(self, view: View) -> Steps[None]:
        """Load all ACLs of an image. Decisions use the former ACLs until the last step.

        Pass batches that are committed in the meantime to `apply`.
        """
        index = self._loading = AclIndex()
        removed = self._removed = set[bytes]()
        for number, row in enumerate(view[ACLS], start=1):
            if row.tenant_id == self._tenant_id and row.acl_id not in removed:
                index.add(row)
            if number % _ROWS_PER_STEP == 0:
                yield
                if self._loading is not index:
                    return  # a newer image is being loaded
        self._index, self._loading, self.is_ready = index, None, True
        self._removed = set()

    def apply(self, batch: RecordBatch) -> None:
        """Apply the changes of a committed batch."""
        for record in batch.records:
            if record.HasField("acl_created"):
                row = acl_row(record.acl_created.rule)
                if row.tenant_id == self._tenant_id:
                    self._add(row)
            elif record.HasField("acl_deleted"):
                self._remove(record.acl_deleted.acl_id)

    def authorize(
        self, principal: str, host: str, operation: AclOperation, kind: ResourceType, name: str
    ) -> bool:
        """Return whether a principal may perform an operation on a resource."""
        if principal in self._super_users:
            return True
        return self.is_ready and self._decide(self._index.find(kind, name, principal, host), operation)

    def authorized_operations(self, principal: str, host: str, kind: ResourceType, name: str) -> Operations:
        """Return the bit set of the operations that a principal may perform on a resource (KIP-430)."""
        supported = SUPPORTED[kind]
        if principal in self._super_users:
            return _bits(*supported)
        if not self.is_ready:
            return 0
        found = self._index.find(kind, name, principal, host)
        return _bits(*(operation for operation in supported if self._decide(found, operation)))

    def authorize_by_resource_type(
        self, principal: str, host: str, operation: AclOperation, kind: ResourceType
    ) -> Steps[bool]:
        """Return whether a principal may perform an operation on at least one resource of a type (KIP-679).

        A client with WRITE on any topic may use an idempotent producer. Unlike `authorize`, this may read
        many patterns: all that allow the operation, if others deny all of them.
        """
        if self.authorize(principal, host, operation, kind, _ANY_NAME):
            return True
        if not self.is_ready:
            return False
        index, denying = self._index, _DENYING[operation]

        def denies(pattern_type: PatternType, name: str) -> bool:
            return bool(index.denied(kind, pattern_type, name, principal, host) & denying)

        if denies(PatternType.LITERAL, WILDCARD):
            return False
        if index.allows_all_names(kind, operation, principal, host):
            return True
        allowing = index.allowing(kind, operation, principal)
        for number, (pattern_type, name, its_host) in enumerate(allowing, start=1):
            if its_host in (host, WILDCARD):
                is_denied = pattern_type == PatternType.LITERAL and denies(PatternType.LITERAL, name)
                prefixes = index.prefixes_of(kind, name)
                if not is_denied and not any(denies(PatternType.PREFIXED, prefix) for prefix in prefixes):
                    return True
            if number % _PATTERNS_PER_STEP == 0:
                yield
        return False

    def _decide(self, found: Found, operation: AclOperation) -> bool:
        if found.denied & _DENYING[operation]:
            return False
        if found.allowed & _ALLOWING[operation]:
            return True
        return self._allow_without_acls and not found.has_acls

    def _add(self, row: AclRow) -> None:
        self._index.add(row)
        if self._loading is not None:
            self._loading.add(row)
            self._removed.discard(row.acl_id)

    def _remove(self, acl_id: bytes) -> None:
        self._index.remove(acl_id)
        if self._loading is not None:
            self._loading.remove(acl_id)
            self._removed.add(acl_id)
