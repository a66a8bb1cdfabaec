"""SCRAM credentials of users (RFC 5802): what brokers need to verify a password, without the password."""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

from ponor.metadata.v1 import records_pb2 as records
from ponor_runtime.identity import TenantId

from ponor_metadata.nouns.cluster import TENANTS
from ponor_metadata.tables.columns import BLOBS, INTEGERS, TEXTS, UNIQUE_TEXTS, Enums
from ponor_metadata.tables.schema import FIRST_THREE_FIELDS, Noun, Schema, Section, View


class ScramMechanism(IntEnum):
    """SCRAM mechanisms; the same numbers as in ponor.metadata.v1.ScramMechanism and in Kafka."""

    SHA_256 = 1
    SHA_512 = 2

    @property
    def digest_bytes(self) -> int:
        """Size of the mechanism's digest, and of both keys."""
        return 32 if self is ScramMechanism.SHA_256 else 64


class ScramCredentialRow(NamedTuple):
    """The credential of a user for one mechanism. `repr` hides the secrets."""

    tenant_id: TenantId
    user: str
    mechanism: ScramMechanism
    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return (
            f"ScramCredentialRow(tenant_id={self.tenant_id!r}, user={self.user!r},"
            f" mechanism={self.mechanism.name}, iterations={self.iterations}, salt and keys are hidden)"
        )


SCRAM_CREDENTIALS: Final[Schema[tuple[TenantId, str, ScramMechanism], ScramCredentialRow]] = Schema(
    "scram_credentials",
    ScramCredentialRow,
    FIRST_THREE_FIELDS,
    (
        Section(
            24,
            (TEXTS, UNIQUE_TEXTS, Enums(ScramMechanism), BLOBS, BLOBS, BLOBS, INTEGERS),
            weighed=(1, 3, 4, 5),
        ),
    ),
)


def scram_credential_set(view: View, record: records.ScramCredentialSet) -> None:
    """Create or replace a credential."""
    tenant_id, name = TenantId(record.tenant_id), _name(record.user, record.mechanism)
    assert tenant_id in view[TENANTS], f"tenant {tenant_id!r} does not exist"
    row = ScramCredentialRow(
        tenant_id,
        record.user,
        ScramMechanism(record.mechanism),
        record.salt,
        record.stored_key,
        record.server_key,
        record.iterations,
    )
    _require_shape(row, name)
    view[SCRAM_CREDENTIALS].put(row)


def scram_credential_removed(view: View, record: records.ScramCredentialRemoved) -> None:
    """Remove a credential, which must exist."""
    key = TenantId(record.tenant_id), record.user, ScramMechanism(record.mechanism)
    assert key in view[SCRAM_CREDENTIALS], f"{_name(record.user, record.mechanism)} does not exist"
    view[SCRAM_CREDENTIALS].delete(key)


def _require_shape(row: ScramCredentialRow, name: str) -> None:
    assert row.user, f"{name}: the user has no name"
    assert len(row.stored_key) == len(row.server_key) == row.mechanism.digest_bytes, (
        f"{name}: a key does not have the size of the mechanism's digest"
    )
    assert row.iterations > 0, f"{name}: the number of iterations is not positive"


def _name(user: str, mechanism: int) -> str:
    return f"SCRAM credential of {user!r} for mechanism {mechanism}"


def _check(view: View) -> None:
    for row in view[SCRAM_CREDENTIALS]:
        name = _name(row.user, row.mechanism)
        assert row.tenant_id in view[TENANTS], f"{name}: its tenant is unknown"
        _require_shape(row, name)


NOUN: Final = Noun(
    schemas=(SCRAM_CREDENTIALS,), rules=(scram_credential_set, scram_credential_removed), check=_check
)
