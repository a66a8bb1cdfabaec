"""Offsets by timestamp: the first record that is not older than a time.

What lives here: the search (time index, then batch headers, then one batch's records) and the record of the largest timestamp. Kafka's
special timestamps are the handler's.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ponor_kafka.record_batch import BatchView

from ponor_broker.partitions.partition import Partition

SCAN_BYTES: Final = 1 << 20
DECOMPRESSED_BYTES_MAX: Final = 256 << 20


class TimestampOffset(NamedTuple):
    """A record's offset and timestamp."""

    offset: int
    timestamp: int


async def first_at_or_after(partition: Partition, timestamp: int) -> TimestampOffset | None:
    """The first readable record whose timestamp is not below `timestamp`, None if there is none.

    Raises:
        S3StreamError: the log cannot be read.
        KafkaWireError: a batch cannot be decompressed.
    """
    if partition.max_timestamp[0] < timestamp:
        return None
    start = await partition.log.offset_before_time(timestamp)
    offset = max(partition.log_start_offset, start or 0)
    while offset < partition.high_watermark:
        for record in await partition.read(offset, SCAN_BYTES):
            batch = BatchView(memoryview(record.payload))
            if record.max_timestamp >= timestamp:
                found = batch.find_timestamp(timestamp, DECOMPRESSED_BYTES_MAX)
                if found is not None and found[0] >= partition.log_start_offset:
                    return TimestampOffset(*found)
            offset = batch.next_offset
    return None


async def largest(partition: Partition) -> TimestampOffset | None:
    """The record with the largest timestamp, the first of them if there are several; None for an empty partition.

    Raises:
        As `first_at_or_after`.
    """
    timestamp, batch_offset = partition.max_timestamp
    if batch_offset < partition.log_start_offset:
        return None
    records = await partition.read(batch_offset, 1)
    batch = BatchView(memoryview(records[0].payload))
    found = batch.find_timestamp(timestamp, DECOMPRESSED_BYTES_MAX)
    # A producer may state a larger maximum than any of its records has: then the batch's end is the best answer.
    return TimestampOffset(batch.last_offset, timestamp) if found is None else TimestampOffset(*found)
