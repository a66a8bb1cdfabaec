"""The log of one partition of an internal topic: appends entries as record batches, and replays them on load.

Also maps errors of writes to Kafka's error codes, and tracks writes in flight. A later entry of a key
replaces the earlier one; `trim` drops the part of the log that a rewrite has replaced.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Hashable,
    Iterable,
    Iterator,
    Sequence,
)
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Generic, Protocol, TypeVar

from ponor_kafka.control_records import ControlType, EndMarker, build_end_marker, read_end_marker
from ponor_kafka.errors import ErrorCode, KafkaWireError
from ponor_kafka.record_batch import NO_PRODUCER_ID, BatchView
from ponor_kafka.record_builder import NO_EPOCH, NewRecord, build_batch
from ponor_runtime.clock import Clock
from ponor_runtime.turns import Steps, TurnBudget, turn
from s3stream.errors import S3StreamError, StreamClosedError, StreamFencedError, StreamNotFoundError

from ponor_broker.coordination.ports import InternalPartition
from ponor_broker.coordination.record_format import E, EntryCodec, LogEntry, RecordFormatError
from ponor_broker.coordination.transactional_append import (
    BatchRefusedError,
    TransactionalProducer,
    Verification,
)

_DONE: Final = object()
_RECORD_BYTES: Final = 40
"""Upper bound of a record's framing within a batch, without key and value."""


class RecordLogCorruptError(Exception):
    """A batch or record violates its format; the message names partition, offset and rule."""


@dataclass(slots=True)
class _Write(Generic[E]):
    """A batch in flight, and its callback."""

    entries: Sequence[E]
    then: Callable[[ErrorCode], None]
    producer_id: int = NO_PRODUCER_ID
    """The producer of a transactional batch or of a marker. A marker has no entries."""
    commits: bool = False
    apply: Callable[[], Steps[None]] | None = None
    """Applies the durable write, perhaps in several turns of the event loop, before the call of `then`."""
    outcome: ErrorCode | None = None
    barriers: list[asyncio.Future[None]] = field(default_factory=list)


ENTRIES_PER_TURN: Final = 200
BYTES_PER_TURN: Final = 64 << 10
"""A replay yields to other tasks after this many entries or bytes. Entries differ in size: one entry may
contain a transaction with thousands of partitions."""
COMPLETED_PER_TURN_MAX: Final = 1_000
COMPLETED_TURN_NS_MAX: Final = 4_000_000
"""A turn of the event loop completes no further durable write after one of these bounds: the end of a
transaction takes 50 µs, and a step of a marker with many offsets 3 ms."""
PART_BYTES_MAX: Final = 64 << 10
"""A write that need not be atomic is split into batches of this size, because a batch is encoded in one
event-loop turn."""
PLACE_BYTES: Final = 32 << 10
"""While transactions are open, the log can be trimmed at one offset per this many bytes."""
REWRITTEN: Final = ("rewritten", None)
"""Header of a rewritten record in a log with transactions. The record's value is older than every offset that
is pending when the record is replayed."""
_REWRITTEN_BYTES: Final = 8 + len(REWRITTEN[0])
"""Upper bound of the header in a record."""
_MARKER_BYTES: Final = len(build_end_marker(0, 0, EndMarker(ControlType.COMMIT, 0), 0))
_E_contra = TypeVar("_E_contra", bound=LogEntry, contravariant=True)


def completion_budget(clock: Clock) -> TurnBudget:
    """Return the budget of all logs of a coordinator."""
    return TurnBudget(clock, count_max=COMPLETED_PER_TURN_MAX, duration_ns_max=COMPLETED_TURN_NS_MAX)


class TransactionReplay(Protocol[_E_contra]):
    """Receiver of transactional entries and markers during a replay, in the order of the log."""

    def add(self, producer_id: int, entry: _E_contra) -> None:
        """Restore an entry of a transaction."""
        ...

    def outdate(self, entry: _E_contra) -> Iterable[None]:
        """Note an entry that belongs to no transaction and to no rewrite; in steps, as `end`."""
        ...

    def end(self, producer_id: int, *, commits: bool) -> Iterable[None]:
        """Apply a marker step by step, while the caller iterates over the result; yield once per entry."""
        ...


