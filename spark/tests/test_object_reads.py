"""Tests of an executor's reads: order, read-ahead, verification, named errors, retries of transient
errors.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
from ponor_runtime.disk import Buffer
from ponor_runtime.identity import ObjectId, StreamEpoch, StreamId
from ponor_runtime.object_store import ObjectStoreRefusedError, ObjectStoreUnavailableError
from ponor_spark.clip import Clip
from ponor_spark.errors import ClusterUnreachableError, SnapshotExpiredError, StoredDataError
from ponor_spark.object_reading import RUNS_IN_FLIGHT_MAX, ObjectReader, ReadRetry
from ponor_spark.object_source import DirectorySource, ObjectSource, open_object_source
from ponor_spark.split import ObjectRun
from s3stream.objects.format import BlockEntry
from s3stream.objects.index import ObjectIndex, decode_footer, decode_index
from s3stream.objects.keys import object_key
from s3stream.objects.writer import ObjectWriter
from s3stream.records import StreamRecord

KEY = object_key("ponor-test", ObjectId(7))
LEASE = 4711
RECORDS = 40


def index_of(data: bytes) -> ObjectIndex:
    footer = decode_footer(KEY, ObjectId(7), data, len(data))
    return decode_index(KEY, footer, data[footer.index_position : footer.index_position + footer.index_bytes])


@pytest.fixture
def store(tmp_path: Path) -> tuple[Path, bytes]:
    """Return a directory store with one object of 40 blocks, and its bytes."""
    writer = ObjectWriter(ObjectId(7), block_bytes_max=1)
    for number in range(RECORDS):
        writer.add(StreamRecord(StreamId(3), StreamEpoch(0), number, 1, 1000 + number, bytes([number]) * 500))
    data = b"".join(writer.finish().buffers)
    path = tmp_path / "objects" / (KEY + ".object")
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    return tmp_path, data


def runs_of(data: bytes, *, blocks: int) -> list[ObjectRun]:
    """Return the object's blocks, that many per run."""
    entries = list(index_of(data))
    clip = Clip("t", 0, 0, RECORDS)
    return [
        ObjectRun(KEY, 0, group[0].position, sum(each.size_bytes for each in group), encoded(group), 0, clip)
        for group in (entries[at : at + blocks] for at in range(0, len(entries), blocks))
    ]


def encoded(entries: list[BlockEntry]) -> bytes:
    return b"".join(entry.encode() for entry in entries)


def reader(source: ObjectSource, **retry: int) -> ObjectReader:
    settings = ReadRetry(**retry) if retry else ReadRetry(attempts_max=3)
    return ObjectReader(source, lease_id=LEASE, retry=settings, pause=lambda _: None)


class Watched:
    """A source that counts reads in flight, and fails on request."""

    def __init__(
        self, inner: ObjectSource, failures: Iterable[Exception] = (), *, waits_for_another: bool = False
    ) -> None:
        self._inner = inner
        self._failures = iter(failures)
        self._lock = threading.Lock()
        self._two_were_under_way = threading.Event()
        if not waits_for_another:
            self._two_were_under_way.set()
        self.under_way = 0
        self.most_under_way = 0
        self.reads: Counter[int] = Counter()

    def get(self, key: str, position: int, size_bytes: int) -> Buffer:
        with self._lock:
            self.reads[position] += 1
            self.under_way += 1
            self.most_under_way = max(self.most_under_way, self.under_way)
            failure = next(self._failures, None)
            if self.under_way > 1:
                self._two_were_under_way.set()
        try:
            assert self._two_were_under_way.wait(240)
            time.sleep(0.001)
            if failure is not None:
                raise failure
            return self._inner.get(key, position, size_bytes)
        finally:
            with self._lock:
                self.under_way -= 1


@pytest.mark.parametrize("blocks", [1, 3, 7, 40])
def test_runs_come_in_order_and_whole(store: tuple[Path, bytes], blocks: int) -> None:
    directory, data = store
    runs = runs_of(data, blocks=blocks)
    source = open_object_source(f"file://{directory}")
    found = [bytes(block) for _, run in reader(source).runs(runs) for block in run]
    assert found == [data[each.position : each.position + each.size_bytes] for each in index_of(data)]


def test_no_more_reads_are_under_way_than_the_bound(store: tuple[Path, bytes]) -> None:
    directory, data = store
    source = Watched(DirectorySource(directory), waits_for_another=True)
    assert len(list(reader(source).runs(runs_of(data, blocks=1)))) == RECORDS
    assert 1 < source.most_under_way <= RUNS_IN_FLIGHT_MAX
    assert set(source.reads.values()) == {1}


