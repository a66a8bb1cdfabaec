"""Records of credentials: their changes, and the invariants that they assert."""

from __future__ import annotations

import pytest
from ponor.metadata.v1 import records_pb2 as pb
from ponor_metadata.image.apply import apply_records
from ponor_metadata.nouns.scram_credentials import SCRAM_CREDENTIALS, ScramMechanism
from ponor_runtime.identity import DEFAULT_TENANT, TenantId

from libs.metadata.tests.metadata_kit import (
    Log,
    record,
    scram_credential_removed,
    scram_credential_set,
    tenant,
)


def test_credentials_are_rows_by_tenant_user_and_mechanism() -> None:
    log = Log()
    log.commit(tenant("t", "kafka-t"))
    log.commit(
        scram_credential_set("bob", 2),
        scram_credential_set("alice", 2),
        scram_credential_set("alice", 1),
        scram_credential_set("alice", 1, tenant_id="t"),
    )
    keys = [(row.tenant_id, row.user, int(row.mechanism)) for row in log.image[SCRAM_CREDENTIALS]]
    assert keys == [("", "alice", 1), ("", "alice", 2), ("", "bob", 2), ("t", "alice", 1)]
    changed = scram_credential_set("alice")
    changed.scram_credential_set.iterations = 9_999
    log.commit(changed)
    row = log.image[SCRAM_CREDENTIALS].get((DEFAULT_TENANT, "alice", ScramMechanism.SHA_256))
    assert row is not None
    assert row.iterations == 9_999
    log.commit(scram_credential_removed("alice"))
    assert (DEFAULT_TENANT, "alice", ScramMechanism.SHA_256) not in log.image[SCRAM_CREDENTIALS]
    assert (TenantId("t"), "alice", ScramMechanism.SHA_256) in log.image[SCRAM_CREDENTIALS]


def test_credentials_assert_their_shape_without_secrets_in_the_message() -> None:
    log = Log()
    short = scram_credential_set("alice")
    short.scram_credential_set.stored_key = b"secret"
    empty = scram_credential_set("")
    once = scram_credential_set("alice")
    once.scram_credential_set.iterations = 0
    for broken, match in (
        (short, "size of the mechanism's digest"),
        (empty, "no name"),
        (once, "not positive"),
        (scram_credential_set("alice", tenant_id="unknown"), "does not exist"),
        (scram_credential_removed("alice"), "does not exist"),
    ):
        with pytest.raises(AssertionError, match=match) as raised:
            apply_records(log.image, [broken])
        assert "secret" not in str(raised.value)
    assert len(log.image[SCRAM_CREDENTIALS]) == 0
    unknown = record(scram_credential_set=pb.ScramCredentialSet(user="alice"))
    with pytest.raises(ValueError, match="ScramMechanism"):
        apply_records(log.image, [unknown])
