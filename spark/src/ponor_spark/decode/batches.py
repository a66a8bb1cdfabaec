"""Decoder from Kafka record batches to Arrow batches.

This module handles whole batches: checksums, control batches, aborted transactions, offset and time ranges,
bounded decompression. The compiled `kernel` decodes records (docs/design/spark.md#decoding has figures). The
rows are the records that a Kafka consumer receives.

Offsets derive from a batch's position in its stream, not from its header, whose offset the checksum does not
cover. A batch ends where its stream record ends; in a compacted partition the record also covers the gap
before it (docs/formats/partition-meta.md).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from ponor_kafka.errors import KafkaWireError
from ponor_kafka.primitives import Buffer
from ponor_kafka.record_batch import BatchView
from ponor_kafka.record_rules import INT64_MAX, INT64_MIN
from ponor_kafka.records import RECORD_BYTES_MIN

from ponor_spark.clip import AbortedRange, Clip
from ponor_spark.decode.block_records import BlockRecords, PlacedBatch
from ponor_spark.decode.columns import ConstantColumn
from ponor_spark.decode.errors import corrupt
from ponor_spark.decode.kernel import RowBuilder
from ponor_spark.decode.schema import PARTITION, TOPIC, schema_of
from ponor_spark.decode.window import Window

__all__ = ["AbortedRange", "BatchDecoder", "Clip"]

ROWS_MAX: Final = 1 << 16
ROWS_MAX_LIMIT: Final = 1 << 20
"""Limit of `rows_max`, so that the topic names fit into one Arrow column."""
BYTES_MAX: Final = 4 << 20
"""Bytes of keys, values and headers of one Arrow batch: large enough to amortize the cost of a batch, small
enough to stay in cache.
"""
BYTES_MAX_LIMIT: Final = 512 << 20
"""Arrow offsets have 31 bits, and a header key that is not UTF-8 may grow threefold."""
DECOMPRESSED_BYTES_MAX: Final = 256 << 20
"""Default decompressed size limit of one batch, equal to the broker's."""
SCRATCH_BYTES: Final = 1 << 20
"""Initial buffer size, sufficient for most batches."""
QUEUED_BYTES_MAX: Final = 64 << 20
ALL_TIME_MS: Final = (INT64_MIN, INT64_MAX)
"""Both ends are inclusive."""


@dataclass(slots=True)
class _Part:
    """Part of a partition: the requested offsets, and the constant columns of its rows."""

    clip: Clip
    aborted: dict[int, list[AbortedRange]]
    constants: dict[str, ConstantColumn]

    def is_same_partition(self, other: Clip) -> bool:
        """Return whether rows of both may be in one Arrow batch."""
        return (self.clip.topic, self.clip.partition) == (other.topic, other.partition)


@dataclass(frozen=True, slots=True)
class _Fed:
    """Queued input: a block or a batch."""

    part: _Part
    what: BlockRecords | PlacedBatch
    size_bytes: int


