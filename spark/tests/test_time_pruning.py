"""Tests of filters on `timestamp`: skipped blocks contain no matching row, for any knowledge of smallest
timestamps; and blocks are skipped.
"""

from __future__ import annotations

import operator
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ponor_kafka.compression import Codec
from ponor_kafka.record_batch import BatchView
from ponor_spark.jobs.audit.split_audit import audit_split
from ponor_spark.offsets import OffsetRange
from ponor_spark.planning import plan
from ponor_spark.pushdown import PushedFilters, split_filters
from ponor_spark.snapshot import SegmentSlice, Snapshot
from ponor_spark.split import Split
from ponor_spark.split_reading import read_split
from s3stream.records import TIMESTAMP_MIN

from spark.tests.stored_batches import Kept, Kind, stored_batch
from spark.tests.stored_snapshots import TOPIC, Store, Written, blocks_of, options, partition_of
from spark.tests.test_pushdown import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    LessThan,
    LessThanOrEqual,
)
from tests.examples import examples

LOG: Final = 100
T0: Final = 1_700_000_000_000
DAY_MS: Final = 86_400_000
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
TRUTHS: Final[dict[Any, Callable[[int, int], bool]]] = {
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
}
timestamps = st.one_of(
    st.integers(T0, T0 + 20),
    st.integers(T0, T0 + 20),
    st.integers(-20, 20),
    st.just(-1),
    st.integers(T0 - 100 * DAY_MS, T0 + 100 * DAY_MS),
)
kinds = st.sampled_from([Kind(), Kind(Codec.LZ4), Kind(append_time=T0 + 5)])


class Batch(NamedTuple):
    """Timestamps in record order, and how the smallest is recorded: exactly, as a lower bound, or not at
    all.
    """

    within: list[int]
    kind: Kind
    told_below_by_ms: int | None


batches = st.builds(
    Batch,
    st.lists(timestamps, min_size=1, max_size=4),
    kinds,
    st.none() | st.sampled_from([0, 0, 0, 3, 60 * DAY_MS]),
)
comparisons = st.lists(
    st.tuples(st.sampled_from(list(TRUTHS)), timestamps, st.sampled_from([0, 0, 0, 1, -1, 999])),
    min_size=1,
    max_size=3,
)


def written(offset: int, each: Batch) -> tuple[Written, list[int]]:
    """A record of a stream, and the timestamps that a consumer sees in it."""
    seen = each.within if each.kind.append_time is None else [each.kind.append_time] * len(each.within)
    kept = [Kept(number, time, b"key", b"value") for number, time in enumerate(each.within)]
    data = stored_batch(kept, each.kind, base_offset=offset)
    told = TIMESTAMP_MIN if each.told_below_by_ms is None else min(seen) - each.told_below_by_ms
    newest = BatchView(memoryview(data)).max_timestamp
    return Written(offset, len(kept), newest, data, told), seen


def literal(time_us: int) -> datetime:
    return EPOCH + timedelta(microseconds=time_us)


def offsets_of(snapshot: Snapshot, end: int, filters: PushedFilters) -> list[int]:
    splits = plan(snapshot, [OffsetRange(TOPIC, 0, 0, end)], filters, options(split_bytes=300))
    return [
        offset
        for split in splits
        for batch in read_split(split, ["offset"])
        for offset in batch.column("offset").to_pylist()
    ]


