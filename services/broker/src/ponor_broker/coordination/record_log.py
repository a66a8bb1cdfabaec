"""The log of one partition of an internal topic: appends entries as record batches, and replays them on load.

Also maps the outcomes of writes to Kafka's error codes, and tracks writes in flight. A later entry of a key
replaces the earlier one; `trim` drops the replaced part after a rewrite.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Generic

from ponor_kafka.errors import ErrorCode, KafkaWireError
from ponor_kafka.record_batch import BatchView
from ponor_kafka.record_builder import build_batch
from ponor_runtime.turns import turn
from s3stream.errors import S3StreamError, StreamClosedError, StreamFencedError, StreamNotFoundError

from ponor_broker.coordination.ports import InternalPartition
from ponor_broker.coordination.record_format import E, EntryCodec, RecordFormatError

_RECORD_BYTES: Final = 40
"""Upper bound of a record's framing within a batch, without key and value."""


class RecordLogCorruptError(Exception):
    """A batch or record violates its format; the message names partition, offset and rule."""


@dataclass(slots=True)
class _Write(Generic[E]):
    """A batch in flight, and its callback."""

    entries: Sequence[E]
    then: Callable[[ErrorCode], None]
    outcome: ErrorCode | None = None
    barriers: list[asyncio.Future[None]] = field(default_factory=list)


ENTRIES_PER_TURN: Final = 200
"""Entries that a replay processes per event-loop turn."""
PART_BYTES_MAX: Final = 64 << 10
"""Size of a batch at which a write may be split: each batch is encoded in one step."""


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
    ) -> None:
        self.name = f"{topic}-{partition.index}"
        """Topic and partition, for messages."""
        self._partition = partition
        self._codec = codec
        self._now_ms = now_ms
        self._batch_bytes_max = batch_bytes_max
        self._in_flight_max = in_flight_max
        self._load_bytes_max = load_bytes_max
        self._in_flight: deque[_Write[E]] = deque()
        self.is_closed = False
        """Whether entries are refused because another broker leads the partition, or this one stops."""
        self.size_bytes = 0
        """Bytes of batches between the log's start and its end, including those in flight: what the
        next load reads."""
        self.failures = 0
        """Writes that were accepted and did not become durable."""
        self.holds_unknown_kinds = False
        """Whether replay skipped records of other kinds, which a rewrite would lose."""

    def close(self) -> None:
        """Refuse further entries with NOT_COORDINATOR. Writes under way end as usual.

        When a move is cancelled, the same partition is opened again with another `RecordLog`, which does not
        read what this one would append later.
        """
        self.is_closed = True

    def append(self, entries: Sequence[E], then: Callable[[ErrorCode], None]) -> None:
        """Write entries as one batch: all of them become durable, or none.

        `then` is called once, never within this call: with NONE when the entries are durable,
        strictly in log order; with MESSAGE_TOO_LARGE, or a retriable code of the coordinator APIs, if
        they were refused.
        """
        assert entries
        error = self.try_append(entries, then)
        if error is not ErrorCode.NONE:
            asyncio.get_running_loop().call_soon(then, error)

    def try_append(self, entries: Sequence[E], then: Callable[[ErrorCode], None]) -> ErrorCode:
        """As `append`, but a refusal is returned immediately and `then` is not called for it."""
        now_ms = self._now_ms()
        batch = build_batch([(now_ms, *self._codec.encode(entry)) for entry in entries])
        if len(batch) > self._batch_bytes_max:
            return ErrorCode.MESSAGE_TOO_LARGE
        if len(self._in_flight) >= self._in_flight_max:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return self._submit(batch, _Write(entries, then))

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
        """Return the keys of all entries in flight: memory does not have their newest value."""
        return frozenset(entry.key for write in self._in_flight for entry in write.entries)

    async def flushed(self) -> None:
        """Return when every write that is in flight now has completed or failed, and its callback was
        called.
        """
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

    def _submit(self, batch: bytearray, write: _Write[E]) -> ErrorCode:
        if self.is_closed:
            return ErrorCode.NOT_COORDINATOR
        try:
            appended = self._partition.append_batch(batch)
        except S3StreamError as error:
            return _code_of(error)
        self.size_bytes += len(batch)
        self._in_flight.append(write)
        appended.add_done_callback(partial(self._ended, write))
        return ErrorCode.NONE

    def _ended(self, write: _Write[E], appended: asyncio.Future[None]) -> None:
        error = StreamClosedError("cancelled") if appended.cancelled() else appended.exception()
        write.outcome = ErrorCode.NONE if error is None else _code_of(error)
        self.failures += error is not None
        # Futures that complete together may call back in any order; memory must follow log order.
        while self._in_flight and (outcome := self._in_flight[0].outcome) is not None:
            ended = self._in_flight.popleft()
            ended.then(outcome)
            for barrier in ended.barriers:
                if not barrier.done():
                    barrier.set_result(None)

    async def replay(self, pause: Callable[[], Awaitable[None]]) -> AsyncIterator[E]:
        """Yield every entry from the start of the log to its end, in order, including tombstones.

        The end includes appends that are not durable yet: after a cancelled move another
        `RecordLog` may have writes in flight, and their callers will be answered. `pause` is
        awaited between two checks for them.

        Raises:
            S3StreamError: unreadable now; replay again later.
            RecordLogCorruptError: damaged.
        """
        offset, end = self._partition.log_start_offset, self._partition.log_end_offset
        self.size_bytes = 0
        replayed = 0
        while True:
            batches = await self._partition.read_batches(offset, self._load_bytes_max)
            if not batches:
                if offset >= min(end, self._partition.log_end_offset):
                    return
                await pause()
            for batch in batches:
                # The setting may have been larger when this was written. A rewrite has to write it again.
                self._batch_bytes_max = max(self._batch_bytes_max, len(batch))
                for entry in self._decode(batch, offset):
                    replayed += 1
                    if entry is not None:
                        yield entry
                    if replayed % ENTRIES_PER_TURN == 0:
                        await turn()
                self.size_bytes += len(batch)
                offset = BatchView(batch).next_offset

    def _decode(self, batch: memoryview, offset: int) -> Iterator[E | None]:
        """Yield the entries of a batch; None for records of other kinds."""
        try:
            view = BatchView(batch)
            view.check_crc()
            if view.next_offset <= offset:
                raise KafkaWireError(f"the batch ends at {view.next_offset}, before the requested offset")
            if view.is_control:
                return
            for record in view.records(self._batch_bytes_max):
                entry = self._codec.decode(record.key, record.value)
                self.holds_unknown_kinds |= entry is None
                yield entry
        except (KafkaWireError, RecordFormatError) as error:
            raise RecordLogCorruptError(f"{self.name} from offset {offset} on: {error}") from error


def _code_of(error: BaseException) -> ErrorCode:
    """Map an error to a retriable code: after NOT_COORDINATOR clients look up the coordinator,
    after COORDINATOR_NOT_AVAILABLE they also wait.
    """
    if isinstance(error, StreamFencedError | StreamClosedError | StreamNotFoundError):
        return ErrorCode.NOT_COORDINATOR
    return ErrorCode.COORDINATOR_NOT_AVAILABLE
