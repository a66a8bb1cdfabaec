"""The time index of a partition's log: maps a timestamp to the offset where a search in batch headers starts.

`partition_log` appends entries as data is uploaded, `cleaning` for the segments that it writes. Both
guarantee that no record of the segment before the entry's offset has a larger timestamp.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

from ponor_partition.log_meta import LogMeta
from ponor_partition.segment import OPEN_END, TIME, StreamName

from ponor_broker.partitions.log.stream_port import PartitionStream, fetch

TIME_ENTRY: Final = struct.Struct(">qq")
"""Largest timestamp so far, and the Kafka base offset of its batch. Each entry is one record of the Time
stream, of count 1."""


async def offset_before(
    log_meta: LogMeta, streams: Mapping[StreamName, PartitionStream], timestamp: int
) -> int:
    """Return a Kafka offset at or below that of the first record with at least this timestamp.

    The record is in the first segment whose largest timestamp reaches `timestamp`; within this segment, the
    entries give the offset.

    Raises:
        s3stream.errors.S3StreamError: the Time stream cannot be read.
    """
    segment = log_meta.first_reaching(timestamp)
    entries = segment.slice(TIME)
    stream = streams.get(TIME + segment.suffix)
    if entries is None or stream is None:
        return segment.base_offset
    end = stream.confirmed_offset if entries.end == OPEN_END else entries.end
    low, high = max(entries.start, stream.start_offset), end
    found = segment.base_offset
    while low < high:
        middle = (low + high) // 2
        records = stream.fetch_cached(middle, 1) or await fetch(stream, middle, 1)
        known_timestamp, offset = TIME_ENTRY.unpack(records[0].payload)
        if known_timestamp < timestamp:
            found, low = max(found, offset), middle + 1
        else:
            high = middle
    return found
