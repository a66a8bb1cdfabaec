"""Coverage check of a compaction's commit, compared with counting individual offsets."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ponor_controller.domains.compaction.coverage import find_difference, first_outside, live
from ponor_metadata.tables.ranges import RangesOverlapError
from ponor_metadata.tables.ranges import join_interpreted as joined

Run = tuple[int, int, int]
runs = st.tuples(st.integers(1, 3), st.integers(0, 12), st.integers(1, 6)).map(
    lambda each: (each[0], each[1], each[1] + each[2])
)
many = st.lists(runs, max_size=6)
starts = st.dictionaries(st.integers(1, 3), st.integers(0, 14))


def offsets(pieces: list[Run]) -> Counter[tuple[int, int]]:
    return Counter((stream, offset) for stream, start, end in pieces for offset in range(start, end))


def disjoint(pieces: list[Run]) -> list[Run]:
    """Select pieces without overlaps, as the objects of a valid image have."""
    kept: list[Run] = []
    for piece in pieces:
        if not offsets(kept) & offsets([piece]):
            kept.append(piece)
    return kept


@given(many, many, starts, st.booleans())
def test_outputs_pass_exactly_if_they_cover_the_wanted_offsets(
    held: list[Run], made: list[Run], begin: dict[int, int], complete: bool
) -> None:
    held = disjoint(held)
    counted, before = offsets(made), offsets(held)
    if max(counted.values(), default=1) > 1:
        with pytest.raises(RangesOverlapError, match="contained twice"):
            joined(made)
        return

    def wanted(each: Counter[tuple[int, int]]) -> set[tuple[int, int]]:
        return {(stream, offset) for stream, offset in each if offset >= begin.get(stream, 1 << 30)}

    problem = find_difference(joined(held), joined(made), begin.get, complete=complete)
    sound = wanted(counted) == wanted(before) and (not complete or counted.keys() <= before.keys())
    assert (problem is None) == sound, problem


@given(many, starts)
def test_any_division_of_the_wanted_offsets_passes(held: list[Run], begin: dict[int, int]) -> None:
    held = disjoint(held)
    cut = [(stream, offset, offset + 1) for stream, offset in offsets(live(joined(held), begin.get))]
    for made in (held, cut, live(joined(held), begin.get)):
        assert find_difference(joined(held), joined(made), begin.get, complete=True) is None
    for left_out in range(len(cut)):
        made = cut[:left_out] + cut[left_out + 1 :]
        problem = find_difference(joined(held), joined(made), begin.get, complete=False)
        assert problem is not None
        assert "do not contain" in problem


@given(many)
def test_adjacent_ranges_are_merged(pieces: list[Run]) -> None:
    pieces = disjoint(pieces)
    made = joined(pieces)
    assert offsets(made) == offsets(pieces)
    assert all(a[0] != b[0] or a[2] < b[1] for a, b in pairwise(made))
    assert first_outside(sorted(pieces), made) is None
