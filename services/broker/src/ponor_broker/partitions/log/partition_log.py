"""A partition's log: segments that are slices of streams, read and appended by Kafka offset.

Maps Kafka offsets to stream offsets, rolls segments, and writes the time index. No producers,
epochs or protocol.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from ponor_kafka.errors import ErrorCode
from ponor_partition.log_meta import LogMeta
from ponor_partition.segment import OPEN_END, ROW_BYTES, SLICED, TIME, Content, Segment, StreamName
from ponor_runtime.identity import StreamId
from s3stream.errors import OffsetOutOfRangeError, S3StreamError
from s3stream.records import StreamRecord

from ponor_broker.partitions.errors import PartitionError
from ponor_broker.partitions.log import time_index
from ponor_broker.partitions.log.meta_stream import MetaStream
from ponor_broker.partitions.log.stream_port import PartitionStream, fetch, observe
from ponor_broker.partitions.log.stream_trims import StreamTrims
from ponor_broker.partitions.log.time_index import TIME_ENTRY

OnDurable: TypeAlias = Callable[[BaseException | None], None]
TIME_MAX_MS: Final = (1 << 63) - 1
SEGMENTS_MAX: Final = 10_000
"""With this many segments, the active segment is closed only when it is large: each segment costs memory, and
time at every open.

The limit is lower if the rows of all segments would not fit into one record of the write-ahead log."""
LARGE_SEGMENT_BYTES: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class RollRules:
    """When the active segment is closed: Kafka's segment.bytes and segment.ms."""

    segment_bytes: int
    segment_ms: int


