"""The balancer's view of a cluster, and the conditions under which it pauses."""

from __future__ import annotations

import pytest
from ponor.controller.v1 import session_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_controller.domains.balancing.cluster_load import (
    ClusterLoad,
    MovablePartition,
    Sources,
    measure_load,
)
from ponor_controller.domains.balancing.duty import MOVE_BEGUN_TAG, reason_to_wait
from ponor_controller.domains.balancing.loads import LoadBook
from ponor_controller.domains.balancing.recent_moves import RecentMoves
from ponor_controller.kernel.operation import Caller
from ponor_controller.settings import BalanceSettings
from ponor_metadata.nouns.nodes import WalKind
from ponor_metadata.nouns.topics import PARTITIONS
from ponor_runtime.identity import NodeId

from services.controller.tests.ledger import Ledger

SECOND_NS = 1_000_000_000


class Viewer:
    """A ledger with brokers, and the balancer's view of it."""

    def __init__(
        self, *, brokers: int = 3, partitions: int = 6, settings: BalanceSettings | None = None
    ) -> None:
        self.settings = settings or BalanceSettings()
        self.ledger = Ledger()
        self.callers = [self.ledger.register(number) for number in range(brokers)]
        self.loads = LoadBook(self.settings)
        self.recent = RecentMoves(self.settings)
        self.now_ns = 50 * SECOND_NS
        self.topic_id = self.create("orders", partitions)
        self.ledger.now_ms += 5_000

    def create(self, name: str, partitions: int) -> bytes:
        body = wire.CreateTopic(name=name, partitions=partitions, replication_factor=-1)
        return self.ledger.do(self.callers[0], create_topic=body).topic_held.topic_id

    @property
    def sources(self) -> Sources:
        return Sources(
            view=self.ledger.view,
            loads=self.loads,
            recent=self.recent,
            is_suspected=lambda node_id: node_id in self.ledger.suspected,
            settings=self.settings,
            now_ms=self.ledger.now_ms,
            now_ns=self.now_ns,
        )

    def measure_load(self) -> ClusterLoad:
        return measure_load(self.sources, lambda _: True)

    def taking_part(self) -> list[int]:
        return [broker.node_id & 0xFFFF for broker in self.measure_load().brokers]

    def movable(self, number: int) -> MovablePartition | None:
        key = (self.topic_id, number)
        return next((each for each in self.measure_load().movable if each.key == key), None)

    def report(self, caller: Caller, rates: dict[int, int]) -> None:
        self.now_ns += SECOND_NS
        report = wire.LoadReport(in_bytes_per_s=sum(rates.values()))
        for partition, rate in rates.items():
            report.partitions.add(topic_id=self.topic_id, partition=partition, in_bytes_per_s=rate)
        self.loads.add_report(caller.node_id, report, self.sources.leader_of, self.now_ns)

    def apply(self, **kind: object) -> None:
        self.ledger.apply([records_pb2.Record(**kind)])  # type: ignore[arg-type]

    def leader(self, number: int) -> NodeId:
        row = self.ledger.image[PARTITIONS].get((self.topic_id, number))
        assert row is not None
        return row.leader_id

    def move(self, number: int, target: Caller, cause: records_pb2.MoveCause.ValueType) -> None:
        begun = records_pb2.PartitionMoveBegun(
            topic_id=self.topic_id,
            partition=number,
            source_id=self.leader(number),
            target_id=target.node_id,
            begun_at_ms=self.ledger.now_ms,
            elect_at_ms=self.ledger.now_ms + 10_000,
            cause=cause,
            reason="because",
        )
        self.apply(partition_move_begun=begun)
        self.recent.moved(begun, self.now_ns)

    def log(self, caller: Caller) -> None:
        """The broker has an object WAL and did not open it yet."""
        self.apply(
            node_registered=records_pb2.NodeRegistered(
                node_id=caller.node_id,
                node_epoch=caller.node_epoch + 1,
                role=caller.role,
                incarnation=b"o" * 16,
                kafka_host="h",
                kafka_port=1,
                registered_at_ms=self.ledger.now_ms - 5_000,
                wal=records_pb2.WalKind.ValueType(WalKind.OBJECT),
            )
        )


@pytest.fixture
def viewer() -> Viewer:
    return Viewer()


def test_live_started_brokers_that_stay_take_part(viewer: Viewer) -> None:
    assert viewer.taking_part() == [0, 1, 2]
    viewer.apply(
        node_drain_set=records_pb2.NodeDrainSet(
            node_id=viewer.callers[0].node_id, node_epoch=viewer.callers[0].node_epoch, draining=True
        )
    )
    viewer.ledger.suspected = (viewer.callers[1].node_id,)
    joining = viewer.ledger.register(3)
    assert viewer.taking_part() == [2]
    assert [each.node_id for each in viewer.measure_load().others] == [
        viewer.callers[0].node_id,
        joining.node_id,
    ]
    viewer.ledger.now_ms += 1_000
    assert viewer.taking_part() == [2, 3]


def test_a_broker_with_an_object_wal_takes_part_after_it_opened_the_log(viewer: Viewer) -> None:
    caller = viewer.callers[2]
    viewer.log(caller)
    assert viewer.taking_part() == [0, 1]
    viewer.apply(wal_opened=records_pb2.WalOpened(node_id=caller.node_id, wal_epoch=caller.node_epoch + 1))
    assert viewer.taking_part() == [0, 1, 2]


