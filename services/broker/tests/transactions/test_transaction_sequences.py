"""Courses of a transactional id over several events: retries, fences, rotation of the producer id."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ponor_broker.transactions.events import AddRequest, EndRequest, InitRequest, ProducerClaim, RequestId
from ponor_broker.transactions.instructions import (
    Answer,
    Forget,
    Instruction,
    Markers,
    SendMarkers,
    SetTimer,
    TimerKind,
    TransactionAnswer,
    Write,
)
from ponor_broker.transactions.records import EPOCH_MAX, NO_PRODUCER, TransactionRecord, TransactionState
from ponor_broker.transactions.transaction import RETRY_MS, Transaction
from ponor_kafka.errors import ErrorCode
from ponor_runtime.identity import ProducerId

REQUEST = RequestId(1)
P0 = frozenset({("t", 0)})


class Id:
    """A transactional id whose writes are durable at once, unless `is_slow`."""

    def __init__(self) -> None:
        self.transaction = Transaction(10)
        self.now_ms = 1_000
        self.ids = iter(map(ProducerId, range(1_000, 2_000)))
        self.log: list[TransactionRecord | None] = []
        self.sent: list[Markers] = []
        self.timers: list[SetTimer] = []
        self.answer: TransactionAnswer | None = None
        self.is_forgotten = False
        self.is_slow = False

    def run(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Answer(_, body):
                    assert self.answer is None, "answered twice"
                    self.answer = body
                case Write(record):
                    self.log.append(record)
                    if not self.is_slow:
                        self.run(self.transaction.written(ErrorCode.NONE, self.now_ms))
                case SendMarkers(markers):
                    self.sent.append(markers)
                case SetTimer():
                    self.timers.append(instruction)
                case Forget():
                    self.is_forgotten = True

    def _answered(self, instructions: list[Instruction]) -> str:
        self.answer = None
        self.run(instructions)
        self.now_ms += 10
        return self.told()

    def told(self) -> str:
        answer, self.answer = self.answer, None
        if answer is None:
            return "waits"
        ids = "" if answer.producer_id == NO_PRODUCER else f" {answer.producer_id}/{answer.producer_epoch}"
        return answer.error.name + ids

    def init(self, expected: tuple[int, int] | None = None, timeout_ms: int = 60_000) -> str:
        new = next(self.ids) if self.transaction.needs_producer_id else None
        claim = None if expected is None else ProducerClaim(ProducerId(expected[0]), expected[1])
        request = InitRequest(timeout_ms, claim, REQUEST)
        return self._answered(self.transaction.init_producer_id(request, self.now_ms, new))

    def add(self, producer: int, epoch: int, *, generation: int = 2) -> str:
        request = AddRequest(ProducerClaim(ProducerId(producer), epoch), P0, generation == 2, REQUEST)
        return self._answered(self.transaction.add_partitions(request, self.now_ms))

    def end(self, producer: int, epoch: int, *, commit: bool = True, generation: int = 2) -> str:
        new = next(self.ids) if self.transaction.needs_producer_id else None
        request = EndRequest(ProducerClaim(ProducerId(producer), epoch), commit, generation == 2, REQUEST)
        return self._answered(self.transaction.end(request, self.now_ms, new))

    def time_out(self) -> None:
        new = next(self.ids) if self.transaction.needs_producer_id else None
        self.run(self.transaction.timed_out(self.now_ms, new))

    def markers_done(self) -> None:
        self.run(self.transaction.markers_done(self.now_ms))

    @property
    def state(self) -> str:
        record = self.transaction.record
        assert record is not None
        return f"{record.state.label} {record.producer_id}/{record.producer_epoch}"


def id_at(epoch: int, *, is_open: bool = False) -> Id:
    """An id of producer 1000 at an epoch."""
    one = Id()
    one.init()
    record = one.transaction.record
    assert record is not None
    one.transaction.record = replace(record, producer_epoch=epoch)
    if is_open:
        assert one.add(1000, epoch) == "NONE"
    return one


def test_generation_2_raises_the_epoch_with_each_transaction() -> None:
    one = Id()
    assert one.init() == "NONE 1000/0"
    for epoch, commit in ((0, True), (1, False), (2, True)):
        assert one.add(1000, epoch) == "NONE"
        assert one.end(1000, epoch, commit=commit) == f"NONE 1000/{epoch + 1}"
        assert one.end(1000, epoch, commit=commit) == "CONCURRENT_TRANSACTIONS", "markers are missing"
        assert one.add(1000, epoch + 1) == "CONCURRENT_TRANSACTIONS"
        one.markers_done()
        assert one.end(1000, epoch, commit=commit) == f"NONE 1000/{epoch + 1}", "the answer was lost"
        assert one.sent[-1] == Markers(
            ProducerId(1000), epoch + 1, is_commit=commit, is_generation_2=True, partitions=P0
        )
    assert [timer.delay_ms for timer in one.timers] == [60_000] * 3


def test_generation_1_keeps_the_epoch() -> None:
    one = Id()
    one.init()
    for commit in (True, False):
        assert one.add(1000, 0, generation=1) == "NONE"
        assert one.end(1000, 0, commit=commit, generation=1) == "NONE"
        one.markers_done()
        assert one.end(1000, 0, commit=commit, generation=1) == "NONE", "the answer was lost"
        assert one.end(1000, 0, commit=not commit, generation=1) == "INVALID_TXN_STATE"
        assert one.sent[-1] == Markers(
            ProducerId(1000), 0, is_commit=commit, is_generation_2=False, partitions=P0
        )


def test_last_epoch_of_a_producer_id_commits_into_the_next() -> None:
    one = id_at(EPOCH_MAX - 1, is_open=True)

    assert one.end(1000, EPOCH_MAX - 1) == "NONE 1001/0"
    assert one.state == f"PrepareCommit 1000/{EPOCH_MAX}"
    assert one.sent[-1].producer_epoch == EPOCH_MAX
    assert one.sent[-1].producer_id == 1000
    assert one.add(1001, 0) == "CONCURRENT_TRANSACTIONS", "a producer may have the new id already"
    one.markers_done()

    assert one.state == "CompleteCommit 1001/0"
    assert one.end(1000, EPOCH_MAX - 1) == "NONE 1001/0", "the answer was lost"
    assert one.end(1000, EPOCH_MAX - 1, commit=False) == "INVALID_TXN_STATE"
    assert one.add(1000, EPOCH_MAX - 1) == "INVALID_PRODUCER_ID_MAPPING"
    assert one.add(1001, 0) == "NONE"
    assert one.end(1000, EPOCH_MAX - 1) == "INVALID_PRODUCER_ID_MAPPING"


def test_the_rotation_survives_a_replay_between_prepare_and_complete() -> None:
    one = id_at(EPOCH_MAX - 1, is_open=True)
    one.end(1000, EPOCH_MAX - 1)

    one.transaction = Transaction(10, one.log[-1])
    one.run(one.transaction.loaded())
    one.markers_done()

    assert one.state == "CompleteCommit 1001/0"
    assert one.sent[0] == one.sent[1]


def test_generation_1_ends_at_the_last_epoch_and_the_next_init_rotates() -> None:
    one = id_at(EPOCH_MAX - 1, is_open=True)
    assert one.end(1000, EPOCH_MAX - 1, generation=1) == "NONE"
    one.markers_done()

    assert one.state == f"CompleteCommit 1000/{EPOCH_MAX - 1}"
    next(one.ids)  # `end` took 1001 and did not use it
    assert one.init() == "NONE 1003/0"


def test_init_aborts_an_open_transaction_first() -> None:
    one = Id()
    one.init()
    one.add(1000, 0)

    assert one.init() == "CONCURRENT_TRANSACTIONS"
    assert one.state == "PrepareAbort 1000/1"
    assert one.end(1000, 0) == "CONCURRENT_TRANSACTIONS"
    assert one.init() == "CONCURRENT_TRANSACTIONS"
    one.markers_done()

    assert one.init() == "NONE 1000/2"
    assert one.end(1000, 0) == "PRODUCER_FENCED"
    assert one.add(1000, 1) == "PRODUCER_FENCED"


def test_init_fences_at_the_last_epoch() -> None:
    one = id_at(EPOCH_MAX - 1, is_open=True)

    assert one.init() == "CONCURRENT_TRANSACTIONS"
    assert one.sent[-1].producer_epoch == EPOCH_MAX
    one.markers_done()

    assert one.state == "CompleteAbort 1001/0"
    assert one.init() == "NONE 1001/1"


@pytest.mark.parametrize("generation", [1, 2])
def test_timeout_aborts_and_fences(generation: int) -> None:
    one = Id()
    one.init(timeout_ms=500)
    one.add(1000, 0, generation=generation)
    assert one.timers == [SetTimer(TimerKind.TIMEOUT, 500)]

    one.time_out()
    one.markers_done()

    assert one.state == "CompleteAbort 1000/1"
    assert one.add(1000, 0, generation=generation) == "PRODUCER_FENCED"
    # As in Kafka: a producer of generation 2 continues after its abort, with the raised epoch.
    told = {1: "PRODUCER_FENCED", 2: "NONE 1000/1"}[generation]
    assert one.end(1000, 0, commit=False, generation=generation) == told
    assert one.end(1000, 0, commit=True, generation=generation) == {1: "PRODUCER_FENCED"}.get(
        generation, "INVALID_TXN_STATE"
    )


def test_timeout_during_a_write_comes_again() -> None:
    one = Id()
    one.init()
    one.add(1000, 0)
    one.is_slow = True
    assert one.end(1000, 0) == "waits"

    one.time_out()
    assert one.timers[-1] == SetTimer(TimerKind.TIMEOUT, RETRY_MS)

    one.run(one.transaction.written(ErrorCode.NONE, one.now_ms))
    one.time_out()
    assert one.state == "PrepareCommit 1000/1", "the commit was first"


def test_timeout_at_the_last_epoch_waits_for_a_producer_id() -> None:
    one = id_at(EPOCH_MAX - 1, is_open=True)

    one.run(one.transaction.timed_out(one.now_ms, None))
    assert one.state == f"Ongoing 1000/{EPOCH_MAX - 1}"
    assert one.timers[-1] == SetTimer(TimerKind.TIMEOUT, RETRY_MS)

    one.time_out()
    one.markers_done()
    assert one.state == "CompleteAbort 1001/0"


def test_producer_continues_after_an_error() -> None:
    """KIP-360."""
    one = Id()
    one.init()
    assert one.init((1000, 0)) == "NONE 1000/1"
    assert one.init((1000, 0)) == "NONE 1000/1", "the answer was lost"
    assert one.init((1000, 1)) == "NONE 1000/2"
    assert one.init((1000, 0)) == "PRODUCER_FENCED"

    assert one.init() == "NONE 1000/3", "another producer takes over"
    assert one.init((1000, 2)) == "PRODUCER_FENCED", "its predecessor does not come back"


def test_producer_continues_over_the_last_epoch() -> None:
    one = id_at(EPOCH_MAX - 1)
    assert one.init((1000, EPOCH_MAX - 1)) == "NONE 1001/0"
    assert one.init((1000, EPOCH_MAX - 1)) == "NONE 1001/0", "the answer was lost"
    assert one.init((1000, EPOCH_MAX - 2)) == "PRODUCER_FENCED"

    assert one.init() == "NONE 1001/1"
    assert one.init((1000, EPOCH_MAX - 1)) == "PRODUCER_FENCED"


def test_retry_with_an_older_epoch_at_the_last_one_does_not_rotate() -> None:
    one = id_at(EPOCH_MAX - 2)
    assert one.init((1000, EPOCH_MAX - 2)) == f"NONE 1000/{EPOCH_MAX - 1}"
    assert one.init((1000, EPOCH_MAX - 2)) == f"NONE 1000/{EPOCH_MAX - 1}"
    assert one.init((1000, EPOCH_MAX - 3)) == "PRODUCER_FENCED"


def test_rotation_without_a_producer_id_is_repeated() -> None:
    one = id_at(EPOCH_MAX - 1)
    request = InitRequest(60_000, None, REQUEST)
    assert one._answered(one.transaction.init_producer_id(request, 0, None)) == "CONCURRENT_TRANSACTIONS"

    one.add(1000, EPOCH_MAX - 1)
    end = EndRequest(ProducerClaim(ProducerId(1000), EPOCH_MAX - 1), True, True, REQUEST)
    assert one._answered(one.transaction.end(end, 0, None)) == "CONCURRENT_TRANSACTIONS"
    assert one.end(1000, EPOCH_MAX - 1).startswith("NONE")


def test_abort_without_partitions_completes_at_once() -> None:
    one = Id()
    one.init()

    assert one.end(1000, 0, commit=False) == "NONE 1000/1"

    assert one.state == "CompleteAbort 1000/1"
    assert one.sent == []
    assert [record.state.label for record in one.log if record] == ["Empty", "PrepareAbort", "CompleteAbort"]


@pytest.mark.parametrize("error", [ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE])
def test_failed_write_changes_nothing(error: ErrorCode) -> None:
    one = Id()
    one.init()
    one.add(1000, 0)
    one.is_slow = True
    for is_end in (True, False):
        assert (one.end(1000, 0) if is_end else one.init()) == "waits"
        one.run(one.transaction.written(error, one.now_ms))
        assert one.told() == error.name
        assert one.state == "Ongoing 1000/0"
    assert one.sent == []

    one.is_slow = False
    assert one.end(1000, 0) == "NONE 1000/1"


def test_failed_completion_is_repeated() -> None:
    one = Id()
    one.init()
    one.add(1000, 0)
    one.end(1000, 0)
    one.is_slow = True
    one.markers_done()
    one.markers_done()
    assert len(one.log) == 4, "the second call found the write in flight"

    one.run(one.transaction.written(ErrorCode.COORDINATOR_NOT_AVAILABLE, one.now_ms))
    assert one.timers[-1] == SetTimer(TimerKind.RETRY, RETRY_MS)

    one.is_slow = False
    one.markers_done()
    assert one.state == "CompleteCommit 1000/1"


def test_failed_abort_after_the_timeout_is_repeated() -> None:
    one = Id()
    one.init()
    one.add(1000, 0)
    one.is_slow = True
    one.time_out()

    one.run(one.transaction.written(ErrorCode.COORDINATOR_NOT_AVAILABLE, one.now_ms))

    assert one.timers[-1] == SetTimer(TimerKind.TIMEOUT, RETRY_MS)
    assert one.state == "Ongoing 1000/0"


def test_too_large_record_is_told_as_in_kafka() -> None:
    one = Id()
    one.init()
    one.is_slow = True
    one.add(1000, 0)
    one.run(one.transaction.written(ErrorCode.MESSAGE_TOO_LARGE, one.now_ms))

    assert one.told() == "UNKNOWN_SERVER_ERROR"


def test_partitions_of_a_transaction_are_bounded() -> None:
    one = Id()
    one.init()
    claim = ProducerClaim(ProducerId(1000), 0)
    ten = {("t", index) for index in range(10)}
    assert one._answered(one.transaction.add_partitions(AddRequest(claim, ten, True, REQUEST), 0)) == "NONE"

    eleventh = AddRequest(claim, {("u", 0)}, True, REQUEST)
    assert one._answered(one.transaction.add_partitions(eleventh, 0)) == "INVALID_REQUEST"
    assert one.end(1000, 0) == "NONE 1000/1"


def test_partitions_of_several_leaders_share_a_write() -> None:
    one = Id()
    one.init()
    one.is_slow = True
    claim = ProducerClaim(ProducerId(1000), 0)
    answers: list[tuple[int, str]] = []

    def add(number: int, *indexes: int, epoch: int = 0, is_generation_2: bool = True) -> None:
        partitions = {("t", index) for index in indexes}
        request = AddRequest(claim._replace(epoch=epoch), partitions, is_generation_2, RequestId(number))
        note(one.transaction.add_partitions(request, one.now_ms))

    def note(instructions: list[Instruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, Answer):
                answers.append((instruction.request, instruction.body.error.name))
            else:
                one.run([instruction])

    add(1, 0)
    add(2, 1)
    add(3, 2, 3)
    add(4, 4, epoch=1)
    add(5, 5, is_generation_2=False)
    add(6, *range(10, 20))
    assert answers == [(4, "CONCURRENT_TRANSACTIONS"), (5, "CONCURRENT_TRANSACTIONS")]
    answers.clear()

    note(one.transaction.written(ErrorCode.NONE, one.now_ms))
    assert answers == [(1, "NONE"), (6, "INVALID_REQUEST")]
    answers.clear()
    note(one.transaction.written(ErrorCode.NONE, one.now_ms))

    assert answers == [(2, "NONE"), (3, "NONE")]
    assert one.transaction.record is not None
    assert one.transaction.record.partitions == {("t", index) for index in range(4)}
    assert len(one.timers) == 1

    add(7, 8)
    add(8, 9)
    answers.clear()
    note(one.transaction.written(ErrorCode.COORDINATOR_NOT_AVAILABLE, one.now_ms))
    assert answers == [(7, "COORDINATOR_NOT_AVAILABLE"), (8, "COORDINATOR_NOT_AVAILABLE")]

    add(9, 8)
    add(10, 9)
    answers.clear()
    note(one.transaction.unload(ErrorCode.NOT_COORDINATOR))
    assert answers == [(9, "NOT_COORDINATOR"), (10, "NOT_COORDINATOR")]


def test_expired_id_is_forgotten_when_the_tombstone_is_durable() -> None:
    one = Id()
    one.init()
    one.is_slow = True
    one.run(one.transaction.expire(one.now_ms + 1_000, 1_011))
    assert len(one.log) == 1, "1 ms too early"

    one.run(one.transaction.expire(one.now_ms + 1_000, 1_010))
    assert one.log[-1] is None
    assert one.init() == "CONCURRENT_TRANSACTIONS"
    assert not one.is_forgotten

    one.run(one.transaction.written(ErrorCode.NONE, one.now_ms))
    assert one.is_forgotten


def test_unloaded_id_answers_and_ignores_its_write() -> None:
    one = Id()
    one.init()
    one.is_slow = True
    one.add(1000, 0)

    one.run(one.transaction.unload(ErrorCode.NOT_COORDINATOR))

    assert one.told() == "NOT_COORDINATOR"
    assert one.transaction.written(ErrorCode.NONE, one.now_ms) == []
    assert one.state == "Empty 1000/0"


def test_previous_state_of_the_client_version_is_kept_by_init() -> None:
    one = Id()
    one.init()
    one.add(1000, 0)
    one.end(1000, 0)
    one.markers_done()
    one.init()

    assert one.transaction.record is not None
    assert one.transaction.record.client_version == 2
    assert one.transaction.record.start_ms == -1
    assert one.transaction.record.state is TransactionState.EMPTY
