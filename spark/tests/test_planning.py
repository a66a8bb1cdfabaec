"""Tests of planning: splits contain exactly the requested offsets, each once, for any layout of objects;
uncovered ranges are errors.
"""

from __future__ import annotations

import pickle
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ponor_spark.clip import AbortedRange, Clip
from ponor_spark.errors import SnapshotExpiredError, StoredDataError
from ponor_spark.offsets import OffsetRange
from ponor_spark.option_values import INT64_MAX
from ponor_spark.options import Options, Tail
from ponor_spark.packing import RUN_BYTES_MAX
from ponor_spark.planning import plan
from ponor_spark.pushdown import INT64_MIN, PushedFilters
from ponor_spark.snapshot import PartitionSnapshot, SegmentSlice, Snapshot
from ponor_spark.split import Split, TailSplit
from ponor_spark.split_reading import read_split
from s3stream.records import TIMESTAMP_MIN

from spark.tests.stored_batches import Kept, stored_batch
from spark.tests.stored_snapshots import (
    LEASE,
    TOPIC,
    TOPIC_ID,
    Store,
    Written,
    blocks_of,
    options,
    partition_of,
    records_of,
)

LOG = 100
CLEANED = 200


def run_of(offsets: int, *, start: int = 0, timestamps: Sequence[int] | None = None) -> list[Written]:
    """Records of one offset each."""
    times = timestamps or [1_000 + start + number for number in range(offsets)]
    return [Written(start + number, 1, times[number]) for number in range(offsets)]


@dataclass
class Layout:
    """Content of a case: the snapshot, and every Kafka offset with the timestamp bounds of its record."""

    store: Store
    snapshot: Snapshot
    offsets: dict[tuple[int, int], tuple[int, int]]


def covered(store: Store, splits: Sequence[Split | TailSplit]) -> Counter[tuple[int, int]]:
    """Count how often each (partition, Kafka offset) is in a split."""
    found: Counter[tuple[int, int]] = Counter()
    for split in splits:
        assert isinstance(split, Split)
        assert split.size_bytes == sum(run.size_bytes for run in split.runs)
        for run in split.runs:
            clip = run.clip
            for record in records_of(store, run):
                for offset in range(record.base_offset, record.end_offset):
                    kafka = offset + run.kafka_shift
                    if clip.start_offset <= kafka < clip.end_offset:
                        found[clip.partition, kafka] += 1
    return found


@st.composite
def layouts(draw: st.DrawFn) -> tuple[int, list[tuple[list[list[Written]], list[list[Written]], int]]]:
    """Block size; for each partition the objects of its cleaned and its plain stream, and the Kafka offset at
    which the plain one begins.
    """

    def stream(start: int) -> list[list[Written]]:
        objects, offset = [], start
        for _ in range(draw(st.integers(1, 4))):
            records = []
            for _ in range(draw(st.integers(1, 6))):
                count = draw(st.integers(1, 3))
                time = draw(st.integers(0, 50))
                payload, spread = bytes(draw(st.integers(0, 60))), draw(st.none() | st.integers(0, 60))
                oldest = TIMESTAMP_MIN if spread is None else time - spread
                records.append(Written(offset, count, time, payload, oldest))
                offset += count
            objects.append(records)
        return objects

    partitions = []
    for _ in range(draw(st.integers(1, 3))):
        cleaned = stream(draw(st.integers(0, 5))) if draw(st.booleans()) else []
        plain = stream(draw(st.integers(0, 40)))
        partitions.append((cleaned, plain, draw(st.integers(0, 9))))
    return draw(st.sampled_from([1, 150, 512 << 10])), partitions