class PartitionLog:
    """The log of one partition: its open streams, and the log meta that lists their slices."""

    def __init__(
        self,
        meta: MetaStream,
        log_meta: LogMeta,
        streams: dict[StreamName, PartitionStream],
        rules: RollRules,
    ) -> None:
        self.log_meta = log_meta
        self._meta = meta
        self._segments_that_fit = meta.rows_bytes_max // ROW_BYTES
        self.streams = streams
        """Open streams by name."""
        self._rules = rules
        self._data = streams[log_meta.active.data_stream]
        self._shift = log_meta.active.kafka_offset(
            0
        )  # Kafka offset minus stream offset in the active segment
        self.active_bytes = 0
        """Bytes of the active segment."""
        self.active_max_timestamp = -1
        self.active_max_timestamp_offset = -1
        self._roll_due_ms = self._age_limit_ms()
        self.trims = StreamTrims(log_meta, streams, meta.stream)
        """How far the streams may be trimmed."""

    @property
    def end_offset(self) -> int:
        """Kafka offset of the next batch."""
        return self._data.next_offset + self._shift

    @property
    def confirmed_offset(self) -> int:
        """All records below this Kafka offset are durable and readable."""
        return self._data.confirmed_offset + self._shift

    def apply_rules(self, rules: RollRules) -> None:
        """Apply new rules for the roll of segments."""
        self._rules = rules
        self._roll_due_ms = self._age_limit_ms()

    def _age_limit_ms(self) -> int:
        """Return the time at which the active segment becomes too old to grow; the largest time for a segment
        of an older release, which has no creation time.
        """
        created_ms = self.log_meta.active.created_ms
        return created_ms + self._rules.segment_ms if created_ms > 0 else TIME_MAX_MS

    # Appends

    def append(
        self,
        batch: memoryview | bytes,
        base_offset: int,
        count: int,
        max_timestamp: int,
        min_timestamp: int,
        on_durable: OnDurable,
    ) -> None:
        """Append a batch whose `base_offset` is `end_offset`; `min_timestamp` and `on_durable` as
        in `s3stream.stream.Stream.append_nowait`.

        Raises:
            s3stream.errors.S3StreamError: the append was refused.
            PartitionError: MESSAGE_TOO_LARGE: the batch exceeds the log cache; a retry will fail too.
        """
        try:
            self._data.append_nowait(
                batch,
                count=count,
                max_timestamp=max_timestamp,
                min_timestamp=min_timestamp,
                on_durable=on_durable,
            )
        except ValueError as error:
            raise PartitionError(ErrorCode.MESSAGE_TOO_LARGE, str(error)) from error
        self.active_bytes += len(batch)  # `note_content` inlined
        if max_timestamp > self.active_max_timestamp:
            self.active_max_timestamp = max_timestamp
            self.active_max_timestamp_offset = base_offset

    def roll_if_due(self, batch_bytes: int, now_ms: int) -> None:
        """Start a new segment if the active one is too old, or too large with the next batch.

        The change is written to the same write-ahead log before the data, so no wait is needed.

        Raises:
            s3stream.errors.S3StreamError: the Meta stream refused the change; nothing was rolled.
        """
        if self.active_bytes + batch_bytes <= self._rules.segment_bytes and now_ms < self._roll_due_ms:
            return
        if self.end_offset == self.log_meta.active.base_offset:
            return  # empty: the batch after the last roll was refused, or lost in a power failure
        is_large = self.active_bytes + batch_bytes > LARGE_SEGMENT_BYTES
        segments = len(self.log_meta.segments)
        if segments >= self._segments_that_fit or (segments >= SEGMENTS_MAX and not is_large):
            return
        self.roll(now_ms)

    def roll(self, now_ms: int) -> None:
        """Start a new segment at the log's end; the active one must not be empty.

        Raises:
            s3stream.errors.S3StreamError: as `roll_if_due`.
        """
        assert self.end_offset > self.log_meta.active.base_offset, "an empty segment cannot be rolled"
        ends = {name: stream.next_offset for name, stream in self.streams.items() if name in SLICED}
        observe(self._change(LogMeta.roll_change(self.end_offset, ends, now_ms, self.active_content)))
        self._shift = self.log_meta.active.kafka_offset(0)
        self.set_active_content(Content())
        self._roll_due_ms = self._age_limit_ms()

    # Content of segments

    @property
    def active_content(self) -> Content:
        """Content of the active segment, including appends in flight."""
        return Content(self.active_bytes, self.active_max_timestamp, self.active_max_timestamp_offset)

    def set_active_content(self, content: Content) -> None:
        """Set the active segment's content: after a roll, and after an open."""
        self.active_bytes, self.active_max_timestamp, self.active_max_timestamp_offset = content

    def note_content(self, size_bytes: int, max_timestamp: int, base_offset: int) -> None:
        """Count a batch of the active segment."""
        self.active_bytes += size_bytes
        if max_timestamp > self.active_max_timestamp:
            self.active_max_timestamp = max_timestamp
            self.active_max_timestamp_offset = base_offset

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments. A segment that is partly below the log start counts fully, as in Kafka."""
        return self.active_bytes + self.log_meta.closed_bytes

    # The start of the log

    def drop_before(self, offset: int) -> None:
        """Drop segments that are entirely below an offset.

        Raises:
            s3stream.errors.S3StreamError: the Meta stream refused the change.
        """
        if self.log_meta.segment_of(offset) is not self.log_meta.segments[0]:
            observe(self._change(LogMeta.drop_change(offset)))

    def is_trimmed(self, start_offset: int) -> bool:
        """Return whether segments and streams start at the log start."""
        if self.log_meta.segment_of(start_offset) is not self.log_meta.segments[0]:
            return False
        return not self.trims.due(start_offset)

    async def trim(self, start_offset: int) -> None:
        """Drop segments and trim streams below the log start, so that objects become garbage.

        Raises:
            s3stream.errors.S3StreamError: retry later.
        """
        self.drop_before(start_offset)
        for stream, offset in self.trims.due(start_offset):
            await stream.trim(offset)

    # Reads

    def read_cached(self, offset: int, max_bytes: int) -> list[StreamRecord] | None:
        """Return batches from memory, the first of which contains `offset`: at least one, even if it exceeds
        `max_bytes`; none at the end of the log. Return None if part of the range is only in objects (`read`).
        """
        segments = self.log_meta.segments
        # the usual case: the active segment, which has no end
        if offset >= segments[-1].base_offset:
            return self._data.fetch_cached(offset - self._shift, max_bytes)
        segment = self.log_meta.segment_of(offset)
        stream = self.streams[segment.data_stream]
        records = stream.fetch_cached(segment.stream_offset(offset), max_bytes)
        return None if records is None else self._within(segment, records)

    async def read(self, offset: int, max_bytes: int) -> list[StreamRecord]:
        """Return batches from memory or objects.

        Raises:
            s3stream.errors.S3StreamError: out of range, unreadable, or too slow.
        """
        segment = self.log_meta.segment_of(offset)
        stream = self.streams[segment.data_stream]
        try:
            return self._within(segment, await fetch(stream, segment.stream_offset(offset), max_bytes))
        except OffsetOutOfRangeError:
            if self.log_meta.segment_of(offset) is segment:
                raise
        # a cleaned segment has replaced this one, whose slice was trimmed
        return await self.read(offset, max_bytes)

    def place_of(self, offset: int) -> tuple[StreamId, int]:
        """Return the stream, and the offset within it, of a Kafka offset's record."""
        segment = self.log_meta.segment_of(offset)
        return self.streams[segment.data_stream].stream_id, segment.stream_offset(offset)

    def kafka_offset(self, near_offset: int, record: StreamRecord) -> int:
        """Return the Kafka base offset of a record that a read at `near_offset` returned."""
        segment = self.log_meta.segment_of(near_offset)
        return segment.kafka_offset(record.base_offset)

    def _within(self, segment: Segment, records: list[StreamRecord]) -> list[StreamRecord]:
        """Return the records that belong to the segment, or to following segments that continue in the same
        stream with the same shift.
        """
        if not records:
            return records
        records_end, end = records[-1].end_offset, segment.data.end
        shift = segment.kafka_offset(0)
        for after in self.log_meta.segments_after(segment):
            if end == OPEN_END or end >= records_end:
                break
            part = after.data
            if after.suffix != segment.suffix or part.start != end or after.base_offset != shift + end:
                break
            end = part.end
        if end == OPEN_END or records_end <= end:
            return records
        return [record for record in records if record.base_offset < end]

    # The time index

    def note_time(self, max_timestamp: int, offset: int) -> bool:
        """Append a Time entry; return False while the partition has no Time stream."""
        stream = self.streams.get(TIME)
        if stream is None:
            return False
        observe(stream.append(TIME_ENTRY.pack(max_timestamp, offset), count=1, max_timestamp=max_timestamp))
        return True

    def add_stream(self, name: StreamName, stream: PartitionStream) -> None:
        """Add a stream that was created and opened later."""
        observe(self._change(LogMeta.stream_change(name, stream.stream_id)))
        self.streams[name] = stream

    async def offset_before_time(self, timestamp: int) -> int:
        """Return a Kafka offset at or below that of the first record with at least this timestamp.

        Raises:
            s3stream.errors.S3StreamError: retry later.
        """
        return await time_index.offset_before(self.log_meta, self.streams, timestamp)

    # Compaction

    def clean(self, cleaned: Segment) -> asyncio.Future[None]:
        """Replace segments by a cleaned segment of the same offsets, whose data must be durable. The future
        resolves when the replacement is durable.

        The slices of the old segments are not trimmed before that: after a crash, the old list may apply, and
        its slices must be readable.

        Raises:
            s3stream.errors.S3StreamError: the Meta stream refused the change.
        """
        durable = self._change(LogMeta.clean_change(cleaned))
        self.trims.hold_until(durable)
        return durable

    def note_cleaned_to(self, offset: int) -> None:
        """Record where a pass of the cleaner ended.

        Raises:
            s3stream.errors.S3StreamError: the Meta stream refused the change.
        """
        observe(self._change(LogMeta.cleaned_to_change(offset)))

    def _change(self, change: bytes) -> asyncio.Future[None]:
        """Write and apply a change of the log meta; the future resolves when it is durable.

        Raises:
            s3stream.errors.S3StreamError: the Meta stream refused the change; nothing changed.
        """
        durable = self._meta.change(self.log_meta.key, change)
        self.log_meta.apply_change(change)
        self.fold_meta()
        return durable

    def fold_meta(self) -> None:
        """Write the whole log meta when a replay would otherwise apply too many changes."""
        if self._meta.needs_whole(self.log_meta.key):
            # The write is refused if the cache is full: the changes stay, and the next call retries.
            with contextlib.suppress(S3StreamError):
                observe(self._meta.put(self.log_meta.key, self.log_meta.snapshot()))

    async def close(self) -> None:
        """Close the streams of the log; the Meta stream stays open."""
        await asyncio.gather(*(stream.close() for stream in self.streams.values()))
