"""The authorizer compared with a reference that reads all rules for each decision, and its loading."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ponor.metadata.v1 import records_pb2
from ponor_broker.security.authorizer import SUPPORTED, Authorizer
from ponor_metadata.image.image import MetadataImage
from ponor_metadata.nouns.acls import (
    ACLS,
    AclOperation,
    AclPermission,
    AclRow,
    PatternType,
    ResourceType,
    acl_row,
)
from ponor_runtime.turns import at_once

NAMES = ("a", "ab", "abc", "b", "*", "hardcode", "hard")
PRINCIPALS = ("User:alice", "User:bob", "User:*", "Group:alice")
HOSTS = ("10.0.0.1", "10.0.0.2", "*")
OPERATIONS = tuple(AclOperation)
READ, WRITE, DESCRIBE, ALL = (
    AclOperation.READ,
    AclOperation.WRITE,
    AclOperation.DESCRIBE,
    AclOperation.ALL,
)
TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
IMPLYING = {
    AclOperation.DESCRIBE: {READ, WRITE, AclOperation.DELETE, AclOperation.ALTER},
    AclOperation.DESCRIBE_CONFIGS: {AclOperation.ALTER_CONFIGS},
}


def rule(
    name: str = "a",
    operation: AclOperation = READ,
    permission: AclPermission = AclPermission.ALLOW,
    *,
    kind: ResourceType = TOPIC,
    pattern: PatternType = PatternType.LITERAL,
    principal: str = "User:alice",
    host: str = "*",
    tenant_id: str = "",
) -> records_pb2.AclRule:
    return records_pb2.AclRule(
        tenant_id=tenant_id,
        resource_type=kind,
        pattern_type=pattern,
        name=name,
        principal=principal,
        host=host,
        operation=operation,
        permission=permission,
    )


class Client(NamedTuple):
    principal: str
    host: str


def reference(
    rows: Iterable[AclRow],
    client: Client,
    operation: AclOperation,
    kind: ResourceType,
    name: str,
    *,
    default: bool,
) -> bool:
    """Decide by reading every rule."""
    of_resource = [row for row in rows if row.resource_type is kind and selects(row, name)]
    mine = [
        row
        for row in of_resource
        if row.principal in (client.principal, "User:*") and row.host in (client.host, "*")
    ]
    if any(row.operation in (operation, ALL) for row in mine if row.permission is AclPermission.DENY):
        return False
    allowing = {operation, ALL} | IMPLYING.get(operation, set())
    if any(row.operation in allowing for row in mine if row.permission is AclPermission.ALLOW):
        return True
    return default and not of_resource


def selects(row: AclRow, name: str) -> bool:
    if row.pattern_type is PatternType.PREFIXED:
        return name.startswith(row.name)
    return row.name in (name, "*")


def reference_of_type(
    rows: Sequence[AclRow], client: Client, operation: AclOperation, kind: ResourceType, *, default: bool
) -> bool:
    """Kafka's default method of the Authorizer interface (4.3.1), rule by rule."""
    if reference(rows, client, operation, kind, "hardcode", default=default):
        return True
    mine = [
        row
        for row in rows
        if row.resource_type is kind
        and row.principal in (client.principal, "User:*")
        and row.host in (client.host, "*")
        and row.operation in (operation, ALL)
    ]
    denied = {(row.pattern_type, row.name) for row in mine if row.permission is AclPermission.DENY}
    allowed = {(row.pattern_type, row.name) for row in mine if row.permission is AclPermission.ALLOW}
    if (PatternType.LITERAL, "*") in denied:
        return False
    if (PatternType.LITERAL, "*") in allowed:
        return True
    return any(
        (pattern, name) not in denied
        and not any(name.startswith(its) for what, its in denied if what is PatternType.PREFIXED)
        for pattern, name in allowed
    )


