"""The log of one partition of `__consumer_offsets`: entries in, record batches out, and back again on load.

What lives here: batches, the outcome of writes as Kafka error codes, replay, and what the log and its writes under way hold. Which entries there are is
decided in `shard.py` and `removal.py`, their bytes in `record_codec.py`. A later entry of a key replaces the earlier one; `log_rewrite.py` writes the log anew
when it has become long, and `trim` drops what that replaced.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from ponor_kafka.errors import ErrorCode, KafkaWireError
from ponor_kafka.record_batch import BatchView
from ponor_kafka.record_builder import build_batch
from ponor_runtime.turns import turn
from s3stream.errors import S3StreamError, StreamClosedError, StreamFencedError, StreamNotFoundError

from ponor_broker.groups.ports import OFFSETS_TOPIC, AppendResult, OffsetsPartition
from ponor_broker.groups.record_codec import OffsetsRecordError, decode_entry, encode_entry
from ponor_broker.groups.records import Entry, GroupKey, OffsetKey

_RECORD_BYTES: Final = 40
"""A record's frame within a batch, at most, beside key and value."""


class OffsetsLogCorruptError(Exception):
    """A batch or record of the log breaks its format; the message names partition, offset and rule."""


@dataclass(slots=True)
class _Write:
    """A batch under way, and whom to tell."""

    entries: Sequence[Entry]
    then: Callable[[ErrorCode], None]
    outcome: ErrorCode | None = None
    barriers: list[asyncio.Future[None]] = field(default_factory=list)


ENTRIES_PER_TURN: Final = 200
"""Entries of a replay after which others get the loop."""
PART_BYTES_MAX: Final = 64 << 10
"""Bytes of a batch where a write may be cut: a write is encoded in one step."""


