"""Tests that the compiled walk over a block's records and its oracle return the same for any bytes."""

from __future__ import annotations

from array import array
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from ponor_runtime.identity import StreamEpoch, StreamId
from s3stream.objects import block_walk
from s3stream.records import TIMESTAMP_MIN, StreamRecord

from libs.s3stream.tests import block_walk_oracle

STREAM, EPOCH, FIRST_OFFSET = 7, 3, 40
COUNTS = st.integers(1, 5) | st.integers((1 << 31) - 2, (1 << 31) - 1)
RECORDS = st.lists(st.tuples(COUNTS, st.integers(-1, 1 << 60), st.binary(max_size=50)), max_size=12)


def encoded(parts: list[tuple[int, int, bytes]], first_offset: int) -> bytes:
    offset, data = first_offset, bytearray()
    for count, timestamp, payload in parts:
        record = StreamRecord(StreamId(STREAM), StreamEpoch(EPOCH), offset, count, timestamp, payload)
        data += record.encode_header() + payload
        offset += count
    return bytes(data)


def told(
    walk: Any, data: bytes, records_max: int, first_offset: int
) -> tuple[tuple[int, int, int], array[int], array[int]]:
    positions, base_offsets = array("I", [1]), array("q", [-1])
    found = walk(data, 0, records_max, STREAM, EPOCH, first_offset, positions, base_offsets)
    return found, positions, base_offsets


@given(
    RECORDS,
    st.integers(0, 15),
    st.sampled_from([0, FIRST_OFFSET, (1 << 63) - 9]),
    st.none() | st.tuples(st.integers(0), st.integers(0, 255)),
    st.integers(0, 45),
)
def test_both_walks_return_the_same(
    parts: list[tuple[int, int, bytes]],
    records_max: int,
    first_offset: int,
    damage: tuple[int, int] | None,
    cut_bytes: int,
) -> None:
    if first_offset > FIRST_OFFSET:
        parts = [(1, timestamp, payload) for _, timestamp, payload in parts[:9]]
    data = bytearray(encoded(parts, first_offset))
    if damage is not None and data:
        data[damage[0] % len(data)] = damage[1]
        data = data[: max(len(data) - cut_bytes, 0)]
    assert told(block_walk.walk, bytes(data), records_max, first_offset) == told(
        block_walk_oracle.walk, bytes(data), records_max, first_offset
    )


@given(RECORDS)
def test_a_valid_block_is_walked_to_its_end(parts: list[tuple[int, int, bytes]]) -> None:
    data = encoded(parts, FIRST_OFFSET)
    found, positions, _ = told(block_walk_oracle.walk, data, 100, FIRST_OFFSET)
    newest = max((timestamp for _, timestamp, _ in parts), default=TIMESTAMP_MIN)
    assert found == (len(data), FIRST_OFFSET + sum(count for count, _, _ in parts), newest)
    assert len(positions) == 1 + len(parts)
