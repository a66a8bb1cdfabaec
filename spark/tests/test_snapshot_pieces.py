"""Tests of selecting the pieces of a stream that overlap a range."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from ponor_spark.snapshot import PIECE, HeldPiece, pieces_within


@given(
    bounds=st.lists(st.integers(0, (1 << 63) - 1), unique=True, max_size=12).map(sorted),
    wanted=st.tuples(st.integers(0, (1 << 63) - 1), st.integers(0, (1 << 63) - 1)),
    ends=st.tuples(st.integers(0, 11), st.integers(0, 11), st.booleans()),
)
def test_the_pieces_of_a_range_are_those_that_share_an_offset_with_it(
    bounds: list[int], wanted: tuple[int, int], ends: tuple[int, int, bool]
) -> None:
    pieces = [
        HeldPiece(number, 1, start, end, 0, 7, number % 2 == 0)
        for number, (start, end) in enumerate(pairwise(bounds))
    ]
    if bounds and ends[2]:
        wanted = bounds[ends[0] % len(bounds)], bounds[ends[1] % len(bounds)]
    start, end = wanted
    packed = b"".join(PIECE.pack(*each) for each in pieces)
    shared = [each for each in pieces if max(start, each.start_offset) < min(end, each.end_offset)]
    found = list(pieces_within(packed, start, end))
    assert (found if start < end else []) == shared