class OffsetsLog:
    """One open partition."""

    def __init__(
        self,
        partition: OffsetsPartition,
        *,
        now_ms: Callable[[], int],
        batch_bytes_max: int,
        in_flight_max: int,
        load_bytes_max: int,
    ) -> None:
        self._partition = partition
        self._now_ms = now_ms
        self._batch_bytes_max = batch_bytes_max
        self._in_flight_max = in_flight_max
        self._load_bytes_max = load_bytes_max
        self._in_flight: deque[_Write] = deque()
        self._is_closed = False
        self.size_bytes = 0
        """Batches between the log's start and its end, those under way included: what the next load reads."""
        self.failures = 0
        """Writes that were taken and did not become durable."""
        self.holds_unknown_kinds = False
        """Whether replay passed over records of other kinds of groups, which memory cannot write again."""

    @property
    def name(self) -> str:
        """For messages."""
        return f"{OFFSETS_TOPIC}-{self._partition.index}"

    def close(self) -> None:
        """Refuse further entries with NOT_COORDINATOR. Writes under way end as usual.

        When a move is cancelled, the same partition is opened again with another `OffsetsLog`, which does not
        read what this one would append later.
        """
        self._is_closed = True

    def append(self, entries: Sequence[Entry], then: Callable[[ErrorCode], None]) -> None:
        """Write entries as one batch: all of them become durable, or none.

        `then` is called once, never within this call: with NONE when the entries are durable, and that strictly in the order of the log;
        with MESSAGE_TOO_LARGE, or with a retriable code of the group APIs, when they were not taken.
        """
        assert entries
        error = self.try_append(entries, then)
        if error is not ErrorCode.NONE:
            asyncio.get_running_loop().call_soon(then, error)

    def try_append(self, entries: Sequence[Entry], then: Callable[[ErrorCode], None]) -> ErrorCode:
        """The same, but a refusal is returned at once and `then` is not called for it."""
        now_ms = self._now_ms()
        batch = build_batch([(now_ms, *encode_entry(entry)) for entry in entries])
        if len(batch) > self._batch_bytes_max:
            return ErrorCode.MESSAGE_TOO_LARGE
        if len(self._in_flight) >= self._in_flight_max:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return self._submit(batch, _Write(entries, then))

    def in_parts(self, entries: Iterable[Entry]) -> Iterator[list[Entry]]:
        """The entries in order, cut so that each part fits into one batch: for writes that need not be one step."""
        part: list[Entry] = []
        part_bytes = 0
        for entry in entries:
            key, value = encode_entry(entry)
            entry_bytes = _RECORD_BYTES + len(key) + len(value or b"")
            if part and part_bytes + entry_bytes > min(self._batch_bytes_max // 2, PART_BYTES_MAX):
                yield part
                part, part_bytes = [], 0
            part.append(entry)
            part_bytes += entry_bytes
        if part:
            yield part

    @property
    def end_offset(self) -> int:
        """The Kafka offset that the next entry gets."""
        return self._partition.log_end_offset

    def keys_in_flight(self) -> frozenset[OffsetKey | GroupKey]:
        """Keys of every entry that was taken and is not durable yet: memory does not know their newest value."""
        return frozenset(entry.key for write in self._in_flight for entry in write.entries)

    async def flushed(self) -> None:
        """Return when every write that is under way now has ended, well or not, and was told."""
        if self._in_flight:
            barrier: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._in_flight[-1].barriers.append(barrier)
            await barrier

    async def trim(self, before_offset: int, dropped_bytes: int) -> None:
        """Drop everything below an offset for good: so many bytes of batches.

        Raises:
            S3StreamError: not now; the log is as it was.
        """
        await self._partition.advance_log_start(before_offset)
        self.size_bytes -= dropped_bytes

    def _submit(self, batch: bytearray, write: _Write) -> ErrorCode:
        if self._is_closed:
            return ErrorCode.NOT_COORDINATOR
        try:
            appended = self._partition.append_batch(batch)
        except S3StreamError as error:
            return _code_of(error)
        self.size_bytes += len(batch)
        self._in_flight.append(write)
        appended.add_done_callback(partial(self._ended, write))
        return ErrorCode.NONE

    def _ended(self, write: _Write, appended: asyncio.Future[AppendResult]) -> None:
        error = StreamClosedError("cancelled") if appended.cancelled() else appended.exception()
        write.outcome = ErrorCode.NONE if error is None else _code_of(error)
        self.failures += error is not None
        # Futures that end together may be seen in any order; memory has to follow the order of the log.
        while self._in_flight and (outcome := self._in_flight[0].outcome) is not None:
            ended = self._in_flight.popleft()
            ended.then(outcome)
            for barrier in ended.barriers:
                if not barrier.done():
                    barrier.set_result(None)

    async def replay(self, pause: Callable[[], Awaitable[None]]) -> AsyncIterator[Entry]:
        """Every entry from the start of the log to its end, in order, tombstones included.

        The end is what was appended before, durable or not: a partition whose move was called off may still have writes under way that another `OffsetsLog` took, and
        whose callers are going to be told that they are kept. Between two looks for them `pause` is awaited.

        Raises:
            S3StreamError: unreadable now; replay again later.
            OffsetsLogCorruptError: damaged.
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

    def _decode(self, batch: memoryview, offset: int) -> Iterator[Entry | None]:
        """The entries of a batch; None for records of other kinds of groups."""
        try:
            view = BatchView(batch)
            view.check_crc()
            if view.next_offset <= offset:
                raise KafkaWireError(f"the batch ends at {view.next_offset}, before what was asked for")
            if view.is_control:
                return
            for record in view.records(self._batch_bytes_max):
                entry = decode_entry(record.key, record.value)
                self.holds_unknown_kinds |= entry is None
                yield entry
        except (KafkaWireError, OffsetsRecordError) as error:
            raise OffsetsLogCorruptError(f"{self.name} from offset {offset} on: {error}") from error


def _code_of(error: BaseException) -> ErrorCode:
    """All retriable: after NOT_COORDINATOR clients look the coordinator up again, after NOT_AVAILABLE they also wait."""
    if isinstance(error, StreamFencedError | StreamClosedError | StreamNotFoundError):
        return ErrorCode.NOT_COORDINATOR
    return ErrorCode.COORDINATOR_NOT_AVAILABLE