def write(
    directory: Path, drawn: tuple[int, list[tuple[list[list[Written]], list[list[Written]], int]]]
) -> Layout:
    """Put the objects; the last plain ones of all partitions share a set object."""
    block_bytes_max, partitions = drawn
    store = Store(directory, block_bytes_max)
    offsets: dict[tuple[int, int], tuple[int, int]] = {}
    snapshots: list[PartitionSnapshot] = []
    shared: list[tuple[int, Sequence[Written]]] = []
    for number, (cleaned, plain, first) in enumerate(partitions):
        segments: list[SegmentSlice] = []
        base = first
        for stream_id, objects in ((CLEANED + number, cleaned), (LOG + number, plain)):
            if not objects:
                continue
            start, end = objects[0][0].start, objects[-1][-1].end
            shift = base - start
            segments.append(SegmentSlice(stream_id, base, base + end - start, shift))
            base += end - start
            for at, records in enumerate(objects):
                for one in records:
                    for offset in range(one.start, one.end):
                        offsets[number, offset + shift] = (one.not_below_ms, one.timestamp_ms)
                if stream_id >= CLEANED or at < len(objects) - 1:
                    store.put((stream_id, records))
                else:
                    shared.append((stream_id, records))
        snapshots.append(partition_of(segments, number=number))
    store.put(*shared)
    return Layout(store, store.snapshot(*snapshots), offsets)