class BatchDecoder:
    """Decodes its input in order. Input is queued and decoded while `take` is iterated, so memory is bounded
    whatever the decompressed size.

    Call `take` (or `finish` at the end) after each `feed_block` or `feed`.
    """

    def __init__(
        self,
        columns: Sequence[str],
        *,
        clip: Clip,
        aborted: Sequence[AbortedRange] = (),
        rows_max: int = ROWS_MAX,
        bytes_max: int = BYTES_MAX,
        time_range_ms: tuple[int, int] | None = None,
        decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX,
        kernel: type[RowBuilder] = RowBuilder,
    ) -> None:
        """Create a decoder.

        Args:
            columns: names of `schema`, in the order of the Arrow batches' columns.
            clip: topic, partition and requested Kafka offsets.
            aborted: transactions of the partition whose batches are omitted.
            rows_max: rows of an Arrow batch.
            bytes_max: bytes of keys, values and headers in an Arrow batch, unless one row has more.
            time_range_ms: only rows with a timestamp in [from, to).
            decompressed_bytes_max: maximum decompressed size of one batch.
            kernel: the record decoder.

        Raises:
            ValueError: invalid columns (`schema_of`).
        """
        assert 1 <= rows_max <= ROWS_MAX_LIMIT
        assert 1 <= bytes_max <= BYTES_MAX_LIMIT
        assert 0 < decompressed_bytes_max <= DECOMPRESSED_BYTES_MAX
        self.schema: Final = schema_of(columns)
        self._start_ms, self._last_ms = ALL_TIME_MS
        if time_range_ms is not None:
            self._start_ms = max(time_range_ms[0], INT64_MIN)
            self._last_ms = min(max(time_range_ms[1] - 1, INT64_MIN), INT64_MAX)
        self._rows: Final = kernel(frozenset(columns), rows_max, bytes_max)
        self._decompressed_bytes_max: Final = decompressed_bytes_max
        self._scratch: Final = bytearray(min(SCRATCH_BYTES, decompressed_bytes_max))
        self._queue: Final[deque[_Fed]] = deque()
        self._queued_bytes = 0
        self._decoding: Iterator[pa.RecordBatch] | None = None
        self._decoded = self._fed = _part_of(clip, aborted)

    def move_to(self, clip: Clip, aborted: Sequence[AbortedRange] = ()) -> None:
        """Switch to another part of the partition, or to another partition; rows of two partitions are never
        in one Arrow batch.
        """
        self._fed = _part_of(clip, aborted, self._fed)

    def feed(self, batch: Buffer, base_offset: int) -> None:
        """Queue one record batch as stored in an object; `base_offset` is the Kafka offset of the record with
        offset delta 0.
        """
        view = memoryview(batch)
        self._enqueue(PlacedBatch(view, base_offset, None), len(view))

    def feed_block(self, payload: Buffer, kafka_shift: int) -> None:
        """Queue a verified data block; `kafka_shift` is Kafka offset minus stream offset."""
        view = memoryview(payload)
        self._enqueue(BlockRecords(view, kafka_shift, self._fed.clip), len(view))

    def _enqueue(self, what: BlockRecords | PlacedBatch, size_bytes: int) -> None:
        assert not self._queue or self._queued_bytes + size_bytes <= QUEUED_BYTES_MAX, (
            "the queue is full: call take() before the next batch"
        )
        self._queue.append(_Fed(self._fed, what, size_bytes))
        self._queued_bytes += size_bytes

    def take(self) -> Iterator[pa.RecordBatch]:
        """Decode the queued input; yield the full Arrow batches.

        Raises:
            CorruptBatchError: a batch violates a rule. The decoder is unusable afterwards.
        """
        if self._decoding is None:
            self._decoding = self._decode()
        # Not `yield from`: that would end the decoding when the caller leaves its loop early.
        while (batch := next(self._decoding, None)) is not None:
            yield batch
        self._decoding = None

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Yield the full batches like `take`, then the last batch, which may be partial."""
        yield from self.take()
        if self._rows.rows:
            yield self._arrow_batch()

    def _decode(self) -> Iterator[pa.RecordBatch]:
        rows = self._rows
        while self._queue:
            fed = self._queue[0]
            clip = fed.part.clip
            if rows.rows and not self._decoded.is_same_partition(clip):
                yield self._arrow_batch()
            self._decoded = fed.part
            if isinstance(fed.what, PlacedBatch):
                self._open(fed.what)
                yield from self._walk()
            else:
                yield from self._walk_block(fed.what)
            self._queue.popleft()
            self._queued_bytes -= fed.size_bytes

    def _walk_block(self, records: BlockRecords) -> Iterator[pa.RecordBatch]:
        """Let the kernel decode plain batches, and handle each other batch, at which the kernel stops."""
        clip, rows = records.clip, self._rows
        bounds = (records.kafka_shift, clip.start_offset, clip.end_offset, self._start_ms, self._last_ms)
        while True:
            try:
                records.at, records.expected = rows.take_plain(
                    records.block, records.at, records.expected, bounds
                )
            except KafkaWireError as error:
                raise corrupt(clip.topic, clip.partition, rows.place, str(error)) from error
            if not rows.is_open:
                batch = records.next()
                if batch is None:
                    return
                self._open(batch)
            yield from self._walk()

    def _walk(self) -> Iterator[pa.RecordBatch]:
        """Finish the open batch, if any."""
        rows = self._rows
        try:
            while rows.is_open and not rows.decode_more():
                yield self._arrow_batch()
        except KafkaWireError as error:
            clip = self._decoded.clip
            raise corrupt(clip.topic, clip.partition, rows.place, str(error)) from error

    def _open(self, placed: PlacedBatch) -> None:
        """Pass a batch's records to the kernel, if any of them may become rows.

        Raises:
            CorruptBatchError: the batch violates a rule.
        """
        try:
            batch = BatchView(placed.data)
            batch.check_crc()
            base_offset = placed.base_offset(batch.last_offset_delta)
            if batch.record_count and not batch.is_control and not self._is_left_out(batch, base_offset):
                self._open_records(batch, base_offset, placed.start_offset)
        except KafkaWireError as error:
            clip = self._decoded.clip
            raise corrupt(clip.topic, clip.partition, placed.start_offset, str(error)) from error

    def _open_records(self, batch: BatchView, base_offset: int, place: int) -> None:
        data, count = batch.uncompressed(self._decompressed_bytes_max, self._scratch), batch.record_count
        if not 0 < count * RECORD_BYTES_MIN <= len(data):
            raise KafkaWireError(f"the batch claims {count} records in {len(data)} bytes")
        clip, is_append_time = self._decoded.clip, batch.is_log_append_time
        window = Window(
            place,
            count,
            base_offset,
            batch.last_offset_delta,
            batch.max_timestamp if is_append_time else batch.first_timestamp,
            is_append_time,
            clip.start_offset,
            clip.end_offset,
            self._start_ms,
            self._last_ms,
        )
        self._rows.open(data, window)

    def _is_left_out(self, batch: BatchView, base_offset: int) -> bool:
        """Return whether no record can match: none is in the range of times or offsets, or the transaction
        was aborted.
        """
        last_offset = base_offset + batch.last_offset_delta
        clip = self._decoded.clip
        if (
            batch.max_timestamp < self._start_ms
            or last_offset < clip.start_offset
            or base_offset >= clip.end_offset
        ):
            return True
        if not batch.is_transactional:
            return False
        aborted = self._decoded.aborted.get(batch.producer_id, ())
        return any(t.first_offset <= last_offset and base_offset <= t.last_offset for t in aborted)

    def _arrow_batch(self) -> pa.RecordBatch:
        count = self._rows.rows
        made = self._rows.take()
        constants = self._decoded.constants
        columns = [
            constants[name].rows(count) if name in constants else made[name] for name in self.schema.names
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def _part_of(clip: Clip, aborted: Sequence[AbortedRange], before: _Part | None = None) -> _Part:
    assert 0 <= clip.start_offset <= clip.end_offset <= INT64_MAX
    of_producer: dict[int, list[AbortedRange]] = {}
    for transaction in aborted:
        of_producer.setdefault(transaction.producer_id, []).append(transaction)
    if before is not None and before.is_same_partition(clip):
        return _Part(clip, of_producer, before.constants)
    constants = {
        TOPIC: ConstantColumn(clip.topic),
        PARTITION: ConstantColumn(clip.partition),
    }
    return _Part(clip, of_producer, constants)
