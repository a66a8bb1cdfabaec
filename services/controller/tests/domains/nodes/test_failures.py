"""Duties after broker failures, derived only from rows and suspicion, in any state that an earlier
leader left.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ponor.controller.v1 import session_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_controller.domains.nodes import failover_rules as failures
from ponor_controller.domains.nodes.failover_rules import Failures, find_failures
from ponor_controller.kernel.operation import Caller
from ponor_metadata.image.validate import validate
from ponor_metadata.nouns.nodes import NODES, WalKind, is_current
from ponor_metadata.nouns.topics import MOVES, PARTITIONS
from ponor_metadata.nouns.wals import WALS
from ponor_runtime.identity import NodeId

from services.controller.tests.ledger import Ledger, wal_name


class Cluster:
    """Brokers with object WALs (the last `files` of them with file WALs), and a topic that they
    lead in turn.
    """

    def __init__(self, brokers: int = 3, *, files: int = 0, partitions: int = 6) -> None:
        self.ledger = Ledger()
        kinds = [WalKind.OBJECT] * (brokers - files) + [WalKind.FILE] * files
        self.brokers = [self.ledger.register(number, wal=kind) for number, kind in enumerate(kinds)]
        for broker, kind in zip(self.brokers, kinds, strict=True):
            if kind is WalKind.OBJECT:
                self.ledger.do(broker, open_wal=wire.OpenWal())
        topic = wire.CreateTopic(name="t", partitions=partitions, replication_factor=-1)
        self.topic_id = self.ledger.do(self.brokers[0], create_topic=topic).topic_held.topic_id

    def suspect(self, *brokers: Caller) -> None:
        self.ledger.suspected = tuple(each.node_id for each in brokers)

    def find(self) -> Failures:
        return find_failures(self.ledger.view, lambda node_id: node_id in self.ledger.suspected)

    def look(self) -> Failures:
        """Find and execute the due steps."""
        found = self.find()
        self.ledger.apply(found.records(self.ledger.view))
        validate(self.ledger.image)
        return found

    def leaders(self) -> Counter[NodeId]:
        return Counter(row.leader_id for row in self.ledger.image[PARTITIONS])


def test_without_failures_nothing_is_due() -> None:
    assert Cluster().find() == Failures()


def test_one_step_fences_assigns_and_elects() -> None:
    cluster = Cluster()
    dead, one, two = cluster.brokers
    cluster.suspect(dead)
    found = cluster.look()
    assert [node.node_id for node in found.fenced] == [dead.node_id]
    assert cluster.leaders() == {one.node_id: 3, two.node_id: 3}
    assert {row.leader_epoch for row in cluster.ledger.image[PARTITIONS]} == {0, 1}
    row = cluster.ledger.image[WALS].get((dead.node_id, dead.node_epoch))
    assert row is not None
    assert (row.recoverer_id, row.recoverer_epoch, row.token) == (one.node_id, one.node_epoch, 1)
    assert cluster.find() == Failures(), "and then nothing more"


def test_a_new_leader_continues_a_half_done_failover() -> None:
    cluster = Cluster()
    dead, one, two = cluster.brokers
    cluster.ledger.fence(dead)
    found = cluster.look()
    assert not found.fenced
    assert len(found.elected) == 2
    assert len(found.assigned) == 1
    cluster.suspect(one)
    found = cluster.look()
    assert [(each.wal.node_id, each.recoverer.node_id, each.wal.token) for each in found.assigned] == [
        (dead.node_id, two.node_id, 1),
        (one.node_id, two.node_id, 0),
    ]
    assert cluster.leaders() == {two.node_id: 6}


def test_logs_of_several_dead_brokers_are_distributed() -> None:
    cluster = Cluster(5, partitions=10)
    cluster.suspect(*cluster.brokers[:3])
    found = cluster.look()
    recoverers = Counter(each.recoverer.node_id for each in found.assigned)
    assert sorted(recoverers.values()) == [1, 2]
    assert set(cluster.leaders().values()) == {5}


def test_a_file_wal_waits_for_its_broker() -> None:
    cluster = Cluster(3, files=1)
    dead = cluster.brokers[2]
    cluster.suspect(dead)
    assert cluster.find() == Failures()
    cluster.ledger.fence(dead)  # a source that was stuck
    assert cluster.find() == Failures()


def test_a_broker_with_a_file_wal_recovers_logs_only_if_no_other_can() -> None:
    cluster = Cluster(3, files=1)
    dead, other, with_file = cluster.brokers
    cluster.suspect(dead)
    assert [each.recoverer.node_id for each in cluster.look().assigned] == [other.node_id]
    cluster.suspect(dead, other)
    assert {each.recoverer.node_id for each in cluster.look().assigned} == {with_file.node_id}


def test_no_broker_is_fenced_without_a_replacement() -> None:
    cluster = Cluster()
    cluster.suspect(*cluster.brokers)
    assert cluster.find() == Failures(blocked=True)
    cluster.suspect(cluster.brokers[0])
    for broker in cluster.brokers[1:]:
        drains = records_pb2.NodeDrainSet(node_id=broker.node_id, node_epoch=broker.node_epoch, draining=True)
        cluster.ledger.apply([records_pb2.Record(node_drain_set=drains)])
    assert cluster.find() == Failures(blocked=True), "draining brokers get nothing"
    cluster.ledger.do(
        cluster.brokers[2], set_drain=wire.SetDrain(node_id=cluster.brokers[2].node_id, draining=False)
    )
    assert [node.node_id for node in cluster.look().fenced] == [cluster.brokers[0].node_id]


def test_a_moving_partition_goes_to_its_target() -> None:
    cluster = Cluster()
    dead, _, target = cluster.brokers
    move = wire.PartitionMove(topic_id=cluster.topic_id, partition=0, target_id=target.node_id)
    cluster.ledger.do(
        dead, move_partitions=wire.MovePartitions(moves=[move], cause=records_pb2.MOVE_CAUSE_REQUEST)
    )
    cluster.suspect(dead)
    cluster.look()
    row = cluster.ledger.image[PARTITIONS].get((cluster.topic_id, 0))
    assert row is not None
    assert row.leader_id == target.node_id
    assert not cluster.ledger.image[MOVES]


def test_a_restarted_recoverer_gets_its_assignment_again() -> None:
    cluster = Cluster()
    dead, one, _ = cluster.brokers
    cluster.suspect(dead)
    cluster.look()
    cluster.suspect()
    again = cluster.ledger.register(1, wal=WalKind.OBJECT)
    assert again.node_id == one.node_id
    found = cluster.look()
    (assigned,) = [each for each in found.assigned if each.wal.node_id == dead.node_id]
    assert assigned.recoverer.node_epoch in (again.node_epoch, 1)
    row = cluster.ledger.image[WALS].get((dead.node_id, dead.node_epoch))
    assert row is not None
    assert is_current(cluster.ledger.image, row.recoverer_id, row.recoverer_epoch)


def test_many_partitions_are_elected_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "PARTITIONS_PER_STEP_MAX", 4)
    cluster = Cluster(3, partitions=30)
    cluster.suspect(cluster.brokers[0])
    steps = [cluster.look()]
    while steps[-1].more:
        steps.append(cluster.look())
    assert [len(step.elected) for step in steps] == [4, 4, 2]
    assert set(cluster.leaders().values()) == {15}


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_in_any_order_of_failures_every_log_and_partition_is_assigned(data: st.DataObject) -> None:
    """Brokers die, return and recover in any order. When nothing is due, everything has a live
    leader and recoverer.
    """
    cluster = Cluster(4, partitions=8)
    ledger = cluster.ledger
    present = list(cluster.brokers)
    for _ in range(data.draw(st.integers(1, 12))):
        number = data.draw(st.integers(0, 3))
        match data.draw(st.sampled_from(["dies", "comes back", "recovers", "is looked for"])):
            case "dies" if len(set(ledger.suspected) | {present[number].node_id}) < 4:
                ledger.suspected = tuple({*ledger.suspected, present[number].node_id})
            case "comes back":
                present[number] = ledger.register(number, wal=WalKind.OBJECT)
                ledger.do(present[number], open_wal=wire.OpenWal())
                ledger.suspected = tuple(set(ledger.suspected) - {present[number].node_id})
            case "recovers":
                for row in list(ledger.image[WALS]):
                    me = (present[number].node_id, present[number].node_epoch)
                    if (row.recoverer_id, row.recoverer_epoch) == me and is_current(ledger.image, *me):
                        owner = Caller(row.node_id, row.wal_epoch, present[number].role)
                        ledger.do(present[number], close_wal=wire.CloseWal(wal=wal_name(owner)))
            case _:
                cluster.look()
    while cluster.look().records(cluster.ledger.view):
        pass
    for partition in ledger.image[PARTITIONS]:
        node = ledger.image[NODES].get(partition.leader_id)
        assert node is not None
        assert not node.fenced
        assert partition.leader_id not in ledger.suspected
    for row in ledger.image[WALS]:
        if not is_current(ledger.image, row.node_id, row.wal_epoch):
            assert is_current(ledger.image, row.recoverer_id, row.recoverer_epoch)
            assert row.recoverer_id not in ledger.suspected
