"""Draining brokers: conditions, targets and waves of their partitions, and when they may leave."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ponor.controller.v1 import session_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_controller.domains.nodes.drain_duty import draining_brokers, next_wave
from ponor_controller.kernel.operation import Caller
from ponor_controller.shared_rules.placement import candidates, led_counts, spread
from ponor_metadata.nouns.nodes import NODES, WalKind
from ponor_metadata.nouns.topics import PARTITIONS
from ponor_runtime.identity import NodeId

from services.controller.tests.ledger import Ledger
from services.controller.tests.moves_kit import Moving


@pytest.fixture
def moving() -> Moving:
    return Moving(partitions=9)


def _drain(moving: Moving, broker: Caller, draining: bool = True, caller: Caller | None = None) -> None:
    body = wire.SetDrain(node_id=broker.node_id, draining=draining)
    moving.ledger.do(caller or broker, set_drain=body)


def test_a_broker_starts_and_stops_draining(moving: Moving) -> None:
    source, other = moving.brokers[0], moving.brokers[1]
    _drain(moving, source)
    assert [row.node_id for row in draining_brokers(moving.ledger.image)] == [source.node_id]
    before = moving.ledger.image.digest
    _drain(moving, source)
    assert moving.ledger.image.digest == before, "so already"
    _drain(moving, source, False, caller=other)
    assert draining_brokers(moving.ledger.image) == []


def test_a_new_process_does_not_drain(moving: Moving) -> None:
    _drain(moving, moving.brokers[0])
    moving.ledger.register(0)
    assert draining_brokers(moving.ledger.image) == []


def test_a_drain_needs_another_broker(moving: Moving) -> None:
    first, second, third = moving.brokers
    _drain(moving, first)
    moving.ledger.suspected = (third.node_id,)
    body = wire.SetDrain(node_id=second.node_id, draining=True)
    assert moving.ledger.refusal(second, set_drain=body) == "NO_BROKER"
    moving.ledger.suspected = ()
    _drain(moving, second)
    idle = moving.ledger.register(5)
    moving.ledger.suspected = (third.node_id, idle.node_id)
    _drain(moving, idle)  # it leads nothing


def test_only_live_brokers_drain(moving: Moving) -> None:
    ledger, caller = moving.ledger, moving.brokers[0]
    collector = ledger.register(5, records_pb2.NODE_ROLE_GC)
    moving.fence(moving.brokers[2])
    for node_id in (collector.node_id, moving.brokers[2].node_id, 99):
        body = wire.SetDrain(node_id=node_id, draining=True)
        assert ledger.refusal(caller, set_drain=body) == "NODE_NOT_FOUND"
    body = wire.SetDrain(node_id=caller.node_id, draining=True)
    assert ledger.refusal(collector, set_drain=body) == "INVALID_REQUEST"


def test_a_draining_broker_gets_no_new_partitions(moving: Moving) -> None:
    source = moving.brokers[0]
    _drain(moving, source)
    for name in ("__consumer_offsets", "more"):
        body = wire.CreateTopic(name=name, partitions=10, replication_factor=-1)
        topic_id = moving.ledger.do(source, create_topic=body).topic_held.topic_id
        leaders = Counter(
            row.leader_id for row in moving.ledger.image[PARTITIONS] if row.topic_id == topic_id
        )
        assert leaders == {moving.brokers[1].node_id: 5, moving.brokers[2].node_id: 5}
    body_more = wire.CreatePartitions(topic_id=moving.topic_id, count=11)
    moving.ledger.do(source, create_partitions=body_more)
    assert {moving.partition(9).leader_id, moving.partition(10).leader_id} == {
        moving.brokers[1].node_id,
        moving.brokers[2].node_id,
    }


def test_waves_are_limited_spread_and_refilled_when_half_has_arrived(moving: Moving) -> None:
    ledger, (source, second, third) = moving.ledger, moving.brokers
    for number in range(9):  # all to the first
        if moving.leader(number) != source:
            moving.begin((number, source.node_id))
            moving.close(number)
            moving.elect(number)
            moving.open(number)
    _drain(moving, source)

    def wave(maximum: int) -> list[tuple[int, NodeId]]:
        counts = led_counts(ledger.view, candidates(ledger.view, lambda _: False))
        chosen = next_wave(ledger.view, source.node_id, counts, maximum, lambda _: True)
        return [(partition.partition, target_id) for partition, target_id in chosen]

    first = wave(4)
    assert Counter(target_id for _, target_id in first) == {second.node_id: 2, third.node_id: 2}
    moving.begin(*first, cause=records_pb2.MOVE_CAUSE_DRAIN)
    assert wave(4) == []
    moving.close(first[0][0])
    moving.elect(first[0][0])
    assert wave(4) == [], "most of it is still on its way"
    moving.close(first[1][0])
    moving.elect(first[1][0])
    following = wave(4)
    assert len(following) == 2
    assert not {number for number, _ in following} & {number for number, _ in first}
    assert len(wave(100)) == 5, "all that do not move yet"


def test_a_wave_skips_partitions_that_may_not_move_yet(moving: Moving) -> None:
    source = moving.brokers[0]
    mine = [number for number in range(9) if moving.leader(number) == source]
    _drain(moving, source)
    counts = led_counts(moving.ledger.view, candidates(moving.ledger.view, lambda _: False))
    chosen = next_wave(
        moving.ledger.view, source.node_id, counts, 9, lambda partition: partition.partition != mine[0]
    )
    assert [partition.partition for partition, _ in chosen] == mine[1:]


def test_a_broker_with_partitions_may_not_leave() -> None:
    moving = Moving(brokers=2, partitions=1)
    ledger, source, target = moving.ledger, moving.leader(), moving.others()[0]
    leave = wire.LeaveCluster()
    assert ledger.refusal(source, leave_cluster=leave) == "MOVE_UNDER_WAY", "it leads a partition"
    loose = ledger.create_streams(source)[0]
    ledger.open(source, loose, 1)
    moving.begin((0, target.node_id))
    moving.close()
    moving.elect(0)
    assert ledger.refusal(source, leave_cluster=leave) == "STREAM_NOT_CLOSED"
    state = wire.StreamState(stream_id=loose, stream_epoch=1)
    ledger.do(source, close_streams=wire.CloseStreams(streams=[state]))
    assert ledger.do(source, leave_cluster=leave).HasField("done")
    node = ledger.image[NODES].get(source.node_id)
    assert node is not None
    assert node.fenced
    collector = ledger.register(5, records_pb2.NODE_ROLE_GC)
    assert ledger.refusal(collector, leave_cluster=leave) == "INVALID_REQUEST"


def test_a_broker_with_an_open_log_may_not_leave() -> None:
    ledger = Ledger()
    broker = ledger.register(0, wal=WalKind.OBJECT)
    ledger.do(broker, open_wal=wire.OpenWal())
    assert ledger.refusal(broker, leave_cluster=wire.LeaveCluster()) == "WAL_NOT_HELD"
    name = wire.WalName(node_id=broker.node_id, wal_epoch=broker.node_epoch)
    ledger.do(broker, close_wal=wire.CloseWal(wal=name, end_sequence=0))
    ledger.do(broker, leave_cluster=wire.LeaveCluster())


@given(st.dictionaries(st.integers(0, 9).map(NodeId), st.integers(0, 20), min_size=1), st.integers(0, 60))
def test_partitions_are_spread_evenly_starting_at_the_least_loaded_broker(
    counts: dict[NodeId, int], count: int
) -> None:
    given_to = Counter(spread(counts, count))
    assert given_to.total() == count
    shares = [given_to[node_id] for node_id in counts]
    assert max(shares) - min(shares) <= 1
    if count:
        first = spread(counts, count)[0]
        assert counts[first] == min(counts.values())


def test_without_a_target_there_is_no_placement() -> None:
    with pytest.raises(ValueError, match="no broker"):
        spread({}, 1)
