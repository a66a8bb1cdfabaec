"""Access control lists. Each row is one rule: it allows or denies a principal an operation on resources."""

from __future__ import annotations

from enum import IntEnum
from hashlib import blake2b
from typing import Final, NamedTuple

from ponor.metadata.v1 import records_pb2 as records
from ponor_runtime.identity import TenantId

from ponor_metadata.nouns.cluster import TENANTS
from ponor_metadata.tables.columns import BLOBS, TEXTS, Enums
from ponor_metadata.tables.schema import FIRST_FIELD, Noun, Schema, Section, View

ACL_ID_BYTES: Final = 16


class ResourceType(IntEnum):
    """Types of resources; numbers of Kafka's protocol."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """How the name of an ACL selects resources; numbers of Kafka's protocol."""

    LITERAL = 3
    PREFIXED = 4


class AclOperation(IntEnum):
    """Operations; numbers of Kafka's protocol."""

    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class AclPermission(IntEnum):
    """What an ACL does; numbers of Kafka's protocol."""

    DENY = 2
    ALLOW = 3


class AclRow(NamedTuple):
    """One ACL. The id is derived from the other fields (`acl_id`), so no two rows are alike.

    `name` "*" with LITERAL selects every resource of the type. `principal` "User:*" is every principal, and
    `host` "*" is every address.
    """

    acl_id: bytes
    tenant_id: TenantId
    resource_type: ResourceType
    pattern_type: PatternType
    name: str
    principal: str
    host: str
    operation: AclOperation
    permission: AclPermission


ACLS: Final[Schema[bytes, AclRow]] = Schema(
    "acls",
    AclRow,
    FIRST_FIELD,
    (
        Section(
            25,
            (
                BLOBS,
                TEXTS,
                Enums(ResourceType),
                Enums(PatternType),
                TEXTS,
                TEXTS,
                TEXTS,
                Enums(AclOperation),
                Enums(AclPermission),
            ),
            weighed=(4, 5, 6),
        ),
    ),
)


def acl_row(rule: records.AclRule) -> AclRow:
    """Return the row of a rule.

    Raises:
        ValueError: a type, operation or permission is unknown.
    """
    row = AclRow(
        b"",
        TenantId(rule.tenant_id),
        ResourceType(rule.resource_type),
        PatternType(rule.pattern_type),
        rule.name,
        rule.principal,
        rule.host,
        AclOperation(rule.operation),
        AclPermission(rule.permission),
    )
    return row._replace(acl_id=acl_id(row))


def acl_id(row: AclRow) -> bytes:
    """Return the id of an ACL: BLAKE2b-128 of its other fields."""
    digest = blake2b(digest_size=ACL_ID_BYTES)
    digest.update(bytes((row.resource_type, row.pattern_type, row.operation, row.permission)))
    for text in (row.tenant_id, row.name, row.principal, row.host):
        encoded = text.encode()
        digest.update(len(encoded).to_bytes(4, "big") + encoded)
    return digest.digest()


def acl_created(view: View, record: records.AclCreated) -> None:
    """Create an ACL that does not exist."""
    row = acl_row(record.rule)
    assert row.tenant_id in view[TENANTS], f"tenant {row.tenant_id!r} does not exist"
    assert row.name, "an ACL without the name of a resource"
    assert row.acl_id not in view[ACLS], f"ACL {row.acl_id.hex()} exists"
    view[ACLS].put(row)


def acl_deleted(view: View, record: records.AclDeleted) -> None:
    """Delete an ACL, which must exist."""
    assert record.acl_id in view[ACLS], f"ACL {record.acl_id.hex()} does not exist"
    view[ACLS].delete(record.acl_id)


def _check(view: View) -> None:
    for row in view[ACLS]:
        name = f"ACL {row.acl_id.hex()}"
        assert row.acl_id == acl_id(row), f"{name}: the id is not that of the rule"
        assert row.tenant_id in view[TENANTS], f"{name}: its tenant is unknown"
        assert row.name, f"{name}: it does not name a resource"


NOUN: Final = Noun(schemas=(ACLS,), rules=(acl_created, acl_deleted), check=_check)
