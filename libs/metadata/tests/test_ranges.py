"""The packed ranges of stream set objects: exact, canonical, searchable."""

from __future__ import annotations

import random
from array import array
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ponor_metadata.image import storage_native
from ponor_metadata.tables.ranges import (
    INT64_MAX,
    PackedRanges,
    RangesCorruptError,
    RangesOverlapError,
    StreamPiece,
    decode_interpreted,
    decode_ranges,
    encode_interpreted,
    encode_ranges,
    join_interpreted,
    join_runs,
)
from ponor_metadata.tables.ranges_native import decode_columns, encode_list
from ponor_runtime.identity import StreamId

from libs.metadata.tests.oracles import append_slot

pieces_lists = st.dictionaries(
    st.one_of(st.integers(0, 20), st.integers(0, INT64_MAX)),
    st.lists(st.one_of(st.integers(0, 50), st.integers(0, INT64_MAX)), min_size=2, max_size=8, unique=True),
    max_size=8,
).map(
    lambda streams: [
        StreamPiece(StreamId(stream_id), start, end)
        for stream_id, cuts in sorted(streams.items())
        for start, end in zip(sorted(cuts), sorted(cuts)[1:], strict=False)
    ]
)


@given(pieces_lists)
def test_packed_ranges_are_unpacked_unchanged(pieces: list[StreamPiece]) -> None:
    assert list(decode_ranges(encode_ranges(pieces))) == pieces


@given(st.binary(max_size=60))
def test_bytes_are_refused_or_canonical(data: bytes) -> None:
    try:
        decoded = decode_ranges(data)
    except RangesCorruptError:
        return
    assert encode_ranges(decoded) == data


@given(pieces_lists, st.integers(0, 21), st.integers(0, 60))
def test_search_finds_the_same_piece_as_a_scan(
    pieces: list[StreamPiece], stream_id: int, offset: int
) -> None:
    decoded = PackedRanges(encode_ranges(pieces)).decoded
    mine = [piece for piece in pieces if piece.stream_id == stream_id]
    holding = [piece for piece in mine if piece.start_offset <= offset < piece.end_offset]
    assert decoded.find(StreamId(stream_id), offset) == (holding[0] if holding else None)
    assert list(decoded.of_stream(StreamId(stream_id))) == mine
    assert decoded.end_of(StreamId(stream_id)) == (mine[-1].end_offset if mine else None)
    assert list(decoded.stream_ids()) == sorted({piece.stream_id for piece in pieces})


@given(pieces_lists.filter(bool), st.data())
def test_truncated_ranges_are_refused_or_shorter(pieces: list[StreamPiece], data: st.DataObject) -> None:
    packed = encode_ranges(pieces)
    cut = packed[: data.draw(st.integers(0, len(packed) - 1))]
    with suppress(RangesCorruptError):
        assert list(decode_ranges(cut)) != pieces


def test_the_worked_example_of_the_format_document() -> None:
    pieces = [
        StreamPiece(StreamId(5), 100, 110),
        StreamPiece(StreamId(5), 300, 301),
        StreamPiece(StreamId(6), 0, 2),
    ]
    assert encode_ranges(pieces) == bytes.fromhex("05 64 0a  00 be 01 01  01 00 02")


@pytest.mark.parametrize(
    "pieces",
    [
        [(1, 5, 5)],
        [(1, -1, 5)],
        [(2, 0, 1), (1, 0, 1)],
        [(1, 0, 10), (1, 9, 12)],
        [(1, 0, INT64_MAX + 1)],
        [(INT64_MAX + 1, 0, 1)],
    ],
)
def test_invalid_pieces_are_not_packed(pieces: list[tuple[int, int, int]]) -> None:
    with pytest.raises(ValueError, match="StreamPiece"):
        encode_ranges(StreamPiece(StreamId(stream_id), start, end) for stream_id, start, end in pieces)


@pytest.mark.parametrize("damaged", ["80", "0100", "010000", "018000 01", "ff" * 10, "01" + "ff" * 9 + "01"])
def test_damaged_ranges_are_refused(damaged: str) -> None:
    with pytest.raises(RangesCorruptError, match="packed ranges"):
        decode_ranges(bytes.fromhex(damaged))


@given(st.one_of(st.binary(max_size=40), st.lists(st.integers(0, 130), max_size=12).map(bytes)))
def test_compiled_and_interpreted_code_agree(data: bytes) -> None:
    compiled = decode_columns(data)
    try:
        assert compiled == decode_interpreted(data)
    except RangesCorruptError:
        assert compiled is None


runs = st.tuples(st.integers(0, 4), st.integers(-1, 20), st.integers(-1, 24))


@given(st.lists(runs, max_size=8).map(sorted))
def test_compiled_and_interpreted_packing_agree(pieces: list[tuple[int, int, int]]) -> None:
    compiled = encode_list(pieces)
    try:
        assert compiled == encode_interpreted(pieces)
    except ValueError:
        assert compiled is None


@given(st.lists(pieces_lists, max_size=4))
def test_compiled_and_interpreted_joining_agree(parts: list[list[StreamPiece]]) -> None:
    decoded = [decode_ranges(encode_ranges(part)) for part in parts]
    pieces = [(each.stream_id, each.start_offset, each.end_offset) for part in parts for each in part]
    try:
        expected = join_interpreted(pieces)
    except RangesOverlapError as error:
        with pytest.raises(RangesOverlapError, match=str(error)):
            join_runs(decoded)
        return
    assert join_runs(decoded) == expected


@given(st.lists(st.sets(st.integers(0, 6), min_size=1), min_size=1, max_size=20), st.randoms())
def test_compiled_index_entries_of_set_objects_equal_the_oracle(
    objects: list[set[int]], draw: random.Random
) -> None:
    orders = array("q", draw.sample(range(100), len(objects)))
    compiled: dict[int, array[int]] = {}
    interpreted: dict[int, array[int]] = {}
    for slot, streams in enumerate(objects):
        column = array("q", sorted([*streams, *streams]))
        left = storage_native.append_slot(compiled, column, slot, orders, orders[slot])
        assert left == append_slot(interpreted, column, slot, orders, orders[slot])
        assert compiled == interpreted
        assert {slots.typecode for slots in compiled.values()} == {"I"}


def test_packed_ranges_compare_by_their_bytes() -> None:
    assert PackedRanges(b"\x01\x00\x01") == PackedRanges(b"\x01\x00\x01")
    assert hash(PackedRanges(b"")) == hash(PackedRanges(b""))
    assert PackedRanges(b"\x01\x00\x01") != PackedRanges(b"\x01\x00\x02")
