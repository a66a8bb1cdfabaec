"""Tests of planning without indexes: an object that is requested entirely goes to a task unread, and the task
reads what planning would have planned.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from ponor_runtime.disk import Buffer
from ponor_spark.errors import SnapshotExpiredError, StoredDataError
from ponor_spark.object_reading import ObjectReader, ReadRetry
from ponor_spark.object_source import DirectorySource
from ponor_spark.offsets import OffsetRange
from ponor_spark.option_values import INT64_MAX
from ponor_spark.packing import RUN_BYTES_MAX
from ponor_spark.planning import plan
from ponor_spark.pushdown import PushedFilters
from ponor_spark.snapshot import SegmentSlice, Snapshot
from ponor_spark.split import ObjectRun, Split, TailSplit, WholeObject
from ponor_spark.split_reading import read_split

from spark.tests.stored_batches import Kept, stored_batch
from spark.tests.stored_snapshots import LEASE, TOPIC, Store, Written, options, partition_of

LOG = 100
OTHER = 101
EACH = 10


class Counted:
    """A directory that records reads."""

    def __init__(self, directory: Path) -> None:
        self._source = DirectorySource(directory)
        self._lock = threading.Lock()
        self.keys: list[str] = []

    def get(self, key: str, position: int, size_bytes: int) -> Buffer:
        with self._lock:
            self.keys.append(key)
        return self._source.get(key, position, size_bytes)


def batches(start: int) -> list[Written]:
    """Ten records, one per batch."""
    return [
        Written(offset, 1, offset, stored_batch([Kept(0, offset, b"%d" % offset, b"x")], base_offset=offset))
        for offset in range(start, start + EACH)
    ]


def snapshot_of(store: Store, objects: int) -> Snapshot:
    for number in range(objects):
        store.put((LOG, batches(number * EACH)))
    return store.snapshot(partition_of([SegmentSlice(LOG, 0, objects * EACH, 0)]))


def whole(start: int, end: int) -> list[OffsetRange]:
    return [OffsetRange(TOPIC, 0, start, end)]


def runs_of(splits: Sequence[Split | TailSplit]) -> list[ObjectRun | WholeObject]:
    return [run for split in splits if isinstance(split, Split) for run in split.runs]


def offsets_of(splits: Sequence[Split | TailSplit]) -> list[int]:
    return [
        offset
        for split in splits
        for batch in read_split(split, ["offset"])
        for offset in batch.column("offset").to_pylist()
    ]


def test_objects_that_are_wanted_as_they_are_are_not_looked_into(tmp_path: Path) -> None:
    snapshot, source = snapshot_of(Store(tmp_path), 20), Counted(tmp_path)
    splits = plan(snapshot, whole(0, 200), PushedFilters(), options(split_bytes=5_000), source=source)
    assert source.keys == []
    assert len(splits) > 2
    assert all(isinstance(run, WholeObject) for run in runs_of(splits))
    assert offsets_of(splits) == list(range(200))
    for split in splits:
        assert isinstance(split, Split)
        reading = Counted(tmp_path)
        for _ in read_split(split, ["offset"], source=reading):
            pass
        assert len(reading.keys) == len(split.runs), "index and blocks of an object come by one GET"


def test_the_ends_of_a_range_are_looked_into(tmp_path: Path) -> None:
    snapshot, source = snapshot_of(Store(tmp_path), 20), Counted(tmp_path)
    splits = plan(snapshot, whole(5, 195), PushedFilters(offset_range=(0, 188)), options(), source=source)
    assert len(source.keys) == 2
    assert offsets_of(splits) == list(range(5, 188))


def test_an_object_that_holds_other_streams_is_looked_into_once_for_all_its_partitions(
    tmp_path: Path,
) -> None:
    store, source = Store(tmp_path), Counted(tmp_path)
    for number in range(3):
        store.put((LOG, batches(number * EACH)), (OTHER, batches(number * EACH)))
    partitions = [
        partition_of([SegmentSlice(stream, 0, 30, 0)], number=number)
        for number, stream in enumerate((LOG, OTHER))
    ]
    ranges = [OffsetRange(TOPIC, number, 0, 30) for number in (0, 1)]
    splits = plan(store.snapshot(*partitions), ranges, PushedFilters(), options(), source=source)
    assert len(source.keys) == 3
    assert offsets_of(splits) == [*range(30), *range(30)]


def test_a_bound_on_time_looks_into_all(tmp_path: Path) -> None:
    snapshot = snapshot_of(Store(tmp_path), 10)
    since, until = Counted(tmp_path), Counted(tmp_path)
    filters = PushedFilters(time_range_ms=(95, INT64_MAX))
    assert offsets_of(plan(snapshot, whole(0, 100), filters, options(), source=since)) == list(range(95, 100))
    assert len(since.keys) == 10
    filters = PushedFilters(time_range_ms=(-INT64_MAX - 1, 5))
    assert offsets_of(plan(snapshot, whole(0, 100), filters, options(), source=until)) == list(range(5))
    assert len(until.keys) == 10, "only entries tell which objects hold nothing but later records"


def test_objects_are_looked_into_where_splits_are_to_be_equal(tmp_path: Path) -> None:
    store, source = Store(tmp_path, block_bytes_max=1), Counted(tmp_path)
    snapshot = snapshot_of(store, 4)
    splits = plan(snapshot, whole(0, 40), PushedFilters(), options(min_partitions=40), source=source)
    assert len(splits) == 40
    assert len(source.keys) == 4
    store.put((LOG, [Written(offset, 1, 0, bytes(10_000)) for offset in range(40, 60)]))
    snapshot, source = store.snapshot(partition_of([SegmentSlice(LOG, 0, 60, 0)])), Counted(tmp_path)
    splits = plan(snapshot, whole(0, 60), PushedFilters(), options(min_partitions=4), source=source)
    assert len(source.keys) == 1, "the large one alone is cut"
    sizes = [split.size_bytes for split in splits if isinstance(split, Split)]
    assert len(sizes) == 4
    assert max(sizes) <= 1.5 * sum(sizes) / 4


def test_an_object_that_is_more_than_one_get_is_looked_into(tmp_path: Path) -> None:
    store, source = Store(tmp_path), Counted(tmp_path)
    store.put((LOG, [Written(offset, 1, 0, bytes(1 << 20)) for offset in range(16)]))
    snapshot = store.snapshot(partition_of([SegmentSlice(LOG, 0, 16, 0)]))
    (split,) = plan(snapshot, whole(0, 16), PushedFilters(), options(), source=source)
    assert len(source.keys) == 1
    assert isinstance(split, Split)
    assert max(run.size_bytes for run in split.runs) <= RUN_BYTES_MAX


def test_task_verifies_the_object_against_the_metadata(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put((LOG, batches(0)))
    store.pieces[LOG][0] = store.pieces[LOG][0]._replace(end_offset=EACH + 1)
    snapshot = store.snapshot(partition_of([SegmentSlice(LOG, 0, EACH + 1, 0)]))
    splits = plan(snapshot, whole(0, EACH + 1), PushedFilters(), options())
    with pytest.raises(StoredDataError, match="ends at offset 10 of stream 100, the metadata says 11"):
        offsets_of(splits)


def test_missing_object_names_the_lease(tmp_path: Path) -> None:
    store = Store(tmp_path)
    splits = plan(snapshot_of(store, 1), whole(0, EACH), PushedFilters(), options())
    store.path_of(store.pieces[LOG][0].object_id).unlink()
    with pytest.raises(SnapshotExpiredError, match=f"snapshot lease {LEASE} is over.*snapshotTtl"):
        offsets_of(splits)


def break_off(data: bytes) -> bytes:
    return data[:-1]


def flip_in(position: int) -> Callable[[bytes], bytes]:
    def flip(data: bytes) -> bytes:
        at = len(data) + position if position < 0 else position
        return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]

    return flip


@pytest.mark.parametrize(
    ("damage", "rule"),
    [
        (break_off, "footer magic"),
        (flip_in(-30), "footer CRC32C"),
        (flip_in(-60), "index CRC32C"),
        (flip_in(50), "position 0: the block's bytes do not match its CRC32C in the index"),
    ],
)
def test_a_damaged_object_is_asked_for_again_and_then_named(
    tmp_path: Path, damage: Callable[[bytes], bytes], rule: str
) -> None:
    store, source = Store(tmp_path), Counted(tmp_path)
    (split,) = plan(snapshot_of(store, 1), whole(0, EACH), PushedFilters(), options())
    path = store.path_of(store.pieces[LOG][0].object_id)
    path.write_bytes(damage(path.read_bytes()))
    assert isinstance(split, Split)
    reader = ObjectReader(source, lease_id=LEASE, retry=ReadRetry(attempts_max=3), pause=lambda _: None)
    with pytest.raises(StoredDataError, match=rf"{split.runs[0].key} cannot be read \(3 attempts\).*{rule}"):
        list(reader.runs(split.runs))
    assert len(source.keys) == 3