@settings(max_examples=examples(150), deadline=None)
@given(
    drawn=st.lists(st.lists(batches, min_size=1, max_size=5), min_size=1, max_size=4),
    block_bytes_max=st.sampled_from([1, 300, 512 << 10]),
    comparisons=comparisons,
)
def test_skipped_blocks_have_no_matching_row(
    drawn: list[list[Batch]], block_bytes_max: int, comparisons: list[tuple[Any, int, int]]
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        store, times = Store(Path(directory), block_bytes_max), list[int]()
        for each in drawn:
            records: list[Written] = []
            for batch in each:
                record, seen = written(len(times), batch)
                records.append(record)
                times += seen
            store.put((LOG, records))
        snapshot = store.snapshot(partition_of([SegmentSlice(LOG, 0, len(times), 0)]))
        literals = [(kind, time * 1000 + more) for kind, time, more in comparisons]
        pushed, _ = split_filters([kind(("timestamp",), literal(value)) for kind, value in literals])
        assert offsets_of(snapshot, len(times), PushedFilters()) == list(range(len(times)))
        assert offsets_of(snapshot, len(times), pushed) == [
            offset
            for offset, time in enumerate(times)
            if all(TRUTHS[kind](time * 1000, value) for kind, value in literals)
        ]


def test_audit_finds_rows_below_their_bound(tmp_path: Path) -> None:
    """One of two blocks has a wrong bound: a query up to 1970 would miss its record without a timestamp."""
    store = Store(tmp_path, block_bytes_max=1)
    fine, _ = written(0, Batch([T0, T0 - 5], Kind(Codec.LZ4), 0))
    wrong, _ = written(2, Batch([T0 + 9, -1, T0 + 5], Kind(), 0))
    store.put((LOG, [fine, wrong._replace(not_below_ms=T0 + 5)]))
    snapshot = store.snapshot(partition_of([SegmentSlice(LOG, 0, 5, 0)]))
    [split] = plan(snapshot, [OffsetRange(TOPIC, 0, 0, 5)], PushedFilters(), options())
    assert isinstance(split, Split)
    [found] = audit_split(split, with_digest=False)
    [problem] = found.problems
    assert problem.startswith(f"t-0: 1 rows of the block at offset 2 are earlier than {T0 + 5} ms")
    assert found.rows == 5


def in_blocks(store: Store, end: int, time_range_ms: tuple[int, int]) -> list[int]:
    """Return the start offsets of a plan's blocks."""
    snapshot = store.snapshot(partition_of([SegmentSlice(LOG, 0, end, 0)]))
    pushed = PushedFilters(time_range_ms=time_range_ms)
    splits = plan(snapshot, [OffsetRange(TOPIC, 0, 0, end)], pushed, options())
    assert all(isinstance(split, Split) for split in splits)
    return [
        entry.start_offset
        for split in splits
        if isinstance(split, Split)
        for run in split.runs
        for entry in blocks_of(store, run)
    ]


@pytest.mark.parametrize(
    ("time_range_ms", "starts"),
    [
        ((TIMESTAMP_MIN, 10), [3]),
        ((TIMESTAMP_MIN, 11), [0, 3]),
        ((TIMESTAMP_MIN, 20), [0, 3]),
        ((TIMESTAMP_MIN, 21), [0, 1, 3]),
        ((21, 25), [1, 3]),
        ((31, 32), [2, 3]),
        ((41, 50), []),
        ((TIMESTAMP_MIN, 1 << 62), [0, 1, 2, 3]),
    ],
)
def test_a_block_of_nothing_but_later_records_is_not_read(
    tmp_path: Path, time_range_ms: tuple[int, int], starts: list[int]
) -> None:
    """[10, 20], [20, 30], [30, 40], and up to 40 with an unknown start."""
    store = Store(tmp_path, block_bytes_max=1)
    told = (10, 20, 30, TIMESTAMP_MIN)
    store.put(
        (LOG, [Written(at, 1, min(20 + 10 * at, 40), b"x", not_below) for at, not_below in enumerate(told)])
    )
    assert in_blocks(store, 4, time_range_ms) == starts


def test_no_index_is_read_but_for_a_bound_on_time(tmp_path: Path) -> None:
    """One object of one stream goes to a task unread; with only an upper bound, its index is read first."""
    store = Store(tmp_path)
    gone = store.put((LOG, [Written(0, 1, 20, b"x", 10)]))
    assert in_blocks(store, 1, (TIMESTAMP_MIN, 10)) == []
    assert in_blocks(store, 1, (TIMESTAMP_MIN, 11)) == [0]
    snapshot = store.snapshot(partition_of([SegmentSlice(LOG, 0, 1, 0)]))
    store.path_of(gone).unlink()
    assert len(plan(snapshot, [OffsetRange(TOPIC, 0, 0, 1)], PushedFilters(), options())) == 1
