"""Operations on moves: begin, cancel, elect, for each partition separately."""

from __future__ import annotations

import pytest
from ponor.controller.v1 import session_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_controller.domains.moves.operations import MOVES_PER_OPERATION_MAX
from ponor_controller.settings import ControllerSettings
from ponor_metadata.nouns.topics import MOVES, MoveCause
from ponor_runtime.identity import NodeId

from services.controller.tests.ledger import Ledger
from services.controller.tests.moves_kit import TRACEPARENT, Moving

UNKNOWN = NodeId(7 << 16 | 99)


@pytest.fixture
def moving() -> Moving:
    return Moving()


def test_a_move_begins_without_an_election(moving: Moving) -> None:
    before, target = moving.partition(), moving.others()[0]
    assert moving.begin((0, target.node_id), reason="closer to its readers", traceparent=TRACEPARENT) == [""]
    move = moving.move()
    assert move is not None
    assert (move.source_id, move.target_id, move.cause) == (
        before.leader_id,
        target.node_id,
        MoveCause.REQUEST,
    )
    assert (move.begun_at_ms, move.elect_at_ms) == (1_000, 16_000)
    assert (move.reason, move.traceparent) == ("closer to its readers", TRACEPARENT)
    assert moving.partition() == before._replace(replicas=(target.node_id,))
    assert moving.is_open(), "the source continues"


def test_the_six_steps_of_a_move(moving: Moving) -> None:
    source, target = moving.leader(), moving.others()[1]
    moving.begin((0, target.node_id), traceparent=TRACEPARENT)
    assert moving.elect(0) == ["MOVE_UNDER_WAY"], "its streams are open"
    moving.close()
    moving.ledger.hold = True
    assert moving.elect(0) == [""]
    (record,) = records_pb2.RecordBatch.FromString(moving.ledger.view._proposed[-1].encoded).records
    assert record.partition_changed.traceparent == TRACEPARENT
    moving.ledger.commit()
    after = moving.partition()
    assert (after.leader_id, after.leader_epoch, after.replicas) == (target.node_id, 1, (target.node_id,))
    assert moving.move() is None
    moving.ledger.hold = False
    moving.open()
    assert moving.elect(0, caller=source, leader_epoch=0) == [""], "elected already"
    assert moving.partition() == after


def test_each_partition_is_validated_separately(moving: Moving) -> None:
    """A partition that cannot move does not block the others."""
    ledger = moving.ledger
    fenced, draining = ledger.register(7), ledger.register(8)
    silent, collector = ledger.register(9), ledger.register(10, records_pb2.NODE_ROLE_GC)
    moving.brokers += [fenced, draining, silent]
    moving.fence(fenced)
    ledger.do(moving.brokers[0], set_drain=wire.SetDrain(node_id=draining.node_id, draining=True))
    ledger.suspected = (silent.node_id,)
    target = moving.others(0)[0].node_id
    for refused in (fenced, draining, silent):
        assert moving.begin((0, refused.node_id), (9, target)) == ["NO_BROKER", "TOPIC_NOT_FOUND"]
    assert moving.begin((0, collector.node_id), (1, UNKNOWN)) == ["INVALID_REQUEST"] * 2
    other = moving.others(1)[0].node_id
    assert moving.begin((0, UNKNOWN), (1, other), (-1, other)) == ["INVALID_REQUEST", "", "TOPIC_NOT_FOUND"]
    assert (moving.move(0), moving.move(1) is None) == (None, False)


def test_a_source_that_cannot_close_gets_no_move(moving: Moving) -> None:
    first, second = moving.leader(0), moving.leader(1)
    target = next(each for each in moving.brokers if each not in (first, second))
    moving.fence(first)
    moving.ledger.suspected = (second.node_id,)
    assert moving.begin((0, target.node_id), (1, target.node_id), caller=target) == ["NO_BROKER"] * 2


def test_a_move_has_one_target_at_a_time(moving: Moving) -> None:
    first, second = moving.others()
    moving.begin((0, first.node_id))
    before = moving.ledger.image.digest
    assert moving.begin((0, first.node_id)) == [""], "it already does"
    assert moving.begin((0, second.node_id)) == ["MOVE_UNDER_WAY"]
    assert moving.ledger.image.digest == before


@pytest.mark.parametrize("word", ["cancel", "stay"])
def test_a_move_is_cancelled_in_every_state(moving: Moving, word: str) -> None:
    source, target = moving.leader(), moving.others()[0]

    def cancel_move() -> list[str]:
        return moving.cancel(0) if word == "cancel" else moving.begin((0, source.node_id))

    def state() -> tuple[NodeId, int]:
        return moving.partition().leader_id, moving.partition().leader_epoch

    unmoved = "NO_MOVE" if word == "cancel" else ""
    assert cancel_move() == [unmoved], "it does not move"
    moving.begin((0, target.node_id))
    assert cancel_move() == [""]
    assert (state(), moving.move()) == ((source.node_id, 0), None)
    assert moving.partition().replicas == (source.node_id,)
    assert moving.is_open(), "nothing changed"
    moving.begin((0, target.node_id))
    moving.close()
    assert cancel_move() == [""], "streams are closed: only a new epoch opens them again"
    assert (state(), moving.move()) == ((source.node_id, 1), None)
    moving.open()
    moving.begin((0, target.node_id))
    moving.close()
    moving.elect(0)
    assert moving.cancel(0) == ["NO_MOVE"], "it is over"
    assert state() == (target.node_id, 2)


