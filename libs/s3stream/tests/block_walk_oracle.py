"""Pure Python walk over the record headers of a block: the oracle of the compiled
`s3stream.objects.block_walk`.
"""

from __future__ import annotations

from array import array

from s3stream.records import (
    OFFSET_MAX,
    RECORD_COUNT_MAX,
    RECORD_HEADER,
    RECORD_HEADER_BYTES,
    TIMESTAMP_MIN,
)


def walk(
    data: bytes,
    at: int,
    records_max: int,
    stream_id: int,
    epoch: int,
    offset: int,
    positions: array[int],
    base_offsets: array[int],
) -> tuple[int, int, int]:
    """As `block_walk.walk`."""
    length, max_timestamp = len(data), TIMESTAMP_MIN
    for _ in range(records_max):
        if length - at < RECORD_HEADER_BYTES:
            break
        fields = RECORD_HEADER.unpack_from(data, at)
        timestamp, count, payload_bytes = fields[3:]
        if (
            fields[:3] != (stream_id, epoch, offset)
            or not 1 <= count <= RECORD_COUNT_MAX
            or payload_bytes > length - at - RECORD_HEADER_BYTES
            or offset > OFFSET_MAX - count
        ):
            break
        positions.append(at)
        base_offsets.append(offset)
        at += RECORD_HEADER_BYTES + payload_bytes
        offset += count
        max_timestamp = max(max_timestamp, timestamp)
    return at, offset, max_timestamp
