"""Settings of topics and brokers: changes are resolved atomically by the leader, and only results
are written to the log.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest
from ponor.common.v1 import error_pb2
from ponor.controller.v1 import session_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_controller.domains.topics import configs
from ponor_controller.kernel.operation import Caller
from ponor_metadata.nouns.groups import GROUP_CONFIGS
from ponor_metadata.nouns.nodes import ALL_BROKERS, BROKER_CONFIGS
from ponor_metadata.nouns.topics import TOPICS
from ponor_rpc.errors import OperationError
from ponor_runtime.identity import DEFAULT_TENANT, NodeId

from services.controller.tests.ledger import Ledger

SET, DELETE, APPEND, SUBTRACT = (
    wire.ConfigChange.KIND_SET,
    wire.ConfigChange.KIND_DELETE,
    wire.ConfigChange.KIND_APPEND,
    wire.ConfigChange.KIND_SUBTRACT,
)


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture
def broker(ledger: Ledger) -> Caller:
    return ledger.register(0)


@pytest.fixture
def topic_id(ledger: Ledger, broker: Caller) -> bytes:
    return ledger.do(
        broker, create_topic=wire.CreateTopic(name="orders", partitions=1, replication_factor=-1)
    ).topic_held.topic_id


def change(name: str, kind: wire.ConfigChange.Kind.ValueType, value: str = "") -> wire.ConfigChange:
    return wire.ConfigChange(name=name, kind=kind, value=value)


def of_topic(ledger: Ledger, topic_id: bytes) -> Mapping[str, str]:
    row = ledger.image[TOPICS].get(topic_id)
    assert row is not None
    return row.configs


def of_broker(ledger: Ledger, node_id: NodeId) -> Mapping[str, str] | None:
    row = ledger.image[BROKER_CONFIGS].get(node_id)
    return None if row is None else row.configs


def test_a_topic_s_settings_are_set_extended_and_reset(
    ledger: Ledger, broker: Caller, topic_id: bytes
) -> None:
    def alter(*changes: wire.ConfigChange, replace: bool = False) -> None:
        body = wire.AlterTopicConfigs(topic_id=topic_id, changes=changes, replace=replace)
        ledger.do(broker, alter_topic_configs=body)

    alter(change("retention.ms", SET, " 5000 "), change("cleanup.policy", APPEND, "compact"))
    assert of_topic(ledger, topic_id) == {"cleanup.policy": "delete,compact", "retention.ms": "5000"}
    alter(change("cleanup.policy", SUBTRACT, "delete"), change("retention.ms", DELETE))
    assert of_topic(ledger, topic_id) == {"cleanup.policy": "compact"}
    alter(change("segment.ms", SET, "9"), replace=True)
    assert of_topic(ledger, topic_id) == {"segment.ms": "9"}
    alter(replace=True)
    assert of_topic(ledger, topic_id) == {}


def test_changes_see_proposed_uncommitted_ones(ledger: Ledger, broker: Caller, topic_id: bytes) -> None:
    ledger.hold = True
    for item in ("0:1", "1:1"):
        appended = change("leader.replication.throttled.replicas", APPEND, item)
        body = wire.AlterTopicConfigs(topic_id=topic_id, changes=[appended])
        ledger.do(broker, alter_topic_configs=body)
    assert of_topic(ledger, topic_id) == {}
    ledger.commit()
    assert of_topic(ledger, topic_id) == {"leader.replication.throttled.replicas": "0:1,1:1"}


def test_a_refused_request_changes_nothing(ledger: Ledger, broker: Caller, topic_id: bytes) -> None:
    good = change("retention.ms", SET, "1")

    def refusal(*changes: wire.ConfigChange, topic: bytes = topic_id) -> str:
        return ledger.refusal(
            broker, alter_topic_configs=wire.AlterTopicConfigs(topic_id=topic, changes=changes)
        )

    assert refusal(good, change("segment.ms", SET, "x")) == "INVALID_CONFIG"
    assert refusal(good, change("nope", SET, "x")) == "INVALID_CONFIG"
    assert (
        refusal(change("leader.replication.throttled.replicas", SET, "0:1," * 9_000 + "1:1"))
        == "INVALID_CONFIG"
    )
    assert refusal(good, good) == "INVALID_REQUEST"
    assert refusal(change("retention.ms", wire.ConfigChange.KIND_UNSPECIFIED)) == "INVALID_REQUEST"
    assert refusal(good, topic=bytes(16)) == "TOPIC_NOT_FOUND"


def test_a_validation_or_an_empty_change_writes_no_record(
    ledger: Ledger, broker: Caller, topic_id: bytes
) -> None:
    body = wire.AlterTopicConfigs(topic_id=topic_id, changes=[change("retention.ms", SET, "1")])
    checked = wire.AlterTopicConfigs(topic_id=topic_id, changes=body.changes, validate_only=True)
    assert ledger.decide(broker, alter_topic_configs=checked) == []
    ledger.do(broker, alter_topic_configs=body)
    assert ledger.decide(broker, alter_topic_configs=body) == []
    nothing = wire.AlterBrokerConfigs(node_id=-1, changes=[change("log.retention.ms", DELETE)])
    assert ledger.decide(broker, alter_broker_configs=nothing) == []


def test_dynamic_settings_of_one_broker_and_of_all(ledger: Ledger, broker: Caller) -> None:
    def alter(node_id: int, *changes: wire.ConfigChange) -> None:
        ledger.do(broker, alter_broker_configs=wire.AlterBrokerConfigs(node_id=node_id, changes=changes))

    alter(-1, change("log.retention.ms", SET, "5000"))
    alter(broker.node_id, change("log.retention.ms", SET, "7"), change("listeners", SET, "PLAINTEXT://:1"))
    assert of_broker(ledger, ALL_BROKERS) == {"log.retention.ms": "5000"}
    assert of_broker(ledger, broker.node_id) == {"listeners": "PLAINTEXT://:1", "log.retention.ms": "7"}
    alter(-1, change("log.retention.ms", DELETE))
    assert of_broker(ledger, ALL_BROKERS) is None


def test_broker_settings_that_cannot_be_changed(ledger: Ledger, broker: Caller) -> None:
    gc = ledger.register(1, records_pb2.NODE_ROLE_GC)

    def refusal(node_id: int, name: str, value: str = "1") -> str:
        body = wire.AlterBrokerConfigs(node_id=node_id, changes=[change(name, SET, value)])
        return ledger.refusal(broker, alter_broker_configs=body)

    assert refusal(-1, "log.dirs") == "INVALID_REQUEST"
    assert refusal(-1, "listeners") == "INVALID_REQUEST"
    assert refusal(-1, "nope") == "INVALID_REQUEST"
    assert refusal(-1, "log.retention.ms", "soon") == "INVALID_REQUEST"
    assert refusal(gc.node_id, "log.retention.ms") == "INVALID_REQUEST"
    assert refusal(broker.node_id + 9, "log.retention.ms") == "INVALID_REQUEST"


def group_change(group_id: str, *changes: wire.ConfigChange, replace: bool = False) -> wire.AlterGroupConfigs:
    return wire.AlterGroupConfigs(group_id=group_id, changes=changes, replace=replace)


def of_group(ledger: Ledger, group_id: str) -> Mapping[str, str] | None:
    row = ledger.image[GROUP_CONFIGS].get((DEFAULT_TENANT, group_id))
    return None if row is None else row.configs


def test_a_group_s_settings_are_set_replaced_and_reset(ledger: Ledger, broker: Caller) -> None:
    def alter(*changes: wire.ConfigChange, replace: bool = False) -> Mapping[str, str] | None:
        ledger.do(broker, alter_group_configs=group_change("g", *changes, replace=replace))
        return of_group(ledger, "g")

    timeout, reset = "consumer.session.timeout.ms", "share.auto.offset.reset"
    assert alter(change(timeout, SET, " 50000 ")) == {timeout: "50000"}
    assert alter(change(reset, SET, "earliest")) == {timeout: "50000", reset: "earliest"}
    assert alter(change(reset, SET, "by_duration:P1DT2H"), replace=True) == {reset: "by_duration:P1DT2H"}
    checked = group_change("g", change(reset, SET, "latest"))
    checked.validate_only = True
    assert ledger.decide(broker, alter_group_configs=checked) == []
    assert alter(change(reset, DELETE), change("never.set", DELETE)) is None
    assert ledger.decide(broker, alter_group_configs=group_change("g", change(reset, DELETE))) == []


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("no.such.config", "1", "Unknown group config name: no.such.config"),
        ("consumer.session.timeout.ms", "soon", "Not a number of type INT"),
        ("share.record.lock.duration.ms", "999", "Value must be at least 1000"),
        ("share.record.lock.duration.ms", "60001", "or equal to group.share.max.record.lock.duration.ms"),
        ("share.session.timeout.ms", "44999", "or equal to group.share.min.session.timeout.ms"),
        ("streams.num.standby.replicas", "3", "or equal to group.streams.max.standby.replicas"),
        ("share.auto.offset.reset", "by_duration:-PT1S", "by_duration:<PnDTnHnMn.nS>"),
    ],
)
def test_group_settings_out_of_range_are_refused(
    ledger: Ledger, broker: Caller, name: str, value: str, message: str
) -> None:
    with pytest.raises(OperationError, match=re.escape(message)) as refused:
        ledger.decide(broker, alter_group_configs=group_change("g", change(name, SET, value)))
    assert refused.value.code == error_pb2.ERROR_CODE_INVALID_CONFIG


def test_groups_with_settings_are_bounded(
    ledger: Ledger, broker: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(configs, "GROUPS_WITH_CONFIGS_MAX", 1)
    earliest = change("share.auto.offset.reset", SET, "earliest")
    ledger.do(broker, alter_group_configs=group_change("g", earliest))
    assert ledger.refusal(broker, alter_group_configs=group_change("h", earliest)) == "INVALID_REQUEST"
    committed = change("share.isolation.level", SET, "read_committed")
    ledger.do(broker, alter_group_configs=group_change("g", committed))
    for invalid_id in ("", "x" * 1_025):
        refused = ledger.refusal(broker, alter_group_configs=group_change(invalid_id, earliest))
        assert refused == "INVALID_REQUEST"


def test_a_new_topic_stores_its_settings_in_canonical_form(ledger: Ledger, broker: Caller) -> None:
    body = wire.CreateTopic(name="b", partitions=1, replication_factor=-1, configs={"retention.ms": " +7 "})
    topic_id = ledger.do(broker, create_topic=body).topic_held.topic_id
    assert of_topic(ledger, topic_id) == {"retention.ms": "7"}