def test_a_source_cancels_only_moves_of_partitions_that_it_leads(moving: Moving) -> None:
    source, target = moving.leader(), moving.others()[0]
    moving.begin((0, target.node_id))
    moving.close()
    moving.elect(0)
    moving.open()
    moving.begin((0, source.node_id))
    assert moving.partition().leader_epoch == 1
    assert moving.cancel(0, leader_epoch=5, caller=source) == ["NO_MOVE"]
    assert moving.cancel(0, leader_epoch=1, caller=target) == [""]


def test_a_cancel_concurrent_with_the_close_re_elects_the_source(moving: Moving) -> None:
    """The source had sent CloseStreams and ElectMoved when the move was cancelled. It is elected
    again, because no broker can open at an epoch that was closed.
    """
    source, target = moving.leader(), moving.others()[0]
    moving.begin((0, target.node_id))
    moving.cancel(0)
    assert moving.elect(0, caller=source, leader_epoch=0) == ["NO_MOVE"], "nothing was closed yet"
    moving.close()
    assert moving.elect(0, caller=source, leader_epoch=0) == [""]
    assert (moving.partition().leader_id, moving.partition().leader_epoch) == (source.node_id, 1)
    moving.open()


def test_only_the_source_requests_the_election(moving: Moving) -> None:
    source, target = moving.leader(), moving.others()[0]
    moving.begin((0, target.node_id))
    moving.close()
    for caller, epoch in ((target, 0), (source, 1), (target, 7)):
        assert moving.elect(0, caller=caller, leader_epoch=epoch) == ["INVALID_REQUEST"]
    assert moving.move() is not None
    assert moving.elect(0, 9, caller=source, leader_epoch=0) == ["", "TOPIC_NOT_FOUND"]


def test_a_silent_target_is_not_elected(moving: Moving) -> None:
    source, (target, third) = moving.leader(), moving.others()
    moving.begin((0, target.node_id))
    moving.close()
    moving.ledger.suspected = (target.node_id,)
    assert moving.elect(0) == [""]
    assert moving.partition().leader_id == source.node_id, "it is live and has all its data"
    moving.open()
    moving.ledger.suspected = ()
    moving.begin((0, target.node_id))
    moving.close()
    moving.ledger.do(source, set_drain=wire.SetDrain(node_id=source.node_id, draining=True))
    moving.ledger.suspected = (target.node_id,)
    moving.elect(0)
    assert moving.partition().leader_id == third.node_id, "the source is draining"


def test_every_wave_of_one_source_has_its_own_timeout() -> None:
    settings = ControllerSettings(drain_moves_in_flight_max=4, reelection_timeout_ms=1_000)
    moving = Moving(brokers=2, partitions=24, ledger=Ledger(settings=settings))
    source, target = moving.brokers
    numbers = [number for number in range(24) if moving.leader(number) == source]
    assert moving.begin(*((number, target.node_id) for number in numbers[:6])) == [""] * 6
    assert moving.begin(*((number, target.node_id) for number in numbers[6:])) == [""] * 6
    moves = [moving.move(number) for number in numbers]
    assert [move.elect_at_ms for move in moves if move] == [2_000] * 4 + [3_000] * 4 + [4_000] * 4


def test_deleting_a_topic_deletes_its_moves(moving: Moving) -> None:
    moving.begin((0, moving.others()[0].node_id))
    for number in range(3):
        moving.close(number)
    moving.ledger.do(moving.brokers[0], delete_topic=wire.DeleteTopic(topic_id=moving.topic_id))
    assert len(moving.ledger.image[MOVES]) == 0
    assert moving.drive() == []


def test_an_invalid_operation_is_refused_as_a_whole(moving: Moving) -> None:
    ledger, broker = moving.ledger, moving.brokers[0]
    target_id, source_id = moving.others()[0].node_id, moving.leader().node_id
    move = wire.PartitionMove(topic_id=moving.topic_id, partition=0, target_id=target_id)
    back = wire.PartitionMove(topic_id=moving.topic_id, partition=0, target_id=source_id)
    request = records_pb2.MOVE_CAUSE_REQUEST
    many = [
        wire.PartitionMove(topic_id=moving.topic_id, partition=n) for n in range(MOVES_PER_OPERATION_MAX + 1)
    ]
    for body in (
        wire.MovePartitions(cause=request),
        wire.MovePartitions(moves=many, cause=request),
        wire.MovePartitions(moves=[move, back], cause=request),
        wire.MovePartitions(moves=[move]),
        wire.MovePartitions(moves=[move], cause=request, reason="r" * 257),
    ):
        assert ledger.refusal(broker, move_partitions=body) == "INVALID_REQUEST"
    names = moving.names([0, 0])
    assert ledger.refusal(broker, elect_moved=wire.ElectMoved(partitions=names)) == "INVALID_REQUEST"
    assert ledger.refusal(broker, cancel_moves=wire.CancelMoves(partitions=names)) == "INVALID_REQUEST"
    collector = ledger.register(5, records_pb2.NODE_ROLE_GC)
    good = wire.MovePartitions(moves=[move], cause=request)
    assert ledger.refusal(collector, move_partitions=good) == "INVALID_REQUEST"
    assert moving.move() is None