def test_moves_in_progress_count_at_their_target_and_are_not_changed(viewer: Viewer) -> None:
    source = next(each for each in viewer.callers if each.node_id == viewer.leader(0))
    target = next(each for each in viewer.callers if each is not source)
    viewer.report(source, {0: 5_000_000})
    viewer.move(0, target, records_pb2.MOVE_CAUSE_BALANCE)
    cluster_load = viewer.measure_load()
    standing = {each.node_id: each for each in cluster_load.brokers}
    assert standing[target.node_id].traffic.in_bytes_per_s == 5_000_000
    assert (standing[source.node_id].partitions, standing[target.node_id].partitions) == (1, 3)
    assert standing[source.node_id].cool_down_ms == standing[target.node_id].cool_down_ms == 5_000
    assert cluster_load.moves_in_flight == 1
    assert viewer.movable(0) is None


def test_cool_downs_end_with_time_and_the_balancers_own_also_when_brokers_change(viewer: Viewer) -> None:
    for number, cause in ((0, records_pb2.MOVE_CAUSE_BALANCE), (1, records_pb2.MOVE_CAUSE_REQUEST)):
        target = next(each for each in viewer.callers if each.node_id != viewer.leader(number))
        viewer.move(number, target, cause)
        viewer.apply(
            partition_move_cancelled=records_pb2.PartitionMoveCancelled(
                topic_id=viewer.topic_id, partition=number
            )
        )
    assert viewer.movable(0) is None
    assert viewer.movable(1) is None
    viewer.recent.release()
    assert viewer.movable(0) is not None
    assert viewer.movable(1) is None, "an operator moved it there"
    viewer.now_ns += 30 * SECOND_NS
    assert viewer.movable(1) is not None
    viewer.recent.drop_expired(viewer.now_ns)
    assert not viewer.recent._partitions
    assert not viewer.recent._brokers


def test_partitions_moved_by_a_drain_have_no_cool_down(viewer: Viewer) -> None:
    target = next(each for each in viewer.callers if each.node_id != viewer.leader(0))
    viewer.move(0, target, records_pb2.MOVE_CAUSE_DRAIN)
    viewer.apply(
        partition_move_cancelled=records_pb2.PartitionMoveCancelled(topic_id=viewer.topic_id, partition=0)
    )
    assert viewer.movable(0) is not None


def test_idle_partitions_are_read_up_to_the_move_limit_with_coordinators_last() -> None:
    viewer = Viewer(brokers=1, partitions=6, settings=BalanceSettings(balance_moves_in_flight_max=8))
    viewer.create("__consumer_offsets", 50)
    movable = viewer.measure_load().movable
    assert sum(not each.internal for each in movable) == 6
    assert sum(each.internal for each in movable) == 2


def test_a_broker_that_stopped_reporting_its_traffic_is_named(viewer: Viewer) -> None:
    viewer.report(viewer.callers[0], {0: 1_000})
    assert not viewer.measure_load().unknown
    viewer.now_ns += 16 * SECOND_NS
    assert (
        viewer.measure_load().unknown
        == f"broker {viewer.callers[0].node_id} had traffic and has sent no load report for 16 s"
    )


def test_it_pauses_on_request_and_while_the_cluster_stops(viewer: Viewer) -> None:
    assert reason_to_wait(viewer.sources) == ""
    viewer.apply(balancer_paused=records_pb2.BalancerPaused(paused=True))
    assert "the balancer is paused" in reason_to_wait(viewer.sources)
    viewer.apply(balancer_paused=records_pb2.BalancerPaused(paused=False))
    viewer.apply(
        cluster_stop_announced=records_pb2.ClusterStopAnnounced(until_ms=viewer.ledger.now_ms + 60_000)
    )
    assert reason_to_wait(viewer.sources) == "the cluster is about to be stopped"
    viewer.ledger.now_ms += 60_000
    assert reason_to_wait(viewer.sources) == ""


def test_it_pauses_during_a_failover(viewer: Viewer) -> None:
    dead, other = viewer.callers[2], viewer.callers[0]
    viewer.log(dead)
    epoch = dead.node_epoch + 1
    viewer.apply(wal_opened=records_pb2.WalOpened(node_id=dead.node_id, wal_epoch=epoch))
    assert reason_to_wait(viewer.sources) == ""
    viewer.ledger.suspected = (dead.node_id,)
    gone = f"broker {dead.node_id} failed; other brokers take over its partitions first"
    assert reason_to_wait(viewer.sources) == gone
    viewer.apply(node_fenced=records_pb2.NodeFenced(node_id=dead.node_id, node_epoch=epoch))
    assert reason_to_wait(viewer.sources) == gone
    viewer.apply(
        wal_recovery_assigned=records_pb2.WalRecoveryAssigned(
            node_id=dead.node_id,
            wal_epoch=epoch,
            recoverer_id=other.node_id,
            recoverer_epoch=other.node_epoch,
            token=1,
        )
    )
    assert reason_to_wait(viewer.sources) == f"a write-ahead log of broker {dead.node_id} is being recovered"


def test_a_dead_broker_with_a_file_wal_does_not_pause_it(viewer: Viewer) -> None:
    viewer.ledger.suspected = (viewer.callers[2].node_id,)
    assert reason_to_wait(viewer.sources) == ""
    assert viewer.taking_part() == [0, 1]


def test_batches_that_begin_moves_are_recognised_by_their_bytes() -> None:
    begun = records_pb2.Record(partition_move_begun=records_pb2.PartitionMoveBegun(partition=1))
    batch = records_pb2.RecordBatch(index=1, records=[begun])
    assert MOVE_BEGUN_TAG in batch.SerializeToString(deterministic=True)
