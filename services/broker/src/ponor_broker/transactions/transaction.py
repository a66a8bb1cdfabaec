"""One transactional id as a state machine without I/O: events in, instructions out.

Decides which producer may add partitions, commit and abort, and which errors the other producers get. Its
methods get the time as an argument, and are called when a timer fires or a write has completed. The caller
must execute the returned instructions, in order, before the next event.

`record` is the newest durable state: it changes only when a write is durable, so a replay of the log up to
any record yields the same state. The exception is `_last_epoch`, which Kafka's record does not contain: after
a replay, a producer that repeats an InitProducerId (KIP-360) whose answer was lost is fenced.

Sources: KIP-98 (transactions), KIP-360 (a producer continues after an error), KIP-890 (generation 2: the
epoch rises with every transaction), and otherwise the behaviour of Kafka's coordinator (4.3.1), with
KAFKA-18464 and KAFKA-18660 (order of checks), KAFKA-19367 (a fence raises the epoch once) and KAFKA-20090 (a
fence at the highest epoch rotates the producer id).
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from ponor_kafka.errors import ErrorCode
from ponor_runtime.identity import ProducerId

from ponor_broker.transactions.events import AddRequest, EndRequest, InitRequest, ProducerClaim, RequestId
from ponor_broker.transactions.instructions import (
    Answer,
    Forget,
    Instruction,
    SendMarkers,
    SetTimer,
    TimerKind,
    TransactionAnswer,
    Write,
)
from ponor_broker.transactions.records import (
    EPOCH_MAX,
    GENERATION_2,
    NO_EPOCH,
    NO_TIMESTAMP,
    TopicPartition,
    TransactionRecord,
    TransactionState,
)
from ponor_broker.transactions.transitions import changed, completed, markers, prepared, raised

ADDS_WAITING_MAX: Final = 100
"""Requests to add partitions that wait for the write in flight."""
RETRY_MS: Final = 1_000
"""Pause before a completion, or an abort after the timeout, is attempted again."""

_State = TransactionState


@dataclass(frozen=True, slots=True)
class _Pending:
    """The write in flight, the `_last_epoch` that it sets, and the requests that get `answer` after it."""

    record: TransactionRecord | None
    last_epoch: int
    requests: tuple[RequestId, ...] = ()
    answer: TransactionAnswer | None = None


class Transaction:
    """One transactional id.

    Attributes:
        record: the newest durable state; None before the first record.
    """

    __slots__ = (
        "_adds",
        "_is_unloaded",
        "_last_epoch",
        "_out",
        "_partitions_max",
        "_pending",
        "record",
    )

    def __init__(self, partitions_max: int, record: TransactionRecord | None = None) -> None:
        """`record` is the state from the log; if it is given, the caller must then call `loaded`."""
        self.record = record
        self._partitions_max = partitions_max
        self._last_epoch = NO_EPOCH
        self._pending: _Pending | None = None
        self._adds: tuple[AddRequest, ...] = ()
        self._out: list[Instruction] = []
        self._is_unloaded = False

    @property
    def state(self) -> TransactionState:
        """The durable state; EMPTY before the first record."""
        return _State.EMPTY if self.record is None else self.record.state

    @property
    def needs_producer_id(self) -> bool:
        """Whether the next InitProducerId or end of a transaction may assign a new producer id. The caller
        then passes one with the event.
        """
        return self.record is None or self.record.is_exhausted

    @property
    def is_busy(self) -> bool:
        """Whether a write is in flight, or markers are missing."""
        return self._pending is not None or self.state.is_prepared

    # --- InitProducerId

    def init_producer_id(
        self, request: InitRequest, now_ms: int, new_producer_id: ProducerId | None = None
    ) -> list[Instruction]:
        """Handle an InitProducerId: raise the epoch, which fences earlier producers, and answer with it. An
        open transaction is aborted first; the client then retries.
        """
        record, expected = self.record, request.expected
        if self.is_busy:
            self._refuse(request.request, ErrorCode.CONCURRENT_TRANSACTIONS)
        elif record is None:
            self._rotate(request, now_ms, new_producer_id, NO_EPOCH)
        elif expected is not None and not _is_of(expected, record):
            self._refuse(request.request, ErrorCode.PRODUCER_FENCED)
        elif record.state is _State.ONGOING:
            self._fence(record, now_ms, new_producer_id, request.request)
        elif record.is_exhausted and (expected is None or expected.epoch == record.producer_epoch):
            last_epoch = NO_EPOCH if expected is None else record.producer_epoch
            self._rotate(request, now_ms, new_producer_id, last_epoch)
        else:
            self._raise_epoch(record, request, now_ms)
        return self._drain()

    def _rotate(
        self, request: InitRequest, now_ms: int, producer_id: ProducerId | None, last_epoch: int
    ) -> None:
        if producer_id is None:
            # The state changed after the caller had read `needs_producer_id`.
            self._refuse(request.request, ErrorCode.CONCURRENT_TRANSACTIONS)
            return
        previous = producer_id if self.record is None else self.record.producer_id
        version = 0 if self.record is None else self.record.client_version
        record = TransactionRecord(
            producer_id,
            producer_epoch=0,
            timeout_ms=request.timeout_ms,
            state=_State.EMPTY,
            update_ms=now_ms,
            previous_producer_id=previous,
            client_version=version,
        )
        self._write(record, last_epoch, request.request, TransactionAnswer(ErrorCode.NONE, producer_id, 0))

    def _raise_epoch(self, record: TransactionRecord, request: InitRequest, now_ms: int) -> None:
        epoch, last_epoch = record.producer_epoch + 1, NO_EPOCH
        if request.expected is not None:
            if request.expected.epoch == record.producer_epoch:
                last_epoch = record.producer_epoch
            elif request.expected.epoch == self._last_epoch:
                # A retry of an InitProducerId that succeeded: a later InitProducerId without `expected` would
                # have cleared `_last_epoch`.
                epoch, last_epoch = record.producer_epoch, self._last_epoch
            else:
                self._refuse(request.request, ErrorCode.PRODUCER_FENCED)
                return
        answer = TransactionAnswer(ErrorCode.NONE, record.producer_id, epoch)
        after = changed(
            record,
            now_ms,
            state=_State.EMPTY,
            producer_epoch=epoch,
            timeout_ms=request.timeout_ms,
            partitions=frozenset(),
            start_ms=NO_TIMESTAMP,
        )
        self._write(after, last_epoch, request.request, answer)

    # --- partitions

    def add_partitions(self, request: AddRequest, now_ms: int) -> list[Instruction]:
        """Handle an AddPartitionsToTxn, or an AddOffsetsToTxn with the group's partition.

        When a transaction of generation 2 begins, the leader of each partition sends a request. Requests that
        arrive during the first write wait and share the second. Kafka refuses them, and leaders retry.
        """
        record = self.record
        if record is not None and self._may_wait(request, record):
            self._adds += (request,)
            return []
        # Check this before the claim: a producer may already use the id or epoch that the write in flight
        # assigns.
        if self.is_busy or record is None:
            self._refuse(request.request, ErrorCode.CONCURRENT_TRANSACTIONS)
            return self._drain()
        error = _refusal_of(request.claim, record)
        if error is not None:
            self._refuse(request.request, error)
        elif record.state is _State.ONGOING and request.partitions <= record.partitions:
            self._refuse(request.request, ErrorCode.NONE)
        else:
            self._add((request,), record, now_ms)
        return self._drain()

    def _may_wait(self, request: AddRequest, record: TransactionRecord) -> bool:
        written = None if self._pending is None else self._pending.record
        return (
            written is not None
            and written.state is _State.ONGOING
            and written.is_generation_2 == request.is_generation_2
            and _refusal_of(request.claim, record) is None
            and len(self._adds) < ADDS_WAITING_MAX
        )

    def _add(self, requests: tuple[AddRequest, ...], record: TransactionRecord, now_ms: int) -> None:
        """Write the partitions of requests with the same claim and generation, and answer these requests."""
        partitions = record.partitions
        answered: list[RequestId] = []
        for request in requests:
            more = partitions | request.partitions
            if len(more) > self._partitions_max:
                self._refuse(request.request, ErrorCode.INVALID_REQUEST)
            else:
                partitions = more
                answered.append(request.request)
        if not answered:
            return
        after = changed(
            record,
            now_ms,
            state=_State.ONGOING,
            partitions=partitions,
            start_ms=record.start_ms if record.state is _State.ONGOING else now_ms,
            client_version=GENERATION_2 if requests[0].is_generation_2 else 0,
        )
        self._write(after, self._last_epoch, tuple(answered), TransactionAnswer(ErrorCode.NONE))

    def verify_partitions(
        self, claim: ProducerClaim, partitions: AbstractSet[TopicPartition]
    ) -> ErrorCode | Mapping[TopicPartition, ErrorCode]:
        """Return NONE for each partition in the producer's transaction and TRANSACTION_ABORTABLE for each
        other partition, or one error for all.
        """
        record, pending = self.record, self._pending
        # While a write adds partitions, the partitions of earlier writes are in the transaction. Any other
        # write ends the transaction or changes its producer.
        is_adding = pending is not None and self._is_write_of(pending, _State.ONGOING)
        if record is None or (self.is_busy and not is_adding):
            return ErrorCode.CONCURRENT_TRANSACTIONS
        error = _refusal_of(claim, record)
        if error is not None:
            return error
        return {
            one: ErrorCode.NONE if one in record.partitions else ErrorCode.TRANSACTION_ABORTABLE
            for one in partitions
        }

    @staticmethod
    def _is_write_of(pending: _Pending, state: TransactionState) -> bool:
        return pending.record is not None and pending.record.state is state

    # --- end

    def end(
        self, request: EndRequest, now_ms: int, new_producer_id: ProducerId | None = None
    ) -> list[Instruction]:
        """Handle an EndTxn: decide the outcome, answer when it is durable, then send the markers."""
        record = self.record
        if record is None:
            self._refuse(request.request, ErrorCode.CONCURRENT_TRANSACTIONS)
        elif request.is_generation_2:
            self._end_raising(request, record, now_ms, new_producer_id)
        else:
            self._end_in_epoch(request, record, now_ms)
        return self._drain()

    def _end_in_epoch(self, request: EndRequest, record: TransactionRecord, now_ms: int) -> None:
        """EndTxn of generation 1. The next transaction has the same epoch, so a request with the outcome of
        the completed transaction counts as a retry.
        """
        error = _refusal_of(request.claim, record)
        if error is not None:
            self._refuse(request.request, error)
        elif self.is_busy:
            self._refuse(request.request, ErrorCode.CONCURRENT_TRANSACTIONS)
        elif record.state is _State.ONGOING:
            after = changed(record, now_ms, state=prepared(is_commit=request.is_commit), client_version=0)
            self._write(after, self._last_epoch, request.request, TransactionAnswer(ErrorCode.NONE))
        elif record.state.is_complete and record.state.is_commit == request.is_commit:
            self._refuse(request.request, ErrorCode.NONE)
        else:
            self._refuse(request.request, ErrorCode.INVALID_TXN_STATE)

    def _end_raising(
        self, request: EndRequest, record: TransactionRecord, now_ms: int, new_producer_id: ProducerId | None
    ) -> None:
        """EndTxn of generation 2. A retry has the epoch before the current one. If no transaction is open, a
        request with the current epoch can only abort: it ends a transaction without partitions.
        """
        claim = request.claim
        is_rotated = (
            claim == (record.previous_producer_id, EPOCH_MAX - 1)
            and record.producer_epoch == 0
            and record.producer_id != claim.producer_id
        )
        is_raised = claim == (record.producer_id, record.producer_epoch - 1)
        if self.is_busy:
            # Check this before the claim: a producer may already use the id or epoch that the completion
            # assigns.
            self._refuse(request.request, ErrorCode.CONCURRENT_TRANSACTIONS)
        elif record.state.is_complete and (is_raised or is_rotated):
            if record.state.is_commit == request.is_commit:
                answer = TransactionAnswer(ErrorCode.NONE, record.producer_id, record.producer_epoch)
                self._out.append(Answer(request.request, answer))
            else:
                self._refuse(request.request, ErrorCode.INVALID_TXN_STATE)
        elif (error := _refusal_of(claim, record)) is not None:
            self._refuse(request.request, error)
        elif request.is_commit and record.state is not _State.ONGOING:
            self._refuse(request.request, ErrorCode.INVALID_TXN_STATE)
        else:
            self._end_with(record, request, now_ms, new_producer_id)

    def _end_with(
        self, record: TransactionRecord, request: EndRequest, now_ms: int, new_producer_id: ProducerId | None
    ) -> None:
        after = raised(record, now_ms, new_producer_id, is_commit=request.is_commit)
        if after is None:
            self._refuse(request.request, ErrorCode.CONCURRENT_TRANSACTIONS)
            return
        done = completed(after, now_ms)
        answer = TransactionAnswer(ErrorCode.NONE, done.producer_id, done.producer_epoch)
        self._write(after, record.producer_epoch, request.request, answer)

    def _fence(
        self,
        record: TransactionRecord,
        now_ms: int,
        new_producer_id: ProducerId | None,
        request: RequestId | None = None,
    ) -> None:
        """Abort the open transaction with a raised epoch, for both generations."""
        after = raised(record, now_ms, new_producer_id, is_commit=False)
        if after is None:
            self._refuse(request, ErrorCode.CONCURRENT_TRANSACTIONS)
            return
        answer = TransactionAnswer(ErrorCode.CONCURRENT_TRANSACTIONS)
        self._write(after, record.producer_epoch, request, answer)

    # --- events of the coordinator itself

    def loaded(self) -> list[Instruction]:
        """Continue from the record of the log. An open transaction gets its full timeout again, because time
        without a coordinator does not count. The markers of a decided transaction are sent again.
        """
        record = self.record
        assert record is not None, "an id without a record was loaded"
        if record.state is _State.ONGOING:
            self._out.append(SetTimer(TimerKind.TIMEOUT, record.timeout_ms))
        elif record.state.is_prepared:
            self._out.append(SendMarkers(markers(record)))
        return self._drain()

    def markers_done(self, now_ms: int) -> list[Instruction]:
        """Write the completion, because every marker is durable or its topic is deleted. Repeated calls have
        no effect.
        """
        record = self.record
        if record is not None and record.state.is_prepared and self._pending is None:
            self._write(completed(record, now_ms), self._last_epoch)
        return self._drain()

    def timed_out(self, now_ms: int, new_producer_id: ProducerId | None = None) -> list[Instruction]:
        """Abort a transaction that was open for its timeout, and fence its producer."""
        record = self.record
        if record is None or record.state is not _State.ONGOING:
            return []
        if self._pending is not None or (record.is_exhausted and new_producer_id is None):
            self._out.append(SetTimer(TimerKind.TIMEOUT, RETRY_MS))
        else:
            self._fence(record, now_ms, new_producer_id)
        return self._drain()

    def expire(self, now_ms: int, expiration_ms: int) -> list[Instruction]:
        """Write a tombstone if the id was not used for `expiration_ms` and has no open transaction."""
        record = self.record
        if (
            record is not None
            and not self.is_busy
            and record.state is not _State.ONGOING
            and record.update_ms <= now_ms - expiration_ms
        ):
            self._write(None, self._last_epoch)
        return self._drain()

    def written(self, error: ErrorCode, now_ms: int) -> list[Instruction]:
        """Note that the write in flight is durable (NONE) or has failed; a failure leaves the state as it
        is.
        """
        if self._is_unloaded:
            return []
        pending, self._pending = self._pending, None
        assert pending is not None, "no write was in flight"
        if error is ErrorCode.NONE:
            self._apply(pending, now_ms)
        else:
            self._failed(pending, error)
        return self._drain()

    def _apply(self, pending: _Pending, now_ms: int) -> None:
        was = self.state
        for request in pending.requests:
            assert pending.answer is not None
            self._out.append(Answer(request, pending.answer))
        record = pending.record
        if record is None:
            self._out.append(Forget())
            return
        self.record, self._last_epoch = record, pending.last_epoch
        if record.state is _State.ONGOING and was is not _State.ONGOING:
            self._out.append(SetTimer(TimerKind.TIMEOUT, record.timeout_ms))
        if self._adds:
            adds, self._adds = self._adds, ()
            self._add(adds, record, now_ms)
        elif record.state.is_prepared and record.partitions:
            self._out.append(SendMarkers(markers(record)))
        elif record.state.is_prepared:
            self._write(completed(record, now_ms), self._last_epoch)

    def _failed(self, pending: _Pending, error: ErrorCode) -> None:
        # As in Kafka, because a client cannot make the record smaller.
        answered = ErrorCode.UNKNOWN_SERVER_ERROR if error is ErrorCode.MESSAGE_TOO_LARGE else error
        self._refuse_waiting(pending, answered)
        if self.record is None:
            self._out.append(Forget())
        elif self.record.state.is_prepared:
            self._out.append(SetTimer(TimerKind.RETRY, RETRY_MS))
        elif self.record.state is _State.ONGOING and not pending.requests:
            self._out.append(SetTimer(TimerKind.TIMEOUT, RETRY_MS))

    def unload(self, error: ErrorCode) -> list[Instruction]:
        """Answer the waiting requests. The only event that may follow is the end of the write in flight."""
        self._is_unloaded = True
        self._refuse_waiting(self._pending, error)
        return self._drain()

    # --- instructions

    def _write(
        self,
        record: TransactionRecord | None,
        last_epoch: int,
        request: RequestId | tuple[RequestId, ...] | None = None,
        answer: TransactionAnswer | None = None,
    ) -> None:
        assert self._pending is None, "an id has at most one write in flight"
        requests = request if isinstance(request, tuple) else () if request is None else (request,)
        self._pending = _Pending(record, last_epoch, requests, answer)
        self._out.append(Write(record))

    def _refuse(self, request: RequestId | None, error: ErrorCode) -> None:
        if request is not None:
            self._out.append(Answer(request, TransactionAnswer(error)))

    def _refuse_waiting(self, pending: _Pending | None, error: ErrorCode) -> None:
        adds, self._adds = self._adds, ()
        for request in (*(() if pending is None else pending.requests), *(one.request for one in adds)):
            self._refuse(request, error)

    def _drain(self) -> list[Instruction]:
        out, self._out = self._out, []
        return out


def _refusal_of(claim: ProducerClaim, record: TransactionRecord) -> ErrorCode | None:
    if claim.producer_id != record.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    return None if claim.epoch == record.producer_epoch else ErrorCode.PRODUCER_FENCED


def _is_of(expected: ProducerClaim, record: TransactionRecord) -> bool:
    """Return whether a continuing producer has the current producer id, or has the previous one and repeats
    the InitProducerId that replaced it. The caller compares the epoch.
    """
    is_repeated = expected.producer_id == record.previous_producer_id and expected.epoch >= EPOCH_MAX - 1
    return expected.producer_id == record.producer_id or is_repeated
