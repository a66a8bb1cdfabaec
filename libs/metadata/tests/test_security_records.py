"""Records of credentials and ACLs: their changes, and the invariants that they assert."""

from __future__ import annotations

import pytest
from ponor.metadata.v1 import records_pb2 as pb
from ponor_metadata.image.apply import apply_records
from ponor_metadata.nouns.acls import ACLS, acl_row
from ponor_metadata.nouns.scram_credentials import SCRAM_CREDENTIALS, ScramMechanism
from ponor_runtime.identity import DEFAULT_TENANT, TenantId

from libs.metadata.tests.metadata_kit import (
    Log,
    acl_created,
    acl_rule,
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


def test_an_acl_has_an_id_that_depends_on_every_field() -> None:
    rules = [acl_rule()]
    for field, value in (
        ("tenant_id", "t"),
        ("resource_type", 3),
        ("pattern_type", 4),
        ("name", "order"),
        ("principal", "sUser:alice"),
        ("host", "10.0.0.1"),
        ("operation", 4),
        ("permission", 2),
    ):
        other = acl_rule()
        setattr(other, field, value)
        rules.append(other)
    moved = acl_rule("orde")
    moved.principal = "rUser:alice"
    assert len({acl_row(each).acl_id for each in (*rules, moved)}) == len(rules) + 1
    assert acl_row(acl_rule()) == acl_row(acl_rule())


def test_acls_are_created_once_and_deleted_by_id() -> None:
    log = Log()
    log.commit(acl_created(acl_rule("a")), acl_created(acl_rule("b")))
    gone = pb.AclDeleted(acl_id=acl_row(acl_rule("a")).acl_id)
    log.commit(record(acl_deleted=gone))
    assert [row.name for row in log.image[ACLS]] == ["b"]
    for broken, match in (
        (record(acl_deleted=gone), "does not exist"),
        (acl_created(acl_rule("b")), "exists"),
        (acl_created(acl_rule("")), "without the name"),
        (acl_created(acl_rule("c", tenant_id="unknown")), "tenant"),
    ):
        with pytest.raises(AssertionError, match=match):
            apply_records(log.image, [broken])
    with pytest.raises(ValueError, match="AclOperation"):
        apply_records(log.image, [acl_created(acl_rule("c", operation=1))])
    assert [row.name for row in log.image[ACLS]] == ["b"]
