"""Topics: Kafka's rules, placement of partitions, and complete deletion."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ponor.controller.v1 import session_service_pb2 as wire
from ponor_controller.domains.topics.operations import collides, name_problem
from ponor_controller.kernel.operation import Caller
from ponor_controller.settings import ControllerSettings
from ponor_kafka.configs.changes import checked_topic_configs
from ponor_metadata.image.memory_table import MemoryTable
from ponor_metadata.image.overlay import OverlayTable
from ponor_metadata.nouns.keys import KEYS
from ponor_metadata.nouns.streams import STREAMS
from ponor_metadata.nouns.topics import PARTITIONS, TOPICS

from services.controller.tests.ledger import Ledger


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture
def broker(ledger: Ledger) -> Caller:
    return ledger.register(0)


def _topic(
    name: str = "orders", partitions: int = 3, replication_factor: int = -1, **more: Any
) -> wire.CreateTopic:
    return wire.CreateTopic(name=name, partitions=partitions, replication_factor=replication_factor, **more)


def test_a_topic_is_created_with_its_partitions(ledger: Ledger, broker: Caller) -> None:
    held = ledger.do(broker, create_topic=_topic(configs={"retention.ms": "-1"})).topic_held
    topic = ledger.image[TOPICS].get(held.topic_id)
    assert topic is not None
    assert (topic.name, topic.tenant_id, dict(topic.configs)) == ("orders", "", {"retention.ms": "-1"})
    rows = list(ledger.image[PARTITIONS])
    assert [(row.partition, row.leader_id, row.leader_epoch, row.replicas) for row in rows] == [
        (number, broker.node_id, 0, (broker.node_id,)) for number in range(3)
    ]
    assert ledger.refusal(broker, create_topic=_topic()) == "TOPIC_EXISTS"


def test_a_validation_changes_nothing_and_returns_the_result(ledger: Ledger, broker: Caller) -> None:
    before = ledger.image.digest
    held = ledger.do(broker, create_topic=_topic(partitions=-1, validate_only=True)).topic_held
    assert (held.partitions, held.topic_id) == (1, b"")
    assert ledger.image.digest == before


def test_partitions_are_spread_over_live_brokers(ledger: Ledger, broker: Caller) -> None:
    second, third = ledger.register(1), ledger.register(2)
    ledger.suspected = (third.node_id,)
    ledger.do(broker, create_topic=_topic(partitions=4))
    leaders = [row.leader_id for row in ledger.image[PARTITIONS]]
    assert sorted(leaders) == [broker.node_id] * 2 + [second.node_id] * 2
    ledger.suspected = (broker.node_id, second.node_id, third.node_id)
    ledger.do(broker, create_topic=_topic("b", partitions=3))  # a silent broker rather than none
    assert len(ledger.image[PARTITIONS]) == 7


def test_limits_of_a_new_topic() -> None:
    ledger = Ledger(settings=ControllerSettings(partitions_per_topic_max=5, partitions_max=8))
    broker = ledger.register(0)
    for count in (0, -2, 6):
        assert ledger.refusal(broker, create_topic=_topic(partitions=count)) == "INVALID_PARTITIONS"
    for factor in (0, -2, 1 << 15):
        body = _topic(replication_factor=factor)
        assert ledger.refusal(broker, create_topic=body) == "INVALID_REPLICATION_FACTOR"
    ledger.do(broker, create_topic=_topic(partitions=5, replication_factor=3))
    assert ledger.refusal(broker, create_topic=_topic("more", partitions=4)) == "INVALID_PARTITIONS"
    assert ledger.refusal(broker, create_topic=_topic("x", tenant_id="acme")) == "INVALID_REQUEST"


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "ä", "a/b", "x" * 250, "line\n", "orders\0"])
def test_invalid_topic_names(ledger: Ledger, broker: Caller, name: str) -> None:
    assert ledger.refusal(broker, create_topic=_topic(name)) == "INVALID_TOPIC"


@pytest.mark.parametrize("name", ["a", "...", "x" * 249, "A-Z_0.9", "__consumer_offsets"])
def test_valid_topic_names(ledger: Ledger, broker: Caller, name: str) -> None:
    ledger.do(broker, create_topic=_topic(name))


def test_dot_and_underscore_are_equal_in_metric_names(ledger: Ledger, broker: Caller) -> None:
    ledger.do(broker, create_topic=_topic("a.b_c"))
    assert ledger.refusal(broker, create_topic=_topic("a_b.c")) == "INVALID_TOPIC"
    ledger.do(broker, create_topic=_topic("a-b-c"))


@given(st.text(alphabet="a._-", min_size=1, max_size=6), st.text(alphabet="a._-", min_size=1, max_size=6))
def test_a_collision_is_symmetric_and_never_with_the_same_name(one: str, other: str) -> None:
    assert collides(one, other) == collides(other, one)
    assert not collides(one, one)
    assert not collides(one, other) or one.replace("_", ".") == other.replace("_", ".")


@given(st.text(max_size=300))
def test_a_valid_name_has_only_valid_characters(name: str) -> None:
    if name_problem(name) is None:
        assert name.isascii()
        assert 1 <= len(name) <= 249


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("cleanup.policy", "compact,delete", "compost"),
        ("compression.type", "zstd", "brotli"),
        ("compression.gzip.level", "-1", "0"),
        ("min.cleanable.dirty.ratio", "0.5", "1.1"),
        ("retention.ms", "-1", "-2"),
        ("max.message.bytes", "1048588", "many"),
        ("preallocate", "false", "no"),
        ("remote.storage.enable", "false", "true"),
        ("leader.replication.throttled.replicas", "0:1,1:2", "0-1"),
    ],
)
def test_topic_settings_are_checked(ledger: Ledger, broker: Caller, name: str, good: str, bad: str) -> None:
    assert checked_topic_configs({name: good}) == {name: good}
    body = _topic(configs={name: bad})
    assert ledger.refusal(broker, create_topic=body) == "INVALID_CONFIG"


def test_an_unknown_topic_setting_is_refused(ledger: Ledger, broker: Caller) -> None:
    body = _topic(configs={"retention.msec": "1"})
    assert ledger.refusal(broker, create_topic=body) == "INVALID_CONFIG"


def test_without_a_broker_a_topic_is_refused(ledger: Ledger) -> None:
    # A requesting broker is registered; only a fenced one could be alone.
    broker = ledger.register(0)
    from ponor.metadata.v1 import records_pb2

    fenced = records_pb2.NodeFenced(node_id=broker.node_id, node_epoch=broker.node_epoch)
    ledger.apply([records_pb2.Record(node_fenced=fenced)])
    assert ledger.refusal(broker, create_topic=_topic()) == "NO_BROKER"


def test_a_deleted_topic_leaves_no_stream_key_or_object(ledger: Ledger, broker: Caller) -> None:
    gone = ledger.do(broker, create_topic=_topic("gone", partitions=2)).topic_held.topic_id
    kept = ledger.do(broker, create_topic=_topic("kept", partitions=1)).topic_held.topic_id
    dying = ledger.create_streams(broker, 3, topic=gone.hex(), partition="0")
    (living,) = ledger.create_streams(broker, 1, topic=kept.hex(), partition="0")
    for stream in (*dying, living):
        ledger.open(broker, stream, 0)
    for key in (f"partition/{gone.hex()}/0", f"partition/{gone.hex()}/1", f"partition/{kept.hex()}/0"):
        ledger.do(broker, put_key=wire.PutKey(key=key, value=b"x"))
    own, single = ledger.upload(
        broker,
        set_ranges=[(dying[0], 0, 0, 5), (dying[1], 0, 0, 5)],
        stream_objects=[(dying[2], 0, 0, 50)],
    )
    (shared,) = ledger.upload(broker, set_ranges=[(dying[0], 0, 5, 9), (living, 0, 0, 4)])

    ledger.do(broker, delete_topic=wire.DeleteTopic(topic_id=gone))
    ledger.reclaim()
    assert [row.stream_id for row in ledger.image[STREAMS]] == [living]
    assert [row.topic_id for row in ledger.image[TOPICS]] == [kept]
    assert [row.topic_id for row in ledger.image[PARTITIONS]] == [kept]
    assert [row.key for row in ledger.image[KEYS]] == [f"partition/{kept.hex()}/0"]
    states = {each: ledger.object(each).state.name for each in (own, single, shared)}
    assert states == {own: "DESTROYED", single: "DESTROYED", shared: "COMMITTED"}
    assert ledger.refusal(broker, delete_topic=wire.DeleteTopic(topic_id=gone)) == "TOPIC_NOT_FOUND"
    ledger.do(broker, create_topic=_topic("gone"))


def test_a_topic_grows_and_never_shrinks(ledger: Ledger, broker: Caller) -> None:
    second = ledger.register(1)
    topic_id = ledger.do(broker, create_topic=_topic(partitions=3)).topic_held.topic_id

    def grow(count: int, **more: Any) -> wire.CreatePartitions:
        return wire.CreatePartitions(topic_id=topic_id, count=count, **more)

    before = ledger.image.digest
    assert ledger.do(broker, create_partitions=grow(5, validate_only=True)).topic_held.partitions == 5
    assert ledger.image.digest == before
    for count in (-1, 0, 2, 3, 10_001):
        assert ledger.refusal(broker, create_partitions=grow(count)) == "INVALID_PARTITIONS"
    assert ledger.do(broker, create_partitions=grow(7)).topic_held.partitions == 7
    rows = list(ledger.image[PARTITIONS])
    assert [row.partition for row in rows] == list(range(7))
    assert [row.leader_id for row in rows] == [broker.node_id, second.node_id] * 3 + [broker.node_id]
    missing = wire.CreatePartitions(topic_id=bytes(16), count=9)
    assert ledger.refusal(broker, create_partitions=missing) == "TOPIC_NOT_FOUND"


def test_growth_respects_the_cluster_s_limit() -> None:
    ledger = Ledger(settings=ControllerSettings(partitions_max=8))
    broker = ledger.register(0)
    topic_id = ledger.do(broker, create_topic=_topic(partitions=5)).topic_held.topic_id
    body = wire.CreatePartitions(topic_id=topic_id, count=9)
    assert ledger.refusal(broker, create_partitions=body) == "INVALID_PARTITIONS"
    ledger.do(broker, create_partitions=wire.CreatePartitions(topic_id=topic_id, count=8))


@pytest.mark.parametrize("others", [1, 200])
def test_deleting_a_topic_reads_only_its_own_rows(
    ledger: Ledger, broker: Caller, others: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted: no walk over a table, and the same number of lookups with few and with many topics."""
    for number in range(others):
        other = ledger.do(broker, create_topic=_topic(f"other-{number}")).topic_held.topic_id
        ledger.create_streams(broker, 6, topic=other.hex())
    topic_id = ledger.do(broker, create_topic=_topic()).topic_held.topic_id
    ledger.create_streams(broker, 6, topic=topic_id.hex())
    looks: Counter[str] = Counter()
    for kind in (MemoryTable, OverlayTable):
        for method in ("__iter__", "get", "find"):
            monkeypatch.setattr(kind, method, _counted(getattr(kind, method), looks, method))
    records = ledger.decide(broker, delete_topic=wire.DeleteTopic(topic_id=topic_id))
    assert Counter(record.WhichOneof("kind") for record in records) == {"topic_deleted": 1}
    assert looks["__iter__"] == 0
    assert looks["get"] + looks["find"] <= 60


def _counted(method: Callable[..., Any], looks: Counter[str], name: str) -> Callable[..., Any]:
    def counting(*arguments: Any) -> Any:
        looks[name] += 1
        return method(*arguments)

    return counting
