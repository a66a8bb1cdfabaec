"""Moves that neither broker ends: the controller's decisions, from rows and cluster time."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ponor.controller.v1 import session_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_controller.domains.moves.overdue import RETRY_MS, Action
from ponor_controller.kernel.operation import Caller
from ponor_controller.settings import ControllerSettings
from ponor_controller.shared_rules import move_records
from ponor_metadata.nouns.nodes import NODES, is_current
from ponor_metadata.nouns.topics import PartitionRow
from ponor_rpc.errors import OperationError

from services.controller.tests.ledger import Ledger
from services.controller.tests.moves_kit import Moving

TIMEOUT_MS = ControllerSettings().reelection_timeout_ms
BEGUN_MS = 1_000
ELECT_MS = BEGUN_MS + TIMEOUT_MS
FENCE_MS = BEGUN_MS + 2 * TIMEOUT_MS


@pytest.fixture
def moving() -> Moving:
    """A move in progress."""
    moving = Moving()
    moving.begin((0, moving.others()[0].node_id))
    return moving


def test_nothing_happens_before_the_timeout(moving: Moving) -> None:
    for closed in (False, True):
        moving.ledger.now_ms = ELECT_MS - 1
        assert moving.due().interventions == []
        assert moving.due().again_at_ms == ELECT_MS
        if not closed:
            moving.close()


def test_a_source_that_closed_and_requested_no_election_is_not_waited_for(moving: Moving) -> None:
    target = moving.others()[0]
    moving.close()
    moving.ledger.now_ms = ELECT_MS
    assert moving.drive() == [Action.ELECTED]
    assert (moving.partition().leader_id, moving.partition().leader_epoch) == (target.node_id, 1)
    assert moving.due().again_at_ms is None


def test_a_source_that_closes_late_is_replaced_immediately(moving: Moving) -> None:
    moving.ledger.now_ms = ELECT_MS + 5_000
    assert moving.drive() == []
    assert moving.due().again_at_ms == FENCE_MS
    moving.close()
    assert moving.drive() == [Action.ELECTED]


def test_a_stuck_source_is_fenced_and_its_streams_stay_open(moving: Moving) -> None:
    source = moving.leader()
    moving.ledger.now_ms = FENCE_MS
    assert moving.drive(grace_left_ms=3_000) == [], "a new leader gives it time to connect"
    assert moving.due(grace_left_ms=3_000).again_at_ms == FENCE_MS + 3_000
    assert moving.drive() == [Action.FENCED]
    node = moving.ledger.image[NODES].get(source.node_id)
    assert node is not None
    assert node.fenced
    assert moving.is_open(), "only the recovery of its log closes them"
    assert moving.move() is not None
    assert moving.drive() == [], "once"
    assert moving.partition().leader_id == source.node_id


def test_partitions_closed_by_a_fenced_source_move_immediately() -> None:
    moving = Moving(brokers=2, partitions=4)
    source, target = moving.brokers
    mine = [number for number in range(4) if moving.leader(number) == source]
    moving.begin(*((number, target.node_id) for number in mine))
    moving.close(mine[1])
    moving.fence(source)
    assert moving.drive() == [Action.ELECTED]
    assert moving.partition(mine[1]).leader_id == target.node_id
    assert moving.partition(mine[0]).leader_id == source.node_id


def test_partitions_closed_by_a_silent_source_move_immediately(moving: Moving) -> None:
    """It stopped in the middle of a move. Streams that it still holds open stay its own: a silent
    node keeps all its rights.
    """
    source, target = moving.leader(), moving.others()[0]
    moving.ledger.suspected = (source.node_id,)
    assert moving.drive() == []
    assert moving.due().again_at_ms == ELECT_MS
    moving.close()
    assert moving.drive() == [Action.ELECTED]
    assert moving.partition().leader_id == target.node_id


def test_a_silent_source_with_open_streams_is_fenced_after_the_timeout(moving: Moving) -> None:
    moving.ledger.suspected = (moving.leader().node_id,)
    while (again_ms := moving.due().again_at_ms) is not None:
        assert again_ms > moving.ledger.now_ms
        moving.ledger.now_ms = again_ms
    assert (moving.ledger.now_ms, moving.drive()) == (FENCE_MS, [Action.FENCED])


def test_a_source_that_waits_for_the_recovery_of_another_log_is_not_fenced(moving: Moving) -> None:
    """Its partition moves again before it could open it: its streams are open at the dead broker."""
    dead = moving.leader()
    moving.fence(dead)
    successor, other = moving.others()
    moving.ledger.apply([move_records.elected(moving.ledger.view, moving.partition(), successor.node_id)])
    moving.begin((0, other.node_id))
    begun_ms = moving.ledger.now_ms
    moving.ledger.now_ms = begun_ms + TIMEOUT_MS - 1
    assert moving.drive() == []
    moving.ledger.now_ms = begun_ms + 2 * TIMEOUT_MS
    assert moving.drive() == [Action.CANCELLED]
    node = moving.ledger.image[NODES].get(successor.node_id)
    assert node is not None
    assert not node.fenced
    assert (moving.move(), moving.partition().leader_id) == (None, successor.node_id)


def test_a_stuck_source_loses_all_its_closed_partitions_in_the_same_step() -> None:
    moving = Moving(brokers=3, partitions=6)
    source, target = moving.brokers[0], moving.brokers[1]
    mine = [number for number in range(6) if moving.leader(number) == source]
    moving.begin(*((number, target.node_id) for number in mine))
    moving.close(mine[1])
    moving.ledger.now_ms = FENCE_MS
    assert moving.drive() == [Action.FENCED, Action.ELECTED]


def test_a_broker_about_to_be_fenced_is_not_elected() -> None:
    """A broker that is stuck as a source is not elected for another partition in the same step."""
    moving = Moving(brokers=3, partitions=3)
    stuck = moving.leader(0)
    moving.begin((0, moving.others(0)[0].node_id), (1, stuck.node_id), (2, stuck.node_id))
    moving.close(1)
    moving.ledger.now_ms = FENCE_MS
    before = moving.partition(2)
    moving.close(2)
    assert sorted(action.value for action in moving.drive()) == ["elected", "elected", "fenced"]
    assert moving.partition(1).leader_id != stuck.node_id
    assert moving.partition(2).leader_id == before.leader_id


def test_a_target_lost_before_the_election(moving: Moving) -> None:
    source, target = moving.leader(), moving.others()[0]
    moving.ledger.suspected = (target.node_id,)
    assert moving.drive() == [Action.CANCELLED]
    assert (moving.partition().leader_id, moving.partition().leader_epoch) == (source.node_id, 0)
    moving.ledger.suspected = ()
    moving.begin((0, target.node_id))
    moving.close()
    moving.fence(target)
    assert moving.drive() == [Action.ELECTED]
    assert (moving.partition().leader_id, moving.partition().leader_epoch) == (source.node_id, 1)


def test_without_a_live_broker_the_partition_waits(moving: Moving) -> None:
    moving.close()
    moving.ledger.suspected = tuple(broker.node_id for broker in moving.brokers)
    moving.ledger.now_ms = ELECT_MS
    assert moving.due().interventions == []
    assert moving.due().again_at_ms == ELECT_MS + RETRY_MS
    moving.ledger.suspected = moving.ledger.suspected[:-1]
    assert moving.drive() == [Action.ELECTED]
    assert moving.partition().leader_id == moving.brokers[-1].node_id


def test_moves_of_a_stopping_cluster_are_not_changed(moving: Moving) -> None:
    until_ms = FENCE_MS + 60_000
    announced = records_pb2.ClusterStopAnnounced(until_ms=until_ms)
    moving.ledger.apply([records_pb2.Record(cluster_stop_announced=announced)])
    moving.ledger.now_ms = FENCE_MS
    moving.ledger.suspected = (moving.others()[0].node_id,)
    assert moving.due().interventions == []
    assert moving.due().again_at_ms == until_ms
    moving.ledger.now_ms = until_ms
    assert moving.drive() != []


def test_a_restarted_source_keeps_the_partition(moving: Moving) -> None:
    source = moving.leader()
    moving.brokers[moving.brokers.index(source)] = moving.ledger.register(source.node_id & 0xFFFF)
    assert moving.move() is None
    assert moving.partition().replicas == (source.node_id,)
    assert moving.partition().leader_epoch == 1
    moving.ledger.now_ms = FENCE_MS
    assert moving.drive() == []


# Random order of all events.

STEPS = (
    "begin",
    "begin",
    "close",
    "close",
    "elect",
    "cancel",
    "open",
    "drive",
    "wait",
    "fence",
    "silence",
    "heard",
)


class _Chaos:
    """Brokers that make any allowed step at any time, and the invariants."""

    def __init__(self) -> None:
        settings = ControllerSettings(reelection_timeout_ms=1_000, drain_moves_in_flight_max=2)
        self.moving = Moving(brokers=3, partitions=3, ledger=Ledger(settings=settings))

    def step(self, word: str, number: int, broker: int) -> None:
        before = self.moving.partition(number)
        opened = self.moving.is_open(number)
        try:
            self._do(word, number, broker)
        except OperationError:
            assert word in ("open", "close", "begin", "elect", "cancel"), "only brokers are refused"
        self._check(before, opened, number)

    def _do(self, word: str, number: int, at: int) -> None:
        moving, ledger = self.moving, self.moving.ledger
        broker = moving.brokers[at]
        match word:
            case "begin":
                moving.begin((number, broker.node_id), caller=moving.brokers[2])
            case "close" if self._has_rights(moving.owner(number)):
                moving.close(number)
            case "open" if self._has_rights(moving.leader(number)):
                moving.open(number)
            case "elect" if self._has_rights(broker):
                moving.elect(number, caller=broker)
            case "cancel" if self._has_rights(broker):
                moving.cancel(number, caller=broker)
            case "drive":
                moving.drive()
            case "wait":
                ledger.now_ms += 700
            case "fence" if at == 0:  # the others keep tsuccessor rights, so that a broker can always lead
                node = ledger.view[NODES].get(broker.node_id)
                if node is not None and not node.fenced:
                    moving.fence(broker)
            case "silence":
                ledger.suspected = (broker.node_id,)
            case "heard":
                ledger.suspected = ()

    def _has_rights(self, broker: Caller) -> bool:
        """The executor checks this first."""
        return is_current(self.moving.ledger.view, broker.node_id, broker.node_epoch)

    def _check(self, before: PartitionRow, opened: bool, number: int) -> None:
        after, move = self.moving.partition(number), self.moving.move(number)
        assert after.leader_epoch >= before.leader_epoch
        if after.leader_epoch != before.leader_epoch:
            assert not opened, "no broker is elected while another can append"
            assert move is None
        elif after.leader_id != before.leader_id:
            raise AssertionError("a leader without a new epoch")
        assert after.replicas == ((move.target_id,) if move else (after.leader_id,))
        assert move is None or move.source_id == after.leader_id != move.target_id

    def settle(self) -> None:
        """No broker does anything anymore, and the driver runs only at the times that it announced."""
        self.moving.ledger.suspected = ()
        for _ in range(50):
            if self.moving.drive():
                continue
            again_ms = self.moving.due().again_at_ms
            if again_ms is None:
                break
            assert again_ms > self.moving.ledger.now_ms, "the driver runs without end"
            self.moving.ledger.now_ms = again_ms
        for number in range(3):
            move = self.moving.move(number)
            if move is not None:
                node = self.moving.ledger.view[NODES].get(move.source_id)
                waits = node is not None and node.fenced and self.moving.is_open(number)
                assert waits, "a move waits for nothing but the recovery of its source's log"
            self._serve(number)

    def _serve(self, number: int) -> None:
        """A leader with rights serves eventually, even if it had closed a partition that it kept:
        then it requests a new election.
        """
        moving = self.moving
        leader = moving.leader(number)
        node = moving.ledger.view[NODES].get(leader.node_id)
        assert node is not None
        if node.fenced or moving.is_open(number):
            return
        try:
            moving.open(number)
        except OperationError:
            assert moving.elect(number) == [""]
            moving.open(number)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 2), st.integers(0, 2)), max_size=40))
def test_no_broker_is_elected_beside_an_open_stream_and_every_move_ends(
    steps: list[tuple[str, int, int]],
) -> None:
    chaos = _Chaos()
    for word, number, broker in steps:
        chaos.step(word, number, broker)
    chaos.settle()


def test_a_move_of_a_deleted_topic_has_no_effect(moving: Moving) -> None:
    for number in range(3):
        moving.close(number)
    moving.ledger.do(moving.brokers[0], delete_topic=wire.DeleteTopic(topic_id=moving.topic_id))
    moving.ledger.now_ms = FENCE_MS
    assert (moving.due().interventions, moving.due().again_at_ms) == ([], None)
