"""The transactional ids of one partition of `__transaction_state`.

Executes the instructions of their state machines: records, answers, timers and markers. Loads and unloads the
partition. An answer or a marker is sent only after its record is durable.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Final, TypeAlias

from ponor_kafka.errors import ErrorCode
from ponor_runtime.clock import Clock
from ponor_runtime.identity import ProducerId
from ponor_runtime.tasks import BackgroundTasks
from ponor_runtime.turns import Steps, turn

from ponor_broker.coordination.log_rewrite import LogRewrite
from ponor_broker.coordination.ports import InternalPartition
from ponor_broker.coordination.record_log import RecordLog
from ponor_broker.coordination.timers import TimerQueue
from ponor_broker.transactions.events import AddRequest, EndRequest, InitRequest, RequestId
from ponor_broker.transactions.id_table import ID_BYTES, PARTITION_BYTES, HeldId, IdTable, TransactionBudget
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
from ponor_broker.transactions.marker_sender import Refusals
from ponor_broker.transactions.metrics import TransactionMetrics
from ponor_broker.transactions.ports import MarkerPort, TakeProducerId
from ponor_broker.transactions.records import TopicPartition, TransactionEntry, TransactionRecord
from ponor_broker.transactions.settings import TransactionSettings

_LOG = logging.getLogger(__name__)
_IDS_PER_STEP: Final = 200
"""Ids that one event-loop turn searches, or loads or unloads if they have no partitions: a few
milliseconds."""
_PARTITIONS_PER_STEP: Final = 8 * _IDS_PER_STEP
"""Partitions of transactions that one event-loop turn loads or unloads; one id may have more."""
_UNDER_WAY_S: Final = 0.02
"""Interval of the check whether writes of an earlier shard are durable."""
Verified: TypeAlias = ErrorCode | Mapping[TopicPartition, ErrorCode]
"""One result per partition, or one error for all."""
_MAPPING_UNKNOWN: Final = TransactionAnswer(ErrorCode.INVALID_PRODUCER_ID_MAPPING)


class TransactionShard:
    """The ids of one partition: created when the partition opens, usable between `load` and `close`."""

    def __init__(
        self,
        partition: InternalPartition,
        log: RecordLog[TransactionEntry],
        *,
        settings: TransactionSettings,
        clock: Clock,
        timers: TimerQueue,
        tasks: BackgroundTasks,
        budget: TransactionBudget,
        markers: MarkerPort,
        take_producer_id: TakeProducerId,
        rewrite_due: Callable[[], None],
        metrics: TransactionMetrics,
    ) -> None:
        self._partition = partition
        self._log = log
        self._settings = settings
        self._clock = clock
        self._timers = timers
        self._tasks = tasks
        self._markers = markers
        self._take_producer_id = take_producer_id
        self._rewrite_due = rewrite_due
        self._metrics = metrics
        self._table = IdTable(settings, budget)
        self._last_request = 0
        self._answers: dict[RequestId, asyncio.Future[TransactionAnswer]] = {}
        self.rewrite: LogRewrite[TransactionEntry] = LogRewrite(
            log,
            self._current,
            log_bytes_min=settings.transaction_rewrite_log_bytes_min,
            ratio=settings.transaction_rewrite_ratio,
        )
        self.is_loaded = False

    def __len__(self) -> int:
        return len(self._table)

    @property
    def log_size_bytes(self) -> int:
        """Bytes that the next load reads."""
        return self._log.size_bytes

    def get(self, transactional_id: str) -> TransactionRecord | None:
        """Return the durable state of an id; None if there is no such id."""
        held = self._table.get(transactional_id)
        return None if held is None else held.transaction.record

    def ids(self) -> Iterator[HeldId]:
        """Iterate over all ids, which the caller must not change."""
        return iter(self._table)

    # --- load and unload

    async def load(self) -> None:
        """Restore from the log, and continue open and decided transactions.

        Raises:
            S3StreamError: the log cannot be read now.
            RecordLogCorruptError: the log is damaged.
        """
        assert not self.is_loaded
        records: dict[str, TransactionRecord] = {}
        async for entry in self._log.replay(lambda: self._clock.sleep(_UNDER_WAY_S)):
            if entry.value is None:
                records.pop(entry.key, None)
            else:
                records[entry.key] = entry.value
        state_bytes = 0
        share = 0.0
        for transactional_id, record in records.items():
            held = self._table.add(transactional_id, record)
            state_bytes += self._log.size_of(TransactionEntry(transactional_id, record))
            self._run(held, held.transaction.loaded())
            share += _share_of_step(record)
            if share >= 1:
                share = 0.0
                await turn()
        self.rewrite.loaded(state_bytes)
        self.is_loaded = True
        self._check_log()

    def close(self, error: ErrorCode) -> Steps[None]:
        """Answer all waiting requests and free memory, because another broker leads the partition, or the
        broker stops. No request may follow.
        """
        # Timers and markers of this shard may still call back between the steps.
        self._log.close()
        self.rewrite.stop()
        self._markers.cancel(self._partition.index)
        share = 0.0
        for held in self._table:
            share += _share_of_step(held.transaction.record)
            self._run(held, held.transaction.unload(error))
            self._drop(held)
            if share >= 1:
                share = 0.0
                yield
        assert not self._answers, "a request was left without an answer"

    def _current(self) -> Iterator[TransactionEntry]:
        for held in self._table:
            if held in self._table and held.transaction.record is not None:
                yield TransactionEntry(held.transactional_id, held.transaction.record)

    def _check_log(self) -> None:
        if self.rewrite.is_due:
            self._rewrite_due()

    # --- requests

    async def init_producer_id(self, transactional_id: str, request: InitRequest) -> TransactionAnswer:
        """InitProducerId; creates the id if necessary."""
        held = self._table.get(transactional_id)
        new_producer_id = None
        if held is None or held.transaction.needs_producer_id:
            new_producer_id = await self._take_producer_id()
            if new_producer_id is None:
                return TransactionAnswer(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            if self._log.is_closed:
                return TransactionAnswer(ErrorCode.NOT_COORDINATOR)
            held = self._table.get(transactional_id)  # another request may have created it
        if held is None:
            if not self._table.budget.admits(ID_BYTES + len(transactional_id)):
                return TransactionAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            held = self._table.add(transactional_id)
        transaction = held.transaction
        return await self._ask(
            held,
            lambda number: transaction.init_producer_id(
                replace(request, request=number), self._clock.wall_ms(), new_producer_id
            ),
        )

    async def add_partitions(self, transactional_id: str, request: AddRequest) -> TransactionAnswer:
        """AddPartitionsToTxn and AddOffsetsToTxn."""
        held = self._table.get(transactional_id)
        if held is None:
            return _MAPPING_UNKNOWN
        transaction, record = held.transaction, held.transaction.record
        added = len(request.partitions if record is None else request.partitions - record.partitions)
        if added and not self._table.budget.admits(added * PARTITION_BYTES):
            return TransactionAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return await self._ask(
            held,
            lambda number: transaction.add_partitions(
                replace(request, request=number), self._clock.wall_ms()
            ),
        )

    def verify_partitions(self, transactional_id: str, request: AddRequest) -> Verified:
        """AddPartitionsToTxn that only verifies; see `Transaction.verify_partitions`."""
        held = self._table.get(transactional_id)
        if held is None:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        return held.transaction.verify_partitions(request.claim, request.partitions)

    async def end(self, transactional_id: str, request: EndRequest) -> TransactionAnswer:
        """EndTxn."""
        held = self._table.get(transactional_id)
        new_producer_id = None
        if held is not None and request.is_generation_2 and held.transaction.needs_producer_id:
            new_producer_id = await self._take_producer_id()
            if new_producer_id is None:
                return TransactionAnswer(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            if self._log.is_closed:
                return TransactionAnswer(ErrorCode.NOT_COORDINATOR)
            held = self._table.get(transactional_id)
        if held is None:
            return _MAPPING_UNKNOWN
        transaction = held.transaction
        return await self._ask(
            held,
            lambda number: transaction.end(
                replace(request, request=number), self._clock.wall_ms(), new_producer_id
            ),
        )

    async def expire(self) -> int:
        """Write tombstones for ids that are no longer used; return their number."""
        expired = 0
        for number, held in enumerate(self._table, 1):
            if held in self._table:
                instructions = held.transaction.expire(
                    self._clock.wall_ms(), self._settings.transactional_id_expiration_ms
                )
                expired += len(instructions)
                self._run(held, instructions)
            if number % _IDS_PER_STEP == 0:
                await self._log.flushed()
                await turn()
        return expired

    async def _ask(self, held: HeldId, event: Callable[[RequestId], list[Instruction]]) -> TransactionAnswer:
        """Hand a request to a state machine and return its answer.

        Returns:
            The answer, or COORDINATOR_NOT_AVAILABLE after the timeout: clients look up the coordinator and
                retry. The change may still become durable later.
        """
        self._last_request += 1
        request = RequestId(self._last_request)
        answer: asyncio.Future[TransactionAnswer] = asyncio.get_running_loop().create_future()
        self._answers[request] = answer
        self._run(held, event(request))
        self._check_log()
        if answer.done():
            return answer.result()

        def give_up() -> None:
            if not answer.done():
                answer.set_result(TransactionAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE))

        key = (self, request)
        self._timers.set(key, self._settings.transaction_write_timeout_ms, give_up)
        try:
            return await answer
        finally:
            self._timers.cancel(key)

    # --- instructions

    def _run(self, held: HeldId, instructions: list[Instruction]) -> None:
        """Execute instructions in order, then update the budget."""
        for instruction in instructions:
            match instruction:
                case Answer(request, body):
                    answer = self._answers.pop(request)
                    if not answer.done():  # otherwise the client has disconnected, or its wait timed out
                        answer.set_result(body)
                case Write(record):
                    entry = TransactionEntry(held.transactional_id, record)
                    self._log.append([entry], partial(self._written, held))
                case SetTimer(kind, delay_ms):
                    self._timers.set((self, held, kind), delay_ms, partial(self._timer_fired, held, kind))
                case SendMarkers(markers):
                    done = partial(self._markers_done, held)
                    self._markers.send(self._partition.index, self._partition.leader_epoch, markers, done)
                case Forget():
                    self._drop(held)
        if held in self._table:
            self._table.budget.recount(held)

    def _drop(self, held: HeldId) -> None:
        if held in self._table:
            self._table.remove(held)
        for kind in TimerKind:
            self._timers.cancel((self, held, kind))

    def _written(self, held: HeldId, error: ErrorCode) -> None:
        before, now_ms = held.transaction.record, self._clock.wall_ms()
        self._run(held, held.transaction.written(error, now_ms))
        self._metrics.ended(before, held.transaction.record, now_ms)

    def _markers_done(self, held: HeldId, refusals: Refusals) -> None:
        if ErrorCode.TRANSACTION_COORDINATOR_FENCED in refusals.values():
            # Another coordinator ended the transaction, so another broker leads this log. The log refuses the
            # completion that this broker writes next.
            _LOG.warning(
                "partitions refused markers of %s, whose coordinator epoch is outdated", self._log.name
            )
        self._run(held, held.transaction.markers_done(self._clock.wall_ms()))

    def _timer_fired(self, held: HeldId, kind: TimerKind) -> None:
        transaction = held.transaction
        if kind is TimerKind.RETRY:
            self._run(held, transaction.markers_done(self._clock.wall_ms()))
        elif transaction.needs_producer_id:
            self._tasks.spawn(self._abort_with_new_id(held), "abort of a transaction")
        else:
            self._time_out(held)

    async def _abort_with_new_id(self, held: HeldId) -> None:
        """Abort a transaction whose producer id has no epochs left."""
        before = _identity(held)
        producer_id = await self._take_producer_id()
        if held in self._table and _identity(held) == before:
            self._time_out(held, producer_id)

    def _time_out(self, held: HeldId, producer_id: ProducerId | None = None) -> None:
        instructions = held.transaction.timed_out(self._clock.wall_ms(), producer_id)
        self._metrics.timeouts.add(sum(isinstance(one, Write) for one in instructions))
        self._run(held, instructions)


def _share_of_step(record: TransactionRecord | None) -> float:
    """Return the fraction of a step that loading or unloading an id takes."""
    partitions = 0 if record is None else len(record.partitions)
    return 1 / _IDS_PER_STEP + partitions / _PARTITIONS_PER_STEP


def _identity(held: HeldId) -> tuple[int, int, int] | None:
    """Return fields that differ between any two transactions of an id."""
    record = held.transaction.record
    return None if record is None else (record.producer_id, record.producer_epoch, record.start_ms)
