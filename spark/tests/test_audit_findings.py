"""Tests of merging and judging audit findings, and of order-independent digests."""

from __future__ import annotations

import random

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from ponor_spark.decode.schema import schema_of
from ponor_spark.jobs.audit.findings import PROBLEMS_MAX, PartitionFindings, added_up, first_problems
from ponor_spark.jobs.audit.row_digest import COLUMNS, digest_batch, digest_row, total

ROWS = st.lists(
    st.tuples(
        st.integers(0, 1 << 40),
        st.integers(-1, 1 << 41),
        st.none() | st.binary(max_size=8),
        st.none() | st.binary(max_size=8),
        st.none()
        | st.lists(st.tuples(st.text(max_size=4), st.none() | st.binary(max_size=4)), min_size=1, max_size=3),
    ),
    max_size=8,
)


def part(*covered: tuple[int, int], holes: int = 0) -> PartitionFindings:
    found = PartitionFindings("t", 3, rows=1, digest=5)
    for start, end in covered:
        found.cover(start, end)
    if holes:
        found.hole(covered[0][0], holes)
    return found


def concluded(
    *parts: PartitionFindings, start: int = 0, end: int = 30, compacted: bool = False
) -> PartitionFindings:
    [found] = added_up(parts).values()
    found.conclude(start, end, compacted=compacted)
    return found


def test_pieces_of_several_tasks_are_whole_in_any_order() -> None:
    found = concluded(part((20, 30)), part((0, 5), (5, 11)), part((11, 20)))
    assert found.problems == []
    assert (found.rows, found.digest) == (3, 15)


def test_missing_and_duplicate_offsets_are_named() -> None:
    found = concluded(part((2, 10)), part((8, 12)), part((15, 28)))
    assert found.problems == [
        "t-3: offsets 0 to 1 are in no batch",
        "t-3: offsets 8 to 9 are in more than one batch",
        "t-3: offsets 12 to 14 are in no batch",
        "t-3: offsets 28 to 29 are in no batch",
    ]


def test_holes_are_a_problem_unless_the_topic_is_compacted() -> None:
    assert concluded(part((0, 30), holes=4), compacted=True).problems == []
    assert "4 offsets, the first near 0, have no record" in concluded(part((0, 30), holes=4)).problems[0]


def test_problems_are_bounded_and_counted() -> None:
    many = PartitionFindings("t", 3)
    for number in range(3 * PROBLEMS_MAX):
        many.problem(str(number))
    [found] = added_up([many, many]).values()
    assert len(found.problems) == PROBLEMS_MAX
    assert found.problem_count == 6 * PROBLEMS_MAX
    assert first_problems([found], 3) == ["0", "1", "2"]


@given(ROWS, st.randoms(use_true_random=False))
def test_the_digest_of_a_batch_is_that_of_its_rows_in_any_order(
    rows: list[tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]] | None]],
    chance: random.Random,
) -> None:
    columns = {
        "offset": [row[0] for row in rows],
        "timestamp": [row[1] * 1000 for row in rows],
        "key": [row[2] for row in rows],
        "value": [row[3] for row in rows],
        "headers": [
            None if row[4] is None else [{"key": name, "value": value} for name, value in row[4]]
            for row in rows
        ],
    }
    batch = pa.RecordBatch.from_pydict(columns, schema=schema_of(COLUMNS))
    shuffled = list(rows)
    chance.shuffle(shuffled)
    assert digest_batch(batch) == total(digest_row(*row) for row in shuffled)


def test_null_empty_and_moved_bytes_have_different_digests() -> None:
    rows = [
        (0, 0, None, None, None),
        (0, 0, b"", None, None),
        (0, 0, None, b"", None),
        (0, 0, b"ab", b"c", None),
        (0, 0, b"a", b"bc", None),
        (0, 0, None, None, [("", None)]),
        (0, 1, None, None, None),
        (1, 0, None, None, None),
    ]
    assert len({digest_row(*row) for row in rows}) == len(rows)
