"""ACLs: created once, deleted by id, bounds."""

from __future__ import annotations

import pytest
from ponor.controller.v1 import session_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_controller.domains.security.acls import ACLS_PER_OPERATION_MAX, NAME_CHARACTERS_MAX
from ponor_controller.kernel.operation import Caller
from ponor_controller.settings import ControllerSettings
from ponor_metadata.image.validate import validate
from ponor_metadata.nouns.acls import ACLS, acl_row

from services.controller.tests.ledger import Ledger


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(settings=ControllerSettings(acls_max=4))


@pytest.fixture
def broker(ledger: Ledger) -> Caller:
    return ledger.register(0)


def rule(name: str = "orders", **changes: int | str) -> records_pb2.AclRule:
    fields: dict[str, int | str] = {
        "resource_type": 2,
        "pattern_type": 3,
        "principal": "User:alice",
        "host": "*",
        "operation": 3,
        "permission": 3,
        **changes,
    }
    return records_pb2.AclRule(name=name, **fields)  # type: ignore[arg-type]


def create(ledger: Ledger, broker: Caller, *rules: records_pb2.AclRule) -> int:
    """Return the number of records."""
    records = ledger.decide(broker, create_acls=wire.CreateAcls(rules=rules))
    ledger.do(broker, create_acls=wire.CreateAcls(rules=rules))
    validate(ledger.image)
    return len(records)


def names(ledger: Ledger) -> list[str]:
    return sorted(row.name for row in ledger.image[ACLS])


def test_equal_rules_are_one_acl(ledger: Ledger, broker: Caller) -> None:
    assert create(ledger, broker, rule("a"), rule("a"), rule("b")) == 2
    assert create(ledger, broker, rule("b"), rule("c")) == 1
    assert names(ledger) == ["a", "b", "c"]
    assert create(ledger, broker, rule("a", pattern_type=4)) == 1


def test_acls_are_deleted_by_id_and_missing_ones_are_ignored(ledger: Ledger, broker: Caller) -> None:
    create(ledger, broker, rule("a"), rule("b"))
    wanted = [acl_row(rule(name)).acl_id for name in ("b", "missing", "b")]
    answer = ledger.do(broker, delete_acls=wire.DeleteAcls(acl_ids=wanted))
    assert list(answer.acls_deleted.acl_ids) == wanted[:1]
    assert names(ledger) == ["a"]
    answer = ledger.do(broker, delete_acls=wire.DeleteAcls(acl_ids=wanted))
    assert answer.HasField("acls_deleted")
    assert not answer.acls_deleted.acl_ids


def test_acls_are_limited_and_all_or_none_are_created(ledger: Ledger, broker: Caller) -> None:
    create(ledger, broker, rule("a"), rule("b"), rule("c"))
    too_many = wire.CreateAcls(rules=[rule("a"), rule("d"), rule("e")])
    assert ledger.refusal(broker, create_acls=too_many) == "INVALID_REQUEST"
    assert create(ledger, broker, rule("a"), rule("d")) == 1
    assert create(ledger, broker, rule("a")) == 0, "an ACL that exists needs no room"


def test_invalid_operations_are_refused(ledger: Ledger, broker: Caller) -> None:
    long = "x" * (NAME_CHARACTERS_MAX + 1)
    for rules in (
        [],
        [rule(str(number)) for number in range(ACLS_PER_OPERATION_MAX + 1)],
        [rule(resource_type=1)],
        [rule(pattern_type=2)],
        [rule(operation=1)],
        [rule(operation=16)],
        [rule(permission=1)],
        [rule("")],
        [rule(long)],
        [rule(principal=long)],
        [rule(host=long)],
        [rule("a"), rule(tenant_id="unknown")],
    ):
        assert ledger.refusal(broker, create_acls=wire.CreateAcls(rules=rules)) == "INVALID_REQUEST"
    for ids in ([], [b"x"] * (ACLS_PER_OPERATION_MAX + 1)):
        assert ledger.refusal(broker, delete_acls=wire.DeleteAcls(acl_ids=ids)) == "INVALID_REQUEST"
    compactor = ledger.register(5, records_pb2.NODE_ROLE_COMPACTOR)
    assert ledger.refusal(compactor, create_acls=wire.CreateAcls(rules=[rule()])) == "INVALID_REQUEST"
    assert ledger.refusal(compactor, delete_acls=wire.DeleteAcls(acl_ids=[b"x"])) == "INVALID_REQUEST"
    assert names(ledger) == []