class RecordLog(Generic[E]):
    """The log of one open partition."""

    def __init__(
        self,
        topic: str,
        partition: InternalPartition,
        codec: EntryCodec[E],
        *,
        now_ms: Callable[[], int],
        batch_bytes_max: int,
        in_flight_max: int,
        load_bytes_max: int,
        completions: TurnBudget,
    ) -> None:
        """Open the log of a partition. `completions` is shared by all logs of a coordinator: many writes of
        many partitions may become durable at a time.
        """
        self.name = f"{topic}-{partition.index}"
        """Topic and partition, for messages."""
        self.partition_index = partition.index
        self._partition = partition
        self._codec = codec
        self._now_ms = now_ms
        self._batch_bytes_max = batch_bytes_max
        self._in_flight_max = in_flight_max
        self._load_bytes_max = load_bytes_max
        self._in_flight: deque[_Write[E]] = deque()
        self._on_marker: Callable[[int, bool], Steps[None]] | None = None
        self._turn = completions
        self._applying: Steps[None] | None = None
        self._continues = False
        """Whether further writes complete in a later turn."""
        self._commits_in_flight: Counter[int] = Counter()
        self._counted_bytes = 0
        self._places: list[tuple[int, int]] = []
        """Base offsets of some batches, each with the value of `_counted_bytes` before the batch."""
        self.is_closed = False
        """Whether entries are refused because another broker leads the partition, or this broker stops."""
        self.size_bytes = 0
        """Bytes of batches between the log's start and its end, including those in flight: what the
        next load reads."""
        self.failures = 0
        """Writes that were accepted and did not become durable."""
        self.holds_unknown_kinds = False
        """Whether replay skipped records of other kinds, which a rewrite would lose."""

    def close(self) -> None:
        """Refuse further entries with NOT_COORDINATOR. Writes in flight complete as usual.

        After a cancelled move, another `RecordLog` opens the same partition. It would not read entries that
        this one appends after that.
        """
        self.is_closed = True
        self._partition.transactions.accept_markers(None)

    def append(
        self,
        entries: Sequence[E],
        then: Callable[[ErrorCode], None],
        producer: TransactionalProducer | None = None,
        *,
        apply: Callable[[], Steps[None]] | None = None,
    ) -> None:
        """Write entries as one batch: all become durable, or none. With `producer`, the batch belongs to the
        producer's transaction.

        When the entries are durable, the steps of `apply` run first, in one or more turns of the event loop.
        Later writes wait for the last step. `then` is called once, never within this call: with NONE in log
        order when the entries are durable and applied; if they were refused, with MESSAGE_TOO_LARGE, the
        error of the producer or its transaction, or a retriable code of the coordinator APIs.
        """
        assert entries
        error = self.try_append(entries, then, producer, apply=apply)
        if error is not ErrorCode.NONE:
            asyncio.get_running_loop().call_soon(then, error)

    def try_append(
        self,
        entries: Sequence[E],
        then: Callable[[ErrorCode], None],
        producer: TransactionalProducer | None = None,
        *,
        apply: Callable[[], Steps[None]] | None = None,
        is_rewrite: bool = False,
    ) -> ErrorCode:
        """As `append`, but return a refusal immediately, without a call of `then`."""
        now_ms = self._now_ms()
        headers = (REWRITTEN,) if is_rewrite and self._on_marker is not None else ()
        batch = build_batch(
            [NewRecord(now_ms, *self._codec.encode(entry), headers) for entry in entries],
            producer_id=NO_PRODUCER_ID if producer is None else producer.producer_id,
            producer_epoch=NO_EPOCH if producer is None else producer.producer_epoch,
            transactional=producer is not None,
        )
        # The header must not make a record too large to be rewritten.
        if len(batch) - len(headers) * len(entries) * _REWRITTEN_BYTES > self._batch_bytes_max:
            return ErrorCode.MESSAGE_TOO_LARGE
        if len(self._in_flight) >= self._in_flight_max:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return self._submit(batch, _Write(entries, then, apply=apply), producer)

    def size_of(self, entry: E) -> int:
        """Return the bytes of an entry's key and value."""
        key, value = self._codec.encode(entry)
        return len(key) + len(value or b"")

    def in_parts(self, entries: Iterable[E]) -> Iterator[list[E]]:
        """Yield the entries in order, split so that each part fits into one batch, for writes that
        need not be atomic.
        """
        part: list[E] = []
        part_bytes = 0
        for entry in entries:
            entry_bytes = _RECORD_BYTES + self.size_of(entry)
            if part and part_bytes + entry_bytes > min(self._batch_bytes_max // 2, PART_BYTES_MAX):
                yield part
                part, part_bytes = [], 0
            part.append(entry)
            part_bytes += entry_bytes
        if part:
            yield part

    @property
    def end_offset(self) -> int:
        """Kafka offset of the next entry."""
        return self._partition.log_end_offset

    def keys_in_flight(self) -> frozenset[Hashable]:
        """Return the keys whose newest value is in flight and not in memory yet. A key of a transactional
        write in flight is included only if the marker that commits it is in flight, too.
        """
        keys: set[Hashable] = set()
        pending: dict[int, list[Hashable]] = {}
        for write in self._in_flight:
            found = [entry.key for entry in write.entries]
            if write.producer_id == NO_PRODUCER_ID:
                keys.update(found)
            elif found:
                pending.setdefault(write.producer_id, []).extend(found)
            else:
                ended = pending.pop(write.producer_id, [])
                keys.update(ended if write.commits else ())
        return frozenset(keys)

    def is_committing(self, producer_ids: Collection[int]) -> bool:
        """Return whether a marker that commits a transaction of one of these producers is in flight."""
        few, many = sorted((producer_ids, self._commits_in_flight.keys()), key=len)
        return any(one in many for one in few)

    # --- transactions

    def begin_verification(
        self, producer_id: int, producer_epoch: int, *, generation: int
    ) -> Verification | None:
        """As `InternalTransactions.begin_verification`."""
        return self._partition.transactions.begin_verification(
            producer_id, producer_epoch, generation=generation
        )

    def accept_markers(self, then: Callable[[int, bool], Steps[None]]) -> None:
        """Accept markers from now on. When a marker is durable, `then` is called, in the order of the log,
        with the producer id and whether the marker commits. Later writes complete after its last step.
        """
        self._on_marker = then
        self._partition.transactions.accept_markers(self._marker_appended)

    def _marker_appended(self, producer_id: int, commits: bool, appended: asyncio.Future[None]) -> None:
        on_marker = self._on_marker
        assert on_marker is not None

        def ended(_: ErrorCode) -> None:
            if commits:
                self._commits_in_flight[producer_id] -= 1
                if not self._commits_in_flight[producer_id]:
                    del self._commits_in_flight[producer_id]

        if commits:
            self._commits_in_flight[producer_id] += 1
        self._count(self._partition.log_end_offset - 1, _MARKER_BYTES)
        apply = partial(on_marker, producer_id, commits)
        self._note_write(_Write((), ended, producer_id, commits, apply), appended)

    def droppable(self) -> tuple[int, int]:
        """Return the offset below which a rewrite can trim the log, and the bytes of batches below it. No
        transaction that is open, or whose marker is in flight, has a batch below the offset.
        """
        first_unstable = self._partition.transactions.first_unstable_offset
        if first_unstable >= self.end_offset:
            return self.end_offset, self.size_bytes
        place = bisect_right(self._places, first_unstable, key=lambda one: one[0]) - 1
        if place < 0:
            return self._partition.log_start_offset, 0
        offset, counted = self._places[place]
        return offset, max(0, counted - (self._counted_bytes - self.size_bytes))

    def _count(self, base_offset: int, size_bytes: int) -> None:
        """Count a batch at the end of the log."""
        if not self._places or self._counted_bytes - self._places[-1][1] >= PLACE_BYTES:
            self._places.append((base_offset, self._counted_bytes))
        self._counted_bytes += size_bytes
        self.size_bytes += size_bytes

    async def flushed(self) -> None:
        """Return when the callbacks of all writes that are in flight now were called."""
        if self._in_flight:
            barrier: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._in_flight[-1].barriers.append(barrier)
            await barrier

    async def trim(self, before_offset: int, dropped_bytes: int) -> None:
        """Drop everything below an offset, `dropped_bytes` bytes of batches.

        Raises:
            S3StreamError: retry later; the log is unchanged.
        """
        await self._partition.advance_log_start(before_offset)
        self.size_bytes -= dropped_bytes
        del self._places[: bisect_right(self._places, before_offset - 1, key=lambda one: one[0])]

    def _submit(
        self, batch: bytearray, write: _Write[E], producer: TransactionalProducer | None
    ) -> ErrorCode:
        if self.is_closed:
            return ErrorCode.NOT_COORDINATOR
        base_offset = self.end_offset
        try:
            if producer is None:
                appended = self._partition.append_batch(batch)
            else:
                appended = self._partition.append_batch(batch, producer.proof)
                write.producer_id = producer.producer_id
        except BatchRefusedError as refused:
            return refused.code
        except S3StreamError as error:
            return _code_of(error)
        self._count(base_offset, len(batch))
        self._note_write(write, appended)
        return ErrorCode.NONE

    def _note_write(self, write: _Write[E], appended: asyncio.Future[None]) -> None:
        self._in_flight.append(write)
        appended.add_done_callback(partial(self._ended, write))

    def _ended(self, write: _Write[E], appended: asyncio.Future[None]) -> None:
        error = StreamClosedError("cancelled") if appended.cancelled() else appended.exception()
        write.outcome = ErrorCode.NONE if error is None else _code_of(error)
        self.failures += error is not None
        if not self._continues:
            if self._turn.is_free:
                self._complete()
            else:
                self._complete_later()

    def _complete_later(self) -> None:
        self._continues = True
        self._turn.call_later(self._complete)

    def _complete(self) -> None:
        """Complete the oldest writes whose outcomes are known, in this and in later turns."""
        self._continues = False
        # Futures that complete together may call back in any order; memory must follow log order.
        while self._in_flight and (outcome := self._in_flight[0].outcome) is not None:
            if self._turn.is_spent or not self._apply_step(self._in_flight[0]):
                self._complete_later()
                return
            ended = self._in_flight.popleft()
            ended.then(outcome)
            for barrier in ended.barriers:
                if not barrier.done():
                    barrier.set_result(None)

    def _apply_step(self, write: _Write[E]) -> bool:
        """Run a step of `apply` of a write whose outcome is known; return whether none is left."""
        self._turn.spend()
        if write.apply is not None and write.outcome is ErrorCode.NONE:
            self._applying, write.apply = write.apply(), None
        if self._applying is not None and next(self._applying, _DONE) is not _DONE:
            return False
        self._applying = None
        return True

    async def replay(
        self, pause: Callable[[], Awaitable[None]], transactions: TransactionReplay[E] | None = None
    ) -> AsyncIterator[E]:
        """Yield every entry from the start of the log to its end, in order, including tombstones. Pass
        entries of transactions, and markers, to `transactions` instead, if it is given.

        The end includes appends that are not durable yet: after a cancelled move, the previous
        `RecordLog` of this partition may have writes in flight, and their callers will be answered. While
        such writes are not durable, `pause` is awaited before each new read.

        Raises:
            S3StreamError: unreadable now; replay again later.
            RecordLogCorruptError: damaged.
        """
        offset, end = self._partition.log_start_offset, self._partition.log_end_offset
        self.size_bytes = self._counted_bytes = 0
        self._places.clear()
        replayed = in_turn_bytes = 0
        while True:
            batches = await self._partition.read_batches(offset, self._load_bytes_max)
            if not batches:
                if offset >= min(end, self._partition.log_end_offset):
                    return
                await pause()
            for batch in batches:
                # The bound may have been larger when this batch was written; a rewrite must not refuse it.
                self._batch_bytes_max = max(self._batch_bytes_max, len(batch))
                for entry in self._decode(batch, offset, transactions):
                    replayed += 1
                    if entry is not None:
                        yield entry
                    if replayed % ENTRIES_PER_TURN == 0:
                        await turn()
                self._count(BatchView(batch).base_offset, len(batch))
                offset = BatchView(batch).next_offset
                in_turn_bytes += len(batch)
                if in_turn_bytes >= BYTES_PER_TURN:
                    in_turn_bytes = 0
                    await turn()

    def _decode(
        self, batch: memoryview, offset: int, transactions: TransactionReplay[E] | None
    ) -> Iterator[E | None]:
        """Yield the entries of a batch; None for each record of another kind or of a transaction."""
        try:
            view = BatchView(batch)
            view.check_crc()
            if view.next_offset <= offset:
                raise KafkaWireError(f"the batch ends at {view.next_offset}, before the requested offset")
            if view.is_control:
                marker = read_end_marker(view)
                if marker is not None and transactions is not None:
                    yield from transactions.end(view.producer_id, commits=marker.kind is ControlType.COMMIT)
                return
            for record in view.records(self._batch_bytes_max):
                entry = self._codec.decode(record.key, record.value)
                self.holds_unknown_kinds |= entry is None
                if entry is not None and transactions is not None:
                    if view.is_transactional:
                        transactions.add(view.producer_id, entry)
                        entry = None
                    elif REWRITTEN not in record.headers:
                        yield from transactions.outdate(entry)
                yield entry
        except (KafkaWireError, RecordFormatError) as error:
            raise RecordLogCorruptError(f"{self.name} from offset {offset} on: {error}") from error


def _code_of(error: BaseException) -> ErrorCode:
    """Map an error to a retriable code. After NOT_COORDINATOR, clients look up the coordinator again; after
    COORDINATOR_NOT_AVAILABLE, they first wait for their back-off.
    """
    if isinstance(error, StreamFencedError | StreamClosedError | StreamNotFoundError):
        return ErrorCode.NOT_COORDINATOR
    return ErrorCode.COORDINATOR_NOT_AVAILABLE
