"""The walk over the headers of a block's records: where each begins, and whether it is the one that belongs there.

What lives here: the rules of a record within its block, and the choice of the implementation. `block_walk_native` is compiled when this member is
installed; where it is not there, `walk_in_python` gives the same results, some fifty times slower. Words for what is broken are `block`'s.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import TypeAlias

from s3stream.records import (
    OFFSET_MAX,
    RECORD_COUNT_MAX,
    RECORD_HEADER,
    RECORD_HEADER_BYTES,
    TIMESTAMP_MIN,
)

Walk: TypeAlias = Callable[[bytes, int, int, int, int, int, "array[int]", "array[int]"], tuple[int, int, int]]


def walk_in_python(
    data: bytes,
    at: int,
    records_max: int,
    stream_id: int,
    epoch: int,
    offset: int,
    positions: array[int],
    base_offsets: array[int],
) -> tuple[int, int, int]:
    """Walk over the records at `at` as far as they keep the rules, appending where each begins.

    Args:
        data: the block.
        at: position of the first record.
        records_max: how many at most.
        stream_id: whose block it is.
        epoch: of the stream.
        offset: the offset that belongs to the first record.
        positions: gets the position of each record, as unsigned 32 bits.
        base_offsets: gets its base offset, as signed 64 bits.

    Returns:
        The position behind the last record, its end offset, and the largest timestamp of all (`TIMESTAMP_MIN` without records).
    """
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


walk: Walk
RECORDS_PER_WALK: int
"""Walked in well under half a millisecond of the loop."""

try:
    from s3stream.objects import block_walk_native

    walk = block_walk_native.walk
    RECORDS_PER_WALK = 16_384
    IS_NATIVE = True
except ImportError:  # pragma: no cover - no C compiler was there when the member was installed
    walk = walk_in_python
    RECORDS_PER_WALK = 256
    IS_NATIVE = False
