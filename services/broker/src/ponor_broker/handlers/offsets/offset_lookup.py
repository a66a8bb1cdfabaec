"""Search of offsets by timestamp: time index, then batch headers, then the records of one batch.

The searches of a broker share a `Turns`: a turn of the event loop decompresses at most one batch, because a
batch of 3 KB may decompress to 60 MiB.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, TypeVar

from ponor_kafka.record_batch import BatchView
from ponor_runtime.turns import Steps, Turns, turn

from ponor_broker.partitions.partition import Partition

SCAN_BYTES: Final = 128 << 10
"""Bytes of batches whose headers are scanned in one event-loop turn."""
DECOMPRESSED_BYTES_MAX: Final = 256 << 20
_T = TypeVar("_T")


class TimestampOffset(NamedTuple):
    """A record's offset and timestamp."""

    offset: int
    timestamp: int


async def first_at_or_after(
    partition: Partition, timestamp: int, turns: Turns | None = None
) -> TimestampOffset | None:
    """Return the first readable record with at least this timestamp; None if there is none.

    Raises:
        S3StreamError: the log cannot be read.
        KafkaWireError: a batch cannot be decompressed.
    """
    if partition.max_timestamp[0] < timestamp:
        return None
    turns = turns or Turns()
    offset = max(partition.log_start_offset, await partition.log.offset_before_time(timestamp))
    while offset < partition.high_watermark:
        records = await partition.read(offset, SCAN_BYTES)
        for record in records:
            if record.max_timestamp >= timestamp:
                batch = BatchView(memoryview(record.payload))
                find = partial(batch.find_timestamp, timestamp, DECOMPRESSED_BYTES_MAX)
                found = await turns.run(_in_one_step(partial(find, partition.log_start_offset)))
                if found is not None:
                    return TimestampOffset(*found)
        offset = BatchView(memoryview(records[-1].payload)).next_offset
        await turn()
    return None


async def largest(partition: Partition, turns: Turns | None = None) -> TimestampOffset | None:
    """Return the record with the largest timestamp, the first of them if there are several; None
    for an empty partition.

    Raises:
        As `first_at_or_after`.
    """
    turns = turns or Turns()
    timestamp, batch_offset = partition.max_timestamp
    is_cleaned = bool(partition.log.log_meta.segment_of(batch_offset).suffix)
    if (
        batch_offset < partition.log_start_offset or is_cleaned
    ):  # that record may be deleted: search the remaining ones
        timestamp, batch_offset = await _largest_batch(partition, turns)
        if batch_offset < 0:
            return None
    records = await partition.read(max(batch_offset, partition.log_start_offset), 1)
    if not records:  # all records were deleted during the search
        return None
    batch = BatchView(memoryview(records[0].payload))
    return await turns.run(_largest_record(batch, timestamp, partition.log_start_offset))


def _in_one_step(work: Callable[[], _T]) -> Steps[_T]:
    """Do the work, and end the turn before the result is used."""
    result = work()
    yield
    return result


def _largest_record(batch: BatchView, timestamp: int, start_offset: int) -> Steps[TimestampOffset]:
    found = batch.find_timestamp(timestamp, DECOMPRESSED_BYTES_MAX, start_offset)
    yield
    if found is None:
        # Either the log starts within the batch, so only the batch's remaining records count, or the
        # timestamp in the header is larger than that of every record.
        found = batch.find_newest(DECOMPRESSED_BYTES_MAX, start_offset)
        yield
    return TimestampOffset(batch.last_offset, timestamp) if found is None else TimestampOffset(*found)


async def _largest_batch(partition: Partition, turns: Turns) -> tuple[int, int]:
    """Return the largest timestamp of the readable log and the base offset of the first batch with it; −1 if
    there is none.

    The stored maximum of a segment is used if its record is readable. Otherwise the segment's headers are
    scanned: the first segment may be deleted in part, and the maximum of the active one may not be durable
    yet.
    """
    log, start, end = partition.log, partition.log_start_offset, partition.high_watermark
    best = (-1, -1)
    segments = log.log_meta.segments
    for at, segment in enumerate(segments):
        is_active = at + 1 == len(segments)
        segment_end = end if is_active else min(segments[at + 1].base_offset, end)
        if segment_end <= start or segment_end <= segment.base_offset:
            continue
        content = log.active_content if is_active else segment.content
        if content is not None and start <= content.max_timestamp_offset < end:
            found = (content.max_timestamp, content.max_timestamp_offset)
        else:
            found = await _scan_headers(partition, max(segment.base_offset, start), segment_end, turns)
        if found[0] > best[0]:
            best = found
    return best


async def _scan_headers(partition: Partition, offset: int, end: int, turns: Turns) -> tuple[int, int]:
    best = (-1, -1)
    while offset < end:
        for record in await partition.read(offset, SCAN_BYTES):
            batch = BatchView(memoryview(record.payload))
            timestamp = batch.max_timestamp if batch.record_count else -1
            if batch.base_offset < partition.log_start_offset:
                steps = _largest_record(batch, timestamp, partition.log_start_offset)
                timestamp = (await turns.run(steps)).timestamp
            if timestamp > best[0]:
                best = (timestamp, batch.base_offset)
            offset = batch.next_offset
        await turn()
    return best