rules = st.builds(
    rule,
    st.sampled_from(NAMES),
    st.sampled_from(OPERATIONS),
    st.sampled_from(AclPermission),
    kind=st.sampled_from((TOPIC, GROUP)),
    pattern=st.sampled_from(PatternType),
    principal=st.sampled_from(PRINCIPALS),
    host=st.sampled_from(HOSTS),
)


def created(rule: records_pb2.AclRule) -> records_pb2.Record:
    return records_pb2.Record(acl_created=records_pb2.AclCreated(rule=rule))


def deleted(rule: records_pb2.AclRule) -> records_pb2.Record:
    return records_pb2.Record(acl_deleted=records_pb2.AclDeleted(acl_id=acl_row(rule).acl_id))


def loaded(authorizer: Authorizer, *present: records_pb2.AclRule) -> Authorizer:
    image = MetadataImage()
    for each in present:
        image[ACLS].put(acl_row(each))
    at_once(authorizer.load(image))
    return authorizer


def assert_same(authorizer: Authorizer, rows: Sequence[AclRow], *, default: bool) -> None:
    for client in (Client("User:alice", "10.0.0.1"), Client("Group:alice", "10.0.0.9")):
        for kind in (TOPIC, GROUP):
            for operation in OPERATIONS:
                question = (*client, operation, kind)
                of_type = reference_of_type(rows, client, operation, kind, default=default)
                assert at_once(authorizer.authorize_by_resource_type(*question)) == of_type, question
                for name in (*NAMES, "abcd", "z"):
                    wanted = reference(rows, client, operation, kind, name, default=default)
                    assert authorizer.authorize(*question, name) == wanted, (question, name)


@given(
    st.lists(rules, max_size=12),
    st.lists(st.tuples(st.booleans(), rules), max_size=8),
    st.booleans(),
    st.data(),
)
@settings(max_examples=60)
def test_decisions_equal_the_reference_after_loading_and_after_changes(
    at_start: list[records_pb2.AclRule],
    changes: list[tuple[bool, records_pb2.AclRule]],
    default: bool,
    data: st.DataObject,
) -> None:
    authorizer = loaded(Authorizer(allow_without_acls=default), *at_start)
    rows = {row.acl_id: row for row in map(acl_row, at_start)}
    assert_same(authorizer, list(rows.values()), default=default)
    for creates, new in changes:
        if creates or not rows:
            row = acl_row(new)
            rows[row.acl_id] = row
            record = created(new)
        else:
            row = rows.pop(data.draw(st.sampled_from(sorted(rows))))
            record = records_pb2.Record(acl_deleted=records_pb2.AclDeleted(acl_id=row.acl_id))
        authorizer.apply(records_pb2.RecordBatch(records=[record]))
    assert authorizer.rows == rows
    assert_same(authorizer, list(rows.values()), default=default)


def test_a_super_user_may_do_everything_and_others_nothing_before_the_acls_are_loaded() -> None:
    authorizer = Authorizer(super_users=["User:admin"], allow_without_acls=True)
    assert authorizer.authorize("User:admin", "10.0.0.1", ALL, TOPIC, "a")
    assert not authorizer.authorize("User:alice", "10.0.0.1", READ, TOPIC, "a")
    assert not at_once(authorizer.authorize_by_resource_type("User:alice", "10.0.0.1", WRITE, TOPIC))
    assert authorizer.authorized_operations("User:alice", "10.0.0.1", TOPIC, "a") == 0
    loaded(authorizer, rule(permission=AclPermission.DENY, operation=ALL, principal="User:*", name="*"))
    assert authorizer.authorize("User:admin", "10.0.0.1", READ, TOPIC, "a")
    assert at_once(authorizer.authorize_by_resource_type("User:admin", "10.0.0.1", WRITE, TOPIC))
    assert not authorizer.authorize("User:alice", "10.0.0.1", READ, TOPIC, "a")


