"""Tests of a table's recorded offsets and their validation, without Spark and without a table."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ponor_spark.jobs.iceberg.coverage import Coverage, Span, check_done, check_rows, coverage, ends_after
from ponor_spark.jobs.iceberg.ledger import (
    ENDS,
    MIRROR,
    Ancestor,
    Ends,
    History,
    LedgerError,
    ends_from_json,
    ends_to_json,
    held_ends,
    mirror_property,
    snapshot_properties,
)

TOPIC = "topic id"
OURS: Ends = {TOPIC: {0: 100, 1: 7}}


def ours(number: int, ends: Ends = OURS) -> Ancestor:
    properties = snapshot_properties({}, ends, cluster_id="c", query_id="q", batch_id=number, rows=1)
    return Ancestor(number, number, properties)


def foreign(number: int) -> Ancestor:
    return Ancestor(number, number, {"operation": "overwrite"})


def history(
    *ancestors: Ancestor, mirrored: int | None = None, ends: Ends = OURS, also: tuple[int, ...] = ()
) -> History:
    mirror = None if mirrored is None else mirror_property(mirrored, mirrored, ends)[MIRROR]
    return History(ancestors, frozenset({each.snapshot_id for each in ancestors} | set(also)), mirror)


def test_new_or_foreign_table_has_no_offsets() -> None:
    assert held_ends(history(), "t") == {}
    assert held_ends(history(foreign(3), foreign(2)), "t") == {}


def test_maintenance_on_top_does_not_hide_the_newest_snapshot_of_ours() -> None:
    older: Ends = {TOPIC: {0: 50, 1: 7}}
    found = history(foreign(9), foreign(8), ours(7), foreign(6), ours(5, older), mirrored=7)
    assert held_ends(found, "t") == OURS


def test_the_newest_of_ours_counts_without_its_copy() -> None:
    assert held_ends(history(foreign(9), ours(7)), "t") == OURS


def test_the_copy_counts_when_ours_is_expired() -> None:
    assert held_ends(history(foreign(9), foreign(8), mirrored=7), "t") == OURS


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(
            history(ours(5, {TOPIC: {0: 50}}), mirrored=7, also=(7,)), id="back to an older one of ours"
        ),
        pytest.param(
            history(ours(5, {TOPIC: {0: 50}}), mirrored=7),
            id="back to an older one of ours, the newest expired",
        ),
        pytest.param(history(foreign(3), mirrored=7, also=(7,)), id="back to before ours"),
        pytest.param(history(foreign(3), mirrored=7), id="back to before ours, ours expired"),
        pytest.param(
            history(foreign(9), foreign(3), mirrored=7), id="back to before ours, and on from there"
        ),
        pytest.param(history(mirrored=7, also=(7,)), id="emptied"),
        pytest.param(history(ours(7), mirrored=7, ends={TOPIC: {0: 1}}), id="a copy with other offsets"),
    ],
)
def test_rolled_back_table_is_refused(found: History) -> None:
    with pytest.raises(
        LedgerError, match=r"table lake\.t was rolled back or replaced: .*; to write the removed rows"
    ) as caught:
        held_ends(found, "lake.t")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": 1}', '{"a": {"x": 1}}', '{"a": {"0": null}}'])
def test_unreadable_properties_are_named(text: str) -> None:
    with pytest.raises(LedgerError, match="unreadable"):
        ends_from_json(text, "snapshot 1 of t")
    with pytest.raises(LedgerError, match="unreadable"):
        held_ends(History((Ancestor(1, 1, {ENDS: "{}"}),), frozenset({1}), text), "t")


ENDS_DRAWN = st.dictionaries(
    st.uuids().map(str), st.dictionaries(st.integers(0, 1 << 31), st.integers(0, 1 << 62))
)


@given(ENDS_DRAWN)
def test_ends_survive_their_text(ends: Ends) -> None:
    assert ends_from_json(ends_to_json(ends), "here") == ends
    assert held_ends(history(ours(1, ends), mirrored=1, ends=ends), "t") == ends


def test_a_batch_is_new_where_the_table_ends() -> None:
    assert coverage({(TOPIC, 0): (100, 120), (TOPIC, 1): (7, 7)}, OURS, "t") is Coverage.NEW
    assert coverage({(TOPIC, 0): (None, 120)}, {}, "t") is Coverage.NEW
    assert coverage({(TOPIC, 0): (0, 120)}, {}, "t") is Coverage.NEW
    assert coverage({(TOPIC, 0): (100, 120), (TOPIC, 9): (None, 0)}, OURS, "t") is Coverage.NEW


def test_a_batch_is_present_when_all_its_ends_are() -> None:
    assert coverage({(TOPIC, 0): (80, 100), (TOPIC, 1): (0, 7)}, OURS, "t") is Coverage.PRESENT
    assert coverage({(TOPIC, 0): (None, 90)}, OURS, "t") is Coverage.PRESENT
    assert coverage({}, OURS, "t") is Coverage.PRESENT


@pytest.mark.parametrize(
    ("ranges", "words"),
    [
        ({(TOPIC, 0): (80, 100), (TOPIC, 1): (7, 9)}, "has topic id/0 of this batch, but not topic id/1"),
        ({(TOPIC, 0): (90, 110)}, "up to 100, and this batch is 90 to 110"),
        ({(TOPIC, 0): (101, 110)}, "the checkpoint is ahead of the table"),
        ({("another", 0): (5, 10)}, "has nothing of another/0, and this batch begins at 5"),
    ],
)
def test_half_a_batch_is_an_error(ranges: dict[tuple[str, int], tuple[int | None, int]], words: str) -> None:
    with pytest.raises(LedgerError, match=words):
        coverage(ranges, OURS, "t")


def test_a_checkpoint_ahead_of_its_table_is_another_tables() -> None:
    check_done({}, {}, "t")
    check_done(OURS, OURS, "t")
    check_done({TOPIC: {0: 90, 9: 0}}, OURS, "t")
    with pytest.raises(
        LedgerError, match=r"has offsets below 100 of topic id/0, and the checkpoint is at 101"
    ):
        check_done({TOPIC: {0: 101}}, OURS, "t")
    with pytest.raises(
        LedgerError, match=r"t has nothing of another/2, and the checkpoint is at 5: .* --checkpoint a new"
    ):
        check_done({"another": {2: 5}}, OURS, "t")


def test_rows_are_counted_and_must_lie_in_the_batch() -> None:
    ranges = {(TOPIC, 0): (100, 120), (TOPIC, 1): (None, 30)}
    good = [Span(TOPIC, 0, 100, 119, 15), Span(TOPIC, 1, 7, 29, 3)]
    assert check_rows(ranges, OURS, good, "t") == 18
    for bad in (
        Span(TOPIC, 0, 99, 110, 1),
        Span(TOPIC, 0, 100, 120, 1),
        Span(TOPIC, 1, 6, 6, 1),
        Span("other", 0, 0, 0, 1),
    ):
        with pytest.raises(LedgerError, match="which this batch may add"):
            check_rows(ranges, OURS, [*good, bad], "t")


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 50)), max_size=30), st.data())
def test_whatever_is_repeated_every_offset_is_taken_once(
    steps: list[tuple[int, int]], data: st.DataObject
) -> None:
    """A query that dies before or after its commits any number of times: batches are consecutive, and the
    ledger accepts each once.
    """
    held: Ends = {}
    taken: dict[int, list[tuple[int, int]]] = {}
    at: dict[int, int] = {}
    for partition, count in steps:
        start, end = at.get(partition), at.get(partition, 0) + count
        ranges = {(TOPIC, partition): (start, end)}
        for _ in range(data.draw(st.integers(0, 3), label="deaths before the commit")):
            assert coverage(ranges, held, "t") is Coverage.NEW
        taken.setdefault(partition, []).append((start or 0, end))
        held = ends_after(ranges, held)
        for _ in range(data.draw(st.integers(0, 3), label="deaths behind it")):
            assert coverage(ranges, held, "t") is Coverage.PRESENT
        at[partition] = end
    for pieces in taken.values():
        assert [start for start, _ in pieces] == [0, *(end for _, end in pieces[:-1])]