@settings(max_examples=60, deadline=None)
@given(drawn=layouts(), data=st.data())
def test_splits_hold_exactly_the_wanted_offsets_once(
    drawn: tuple[int, list[tuple[list[list[Written]], list[list[Written]], int]]], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        layout = write(Path(directory), drawn)
        ranges = []
        for each in layout.snapshot.partitions:
            bounds = st.integers(each.log_start_offset, each.committed_end_offset)
            start, end = sorted((data.draw(bounds), data.draw(bounds)))
            ranges.append(OffsetRange(TOPIC, each.partition, start, end))
        low, high = sorted((data.draw(st.integers(0, 60)), data.draw(st.integers(0, 60))))
        from_ms, to_ms = sorted((data.draw(st.integers(0, 60)), data.draw(st.integers(0, 60))))
        filters = PushedFilters(
            partitions=data.draw(st.none() | st.frozensets(st.integers(0, 2))),
            offset_range=(low, high) if data.draw(st.booleans()) else (INT64_MIN, INT64_MAX),
            time_range_ms=data.draw(
                st.sampled_from(
                    [(INT64_MIN, INT64_MAX), (from_ms, INT64_MAX), (INT64_MIN, to_ms), (from_ms, to_ms)]
                )
            ),
        )
        chosen = options(
            split_bytes=data.draw(st.sampled_from([1, 100, 400, 2_000, 1 << 20])),
            min_partitions=data.draw(st.none() | st.integers(1, 12)),
        )
        splits = plan(pickle.loads(pickle.dumps(layout.snapshot)), ranges, filters, chosen)
        found = covered(layout.store, pickle.loads(pickle.dumps(splits)))
        wanted = {
            (each.partition, offset)
            for each in ranges
            if filters.takes(TOPIC, each.partition)
            for offset in range(*filters.clip(each.start_offset, each.end_offset))
        }
        assert set(found.values()) <= {1}, "each once"
        assert set(found) <= wanted, "and no other"
        must = {
            each
            for each in wanted
            if layout.offsets[each][1] >= filters.time_range_ms[0]
            and layout.offsets[each][0] < filters.time_range_ms[1]
        }
        assert must <= set(found), "all of those that filters on time leave"
        if filters.time_range is None or drawn[0] == 1:
            assert set(found) == must, "and no more, where each record has a block of its own"
        assert len(splits) >= min(chosen.min_partitions or 0, len(found))
        whole = plan(layout.snapshot, ranges, filters, chosen, shares_blocks=False)
        assert covered(layout.store, whole) == found
        _check_shares(layout.store, whole, chosen)


def _check_shares(store: Store, splits: Sequence[Split | TailSplit], chosen: Options) -> None:
    """The requested number of splits if there are enough blocks; none exceeds one and a half shares, or a
    share and a block.
    """
    sizes = [split.size_bytes for split in splits if isinstance(split, Split)]
    runs = [run for split in splits if isinstance(split, Split) for run in split.runs]
    blocks = [block for run in runs for block in blocks_of(store, run)]
    assert len(splits) >= min(chosen.min_partitions or 0, len(blocks))
    if sizes:
        share = sum(sizes) / max(-(-sum(sizes) // chosen.split_bytes), chosen.min_partitions or 1)
        assert min(sizes) > 0
        assert max(sizes) <= share + max(share / 2, *(block.size_bytes for block in blocks), 0)


def test_splits_have_about_the_same_size_and_are_not_more_than_needed(tmp_path: Path) -> None:
    store = Store(tmp_path, block_bytes_max=1)
    records = [Written(offset, 1, 0, bytes(960)) for offset in range(1_000)]
    store.put((LOG, records[:400]))
    store.put((LOG, records[400:]))
    snapshot = store.snapshot(partition_of([SegmentSlice(LOG, 0, 1_000, 0)]))
    splits = plan(snapshot, [OffsetRange(TOPIC, 0, 0, 1_000)], PushedFilters(), options(split_bytes=100_000))
    assert [split.size_bytes for split in splits if isinstance(split, Split)] == [100_000] * 10
    many = plan(
        snapshot,
        [OffsetRange(TOPIC, 0, 0, 1_000)],
        PushedFilters(),
        options(split_bytes=1 << 30, min_partitions=8),
    )
    assert [split.size_bytes for split in many if isinstance(split, Split)] == [125_000] * 8


def test_more_splits_than_blocks_share_them(tmp_path: Path) -> None:
    """As for Spark's Kafka source, a small topic is also read by the requested number of tasks."""
    store = Store(tmp_path, block_bytes_max=1 << 20)
    store.put((LOG, run_of(90)))
    store.put((LOG, run_of(10, start=90)))
    snapshot = store.snapshot(partition_of([SegmentSlice(LOG, 0, 100, 0)]))
    wanted = [OffsetRange(TOPIC, 0, 5, 97)]
    splits = plan(snapshot, wanted, PushedFilters(), options(min_partitions=10))
    clips = [run.clip for split in splits if isinstance(split, Split) for run in split.runs]
    assert [each.start_offset for each in clips] == [5, *(each.end_offset for each in clips[:-1])]
    assert clips[-1].end_offset == 97
    assert len(clips) == 10
    assert max(each.end_offset - each.start_offset for each in clips) == 11
    assert len(plan(snapshot, wanted, PushedFilters(), options(min_partitions=1_000))) == 92
    assert len(plan(snapshot, wanted, PushedFilters(), options(min_partitions=10), shares_blocks=False)) == 2


def test_blocks_side_by_side_are_one_read_of_at_most_4_mib(tmp_path: Path) -> None:
    store = Store(tmp_path, block_bytes_max=1)
    store.put((LOG, [Written(offset, 1, 0, bytes((1 << 20) - 4096)) for offset in range(17)]))
    snapshot = store.snapshot(partition_of([SegmentSlice(LOG, 0, 17, 0)]))
    (split,) = plan(snapshot, [OffsetRange(TOPIC, 0, 0, 17)], PushedFilters(), options())
    assert isinstance(split, Split)
    assert [len(blocks_of(store, run)) for run in split.runs] == [4, 4, 4, 4, 1]
    assert all(run.size_bytes <= RUN_BYTES_MAX for run in split.runs)


def test_a_block_of_nothing_but_older_records_is_not_read(tmp_path: Path) -> None:
    store = Store(tmp_path, block_bytes_max=1)
    store.put((LOG, run_of(4, timestamps=[10, 40, 20, 50])))
    snapshot = store.snapshot(partition_of([SegmentSlice(LOG, 0, 4, 0)]))
    filters = PushedFilters(time_range_ms=(40, 45))
    (split,) = plan(snapshot, [OffsetRange(TOPIC, 0, 0, 4)], filters, options())
    assert isinstance(split, Split)
    assert [entry.start_offset for run in split.runs for entry in blocks_of(store, run)] == [1, 3]
    assert split.time_range_ms == (40, 45), "the decoder and Spark filter the remainder"


def test_a_segment_of_nothing_but_older_records_costs_no_read(tmp_path: Path) -> None:
    store = Store(tmp_path)
    old = store.put((LOG, run_of(3)))
    store.put((LOG, run_of(3, start=3, timestamps=[90, 91, 92])))
    store.path_of(old).unlink()
    segments = [SegmentSlice(LOG, 0, 3, 0, max_timestamp_ms=60), SegmentSlice(LOG, 3, 6, 0)]
    snapshot = store.snapshot(partition_of(segments))
    (split,) = plan(
        snapshot, [OffsetRange(TOPIC, 0, 0, 6)], PushedFilters(time_range_ms=(61, INT64_MAX)), options()
    )
    assert covered(store, [split]) == Counter({(0, 3): 1, (0, 4): 1, (0, 5): 1})


def test_missing_object_names_the_lease(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.path_of(store.put((LOG, run_of(3)))).unlink()
    snapshot = store.snapshot(partition_of([SegmentSlice(LOG, 0, 3, 0)]))
    with pytest.raises(SnapshotExpiredError, match=f"snapshot lease {LEASE} is over.*snapshotTtl"):
        plan(snapshot, [OffsetRange(TOPIC, 0, 0, 2)], PushedFilters(), options())


def test_object_that_contradicts_the_metadata_is_an_error(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put((LOG, run_of(3)))
    store.pieces[LOG][0] = store.pieces[LOG][0]._replace(end_offset=5)
    snapshot = store.snapshot(partition_of([SegmentSlice(LOG, 0, 5, 0)]))
    with pytest.raises(StoredDataError, match="ends at offset 3 of stream 100, the metadata says 5"):
        plan(snapshot, [OffsetRange(TOPIC, 0, 1, 5)], PushedFilters(), options())


def test_range_without_an_object_is_an_error(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put((LOG, run_of(3)))
    snapshot = store.snapshot(partition_of([SegmentSlice(LOG, 0, 5, 0)]))
    with pytest.raises(StoredDataError, match="names no object for offset 3"):
        plan(snapshot, [OffsetRange(TOPIC, 0, 0, 5)], PushedFilters(), options())


def test_aborted_transactions_go_with_the_runs_that_they_touch_under_read_committed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put((LOG, run_of(5)))
    store.put((LOG, run_of(5, start=5)))
    aborted = (AbortedRange(7, 1, 3), AbortedRange(8, 20, 21))
    snapshot = store.snapshot(partition_of([SegmentSlice(LOG, 0, 10, 0)], aborted=aborted))
    wanted = [OffsetRange(TOPIC, 0, 2, 10)]
    (split,) = plan(snapshot, wanted, PushedFilters(), options(read_committed=True))
    assert isinstance(split, Split)
    assert {run.aborted for run in split.runs} == {(AbortedRange(7, 1, 3),)}
    (split,) = plan(snapshot, wanted, PushedFilters(), options())
    assert isinstance(split, Split)
    assert {run.aborted for run in split.runs} == {()}


def test_the_tail_begins_where_the_objects_end(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put((LOG, run_of(5)))
    snapshot = store.snapshot(partition_of([SegmentSlice(LOG, 0, 5, 0)])).with_tails({(TOPIC, 0): 9})
    chosen = options(tail=Tail.BROKER)
    objects, tail = plan(snapshot, [OffsetRange(TOPIC, 0, 3, 9)], PushedFilters(offset_range=(0, 8)), chosen)
    assert covered(store, [objects]) == Counter({(0, 3): 1, (0, 4): 1})
    assert tail == TailSplit(Clip(TOPIC, 0, 5, 8), TOPIC_ID, ("leader:9092",), LEASE)
    (alone,) = plan(snapshot, [OffsetRange(TOPIC, 0, 6, 9)], PushedFilters(), chosen)
    assert isinstance(alone, TailSplit)
    assert alone.clip == Clip(TOPIC, 0, 6, 9)


def test_block_may_begin_with_remains_of_an_earlier_cleaning(tmp_path: Path) -> None:
    """By the arithmetic of the next segment, its Kafka offsets would be below 0."""
    store = Store(tmp_path)
    first = Written(0, 30, 5, stored_batch([Kept(29, 5, b"old", b"x")], base_offset=0))
    second = Written(30, 9, 5, stored_batch([Kept(0, 5, b"kept", b"x")], base_offset=8))
    store.put((CLEANED, [first, second]))
    snapshot = store.snapshot(partition_of([SegmentSlice(CLEANED, 0, 9, -30)]))
    (split,) = plan(snapshot, [OffsetRange(TOPIC, 0, 0, 9)], PushedFilters(), options())
    (batch,) = read_split(split, ["offset", "key"])
    assert batch.to_pydict() == {"offset": [8], "key": [b"kept"]}


def test_nothing_to_read_is_no_split(tmp_path: Path) -> None:
    snapshot = Store(tmp_path).snapshot(partition_of([]))
    assert plan(snapshot, [], PushedFilters(), options()) == []