def test_early_stop_reads_little(store: tuple[Path, bytes]) -> None:
    """A LIMIT: runs behind the window are never requested."""
    directory, data = store
    source = Watched(DirectorySource(directory))
    runs = reader(source).runs(runs_of(data, blocks=1))
    next(runs)
    runs.close()  # type: ignore[attr-defined]  # a generator
    assert sum(source.reads.values()) <= RUNS_IN_FLIGHT_MAX
    assert source.under_way == 0


@pytest.mark.parametrize(("bytes_max", "runs_held"), [(1, 2), (2_000, 2), (3_500, 3), (1 << 20, 6)])
def test_no_more_bytes_are_held_than_the_bound_and_one_run_is_fetched_ahead_whatever_its_size(
    store: tuple[Path, bytes], bytes_max: int, runs_held: int
) -> None:
    """The run being decoded counts; a run has about a kilobyte."""
    directory, data = store
    source = Watched(DirectorySource(directory))
    runs = runs_of(data, blocks=2)
    assert all(1_000 < run.size_bytes < 1_150 for run in runs)
    reading = ObjectReader(source, lease_id=LEASE, read_bytes_max=bytes_max).runs(runs)
    for done, _ in enumerate(reading):
        assert sum(source.reads.values()) <= min(done + runs_held, len(runs))
    assert sum(source.reads.values()) == len(runs)


def test_missing_directory_is_not_a_lost_object(tmp_path: Path, store: tuple[Path, bytes]) -> None:
    """An executor that does not see the driver's disk, or a wrong option store: no object was deleted."""
    _, data = store
    with pytest.raises(ClusterUnreachableError, match=r"elsewhere/objects: no such directory; it must exist"):
        list(reader(DirectorySource(tmp_path / "elsewhere")).runs(runs_of(data, blocks=1)))


def test_transient_errors_are_retried(store: tuple[Path, bytes]) -> None:
    directory, data = store
    failures = iter([ObjectStoreUnavailableError("overloaded"), ObjectStoreUnavailableError("again")])
    source = Watched(DirectorySource(directory), failures)
    assert len(list(reader(source).runs(runs_of(data, blocks=40)))) == 1
    assert sum(source.reads.values()) == 3


def test_unavailable_store_is_an_error_after_a_bound(store: tuple[Path, bytes]) -> None:
    directory, data = store
    failures = iter(lambda: ObjectStoreUnavailableError("overloaded"), None)
    source = Watched(DirectorySource(directory), failures)
    with pytest.raises(StoredDataError, match=rf"object {KEY} cannot be read \(3 attempts\): overloaded"):
        list(reader(source).runs(runs_of(data, blocks=40)))
    assert sum(source.reads.values()) == 3


def test_wrong_credentials_are_not_asked_again(store: tuple[Path, bytes]) -> None:
    directory, data = store
    source = Watched(DirectorySource(directory), iter([ObjectStoreRefusedError("403 from the store")]))
    with pytest.raises(ClusterUnreachableError, match=r"403 from the store.*AWS_"):
        list(reader(source).runs(runs_of(data, blocks=40)))
    assert sum(source.reads.values()) == 1


def test_missing_object_names_the_lease(store: tuple[Path, bytes]) -> None:
    directory, data = store
    (directory / "objects" / (KEY + ".object")).unlink()
    with pytest.raises(SnapshotExpiredError, match=rf"lease {LEASE} is over: object {KEY} is gone"):
        list(reader(DirectorySource(directory)).runs(runs_of(data, blocks=2)))


@pytest.mark.parametrize("position", [0, 39, 40, 539, 540, 20_000])
def test_flipped_bit_is_named_and_its_run_is_not_returned(store: tuple[Path, bytes], position: int) -> None:
    directory, data = store
    damaged = bytearray(data)
    damaged[position] ^= 1
    (directory / "objects" / (KEY + ".object")).write_bytes(damaged)
    block = next(e for e in index_of(data) if e.position <= position < e.position + e.size_bytes)
    with pytest.raises(StoredDataError, match=rf"position {block.position}: the block's bytes do not match"):
        list(reader(DirectorySource(directory)).runs(runs_of(data, blocks=40)))


def test_an_object_that_ends_early_is_an_error(store: tuple[Path, bytes]) -> None:
    directory, data = store
    (directory / "objects" / (KEY + ".object")).write_bytes(data[:1000])
    with pytest.raises(StoredDataError, match=r"1000 bytes arrived instead of 21600"):
        list(reader(DirectorySource(directory)).runs(runs_of(data, blocks=40)))


def test_pauses_double_up_to_a_bound() -> None:
    retry = ReadRetry(attempts_max=9, backoff_ms_first=100, backoff_ms_max=1_000)
    assert [retry.pause_ms(failures) for failures in (1, 2, 3, 4, 5, 64)] == [100, 200, 400, 800, 1000, 1000]


def test_a_url_of_no_store_says_which_there_are() -> None:
    with pytest.raises(ValueError, match="file:///DIR or s3://BUCKET"):
        open_object_source("gs://bucket")