@pytest.mark.parametrize(("kind", "operations"), [(TOPIC, 3576), (ResourceType.CLUSTER, 8096)])
def test_all_authorized_operations_are_the_numbers_of_kafka(kind: ResourceType, operations: int) -> None:
    authorizer = loaded(Authorizer(super_users=["User:admin"]), rule("x", ALL, kind=kind))
    assert authorizer.authorized_operations("User:admin", "h", kind, "x") == operations
    assert authorizer.authorized_operations("User:alice", "h", kind, "x") == operations
    assert authorizer.authorized_operations("User:bob", "h", kind, "x") == 0


def test_authorized_operations_contain_implied_ones() -> None:
    authorizer = loaded(Authorizer(), rule("a", READ), rule("a", WRITE, AclPermission.DENY))
    assert authorizer.authorized_operations("User:alice", "h", TOPIC, "a") == 1 << READ | 1 << DESCRIBE
    assert set(SUPPORTED) == {TOPIC, GROUP, ResourceType.CLUSTER}


def test_changes_during_a_load_are_in_its_result() -> None:
    kept, gone, new = rule("kept"), rule("gone"), rule("new")
    others = [rule(f"other {number}") for number in range(500)]
    authorizer = loaded(Authorizer(), kept, gone)
    image = MetadataImage()
    for each in (kept, gone, *others):
        image[ACLS].put(acl_row(each))
    steps = authorizer.load(image)
    next(steps)
    records = [deleted(gone), created(new), *(deleted(each) for each in others)]
    authorizer.apply(records_pb2.RecordBatch(records=records))

    def readable() -> list[str]:
        names = ("kept", "gone", "new", "other 0", "other 499")
        return [name for name in names if authorizer.authorize("User:alice", "h", READ, TOPIC, name)]

    assert readable() == ["kept", "new"], "decisions use the former ACLs, with the changes"
    at_once(steps)
    assert readable() == ["kept", "new"]
    assert set(authorizer.rows) == {acl_row(kept).acl_id, acl_row(new).acl_id}


def test_a_newer_load_replaces_an_unfinished_one() -> None:
    authorizer = Authorizer()
    old, new = MetadataImage(), MetadataImage()
    for number in range(500):
        old[ACLS].put(acl_row(rule(f"old {number}")))
    new[ACLS].put(acl_row(rule("new")))
    first = authorizer.load(old)
    next(first)
    at_once(authorizer.load(new))
    at_once(first)
    assert [row.name for row in authorizer.rows.values()] == ["new"]


def test_acls_of_other_tenants_have_no_effect() -> None:
    authorizer = loaded(Authorizer(), rule("a", READ, tenant_id="other"))
    assert not authorizer.authorize("User:alice", "h", READ, TOPIC, "a")
    authorizer.apply(records_pb2.RecordBatch(records=[created(rule("a", READ, tenant_id="other"))]))
    assert authorizer.rows == {}


def test_a_decision_does_not_read_all_acls() -> None:
    class CountedName(str):
        __slots__ = ()
        hashed = 0

        def __hash__(self) -> int:
            CountedName.hashed += 1
            return super().__hash__()

        def __getitem__(self, key: object) -> CountedName:
            return CountedName(super().__getitem__(key))  # type: ignore[index]

        __eq__ = str.__eq__

    prefixed = PatternType.PREFIXED
    authorizer = loaded(
        Authorizer(),
        *(rule(f"topic-{number:05}-", pattern=prefixed) for number in range(3_000)),
        *(rule("topic", principal=f"User:{number}") for number in range(3_000)),
        rule("t", pattern=prefixed, principal="User:bob"),
    )
    name = CountedName("topic-02999-x")
    CountedName.hashed = 0
    assert authorizer.authorize("User:alice", "h", READ, TOPIC, name)
    # The literal pattern, and one for each of the two lengths of prefixes. The wildcard is not of this class.
    assert CountedName.hashed <= 4
