"""Tests of the driver's reads: one GET per index where possible, retries of transient errors, errors that
name the object.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from ponor_runtime.disk import Buffer
from ponor_runtime.object_store import ObjectStoreRefusedError, ObjectStoreUnavailableError
from ponor_spark.errors import ClusterUnreachableError, PonorSparkError, StoredDataError
from ponor_spark.index_cache import IndexCache
from ponor_spark.object_indexes import TAIL_BYTES_MIN, ObjectIndexes, ObjectPlace, place_of
from ponor_spark.object_reading import ReadRetry
from ponor_spark.object_source import DirectorySource

from spark.tests.stored_snapshots import NAMESPACE, Store, Written

LOG = 100


class Watched:
    """A directory that counts reads and fails a given number of times."""

    def __init__(self, directory: Path, failures: list[Exception] | None = None) -> None:
        self._source = DirectorySource(directory)
        self._failures = failures or []
        self._lock = threading.Lock()
        self.reads: list[tuple[int, int]] = []

    def get(self, key: str, position: int, size_bytes: int) -> Buffer:
        with self._lock:
            self.reads.append((position, size_bytes))
            if self._failures:
                raise self._failures.pop()
        return self._source.get(key, position, size_bytes)


def place(store: Store) -> ObjectPlace:
    return place_of((NAMESPACE,), store.pieces[LOG][0])


def reading(source: Watched, pause: Callable[[float], None] = lambda _: None) -> ObjectIndexes:
    return ObjectIndexes(source, lease_id=7, retry=ReadRetry(attempts_max=3), pause=pause)


def test_an_index_is_one_read_and_the_second_time_none(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put((LOG, [Written(offset, 1) for offset in range(5)]))
    source = Watched(tmp_path)
    with reading(source) as indexes:
        (first,) = indexes.read([place(store)])
        (again,) = indexes.read([place(store)])
    assert again is first
    assert len(source.reads) == 1
    assert [entry.end_offset for entry in first] == [5]


def assert_set(event: threading.Event) -> None:
    assert event.wait(60)


def test_concurrent_requests_for_an_index_share_one_read(tmp_path: Path) -> None:
    """An object like that of many partitions' streams."""
    store = Store(tmp_path)
    store.put((LOG, [Written(0, 1)]))
    source = Watched(tmp_path, [ObjectStoreUnavailableError("503")])
    others_ask = threading.Event()
    with reading(source, lambda _: assert_set(others_ask)) as indexes:
        found = indexes.read([place(store)] * 50)
        first_of_them = threading.Timer(0.05, others_ask.set)
        first_of_them.start()
        assert len({id(each) for each in found}) == 1
        first_of_them.join()
    assert len(source.reads) == 2, "one that failed, and one"
    assert indexes.read_count == 1


def test_search_reads_ahead_at_most_what_it_has_consumed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for number in range(300):
        store.put((LOG, [Written(number, 1)]))
    places = [place_of((NAMESPACE,), each) for each in store.pieces[LOG]]
    source = Watched(tmp_path)
    with reading(source) as indexes:
        search = indexes.read(places, until_found=True)
        for _ in range(10):
            next(search)
        del search
    assert 10 <= len(source.reads) <= 20
    source = Watched(tmp_path)
    with reading(source) as indexes:
        found = list(indexes.read(places, until_found=True))
    assert [index[0].start_offset for index in found] == list(range(300))
    assert len(source.reads) == 300


def test_cache_is_bounded_and_shared_between_plannings(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for number in range(4):
        store.put((LOG, [Written(number, 1)]))
    places = [place_of((NAMESPACE,), each) for each in store.pieces[LOG]]
    with reading(Watched(tmp_path)) as indexes:
        size_bytes = next(indexes.read(places)).memory_bytes
    cache = IndexCache(3 * size_bytes)
    for asked, reads in ((places[:3], 3), (places[:3], 0), (places[3:], 1), (places[:1], 1), (places[2:], 0)):
        source = Watched(tmp_path)
        with ObjectIndexes(source, lease_id=7, cache=cache) as indexes:
            assert [index.key for index in indexes.read(asked)] == [each.key for each in asked]
        assert len(source.reads) == reads
    nothing = IndexCache(size_bytes - 1)
    with ObjectIndexes(Watched(tmp_path), lease_id=7, cache=nothing) as indexes:
        assert len(list(indexes.read(places))) == 4
    assert nothing.get(places[0].key) is None


def test_a_long_index_is_two_reads(tmp_path: Path) -> None:
    store = Store(tmp_path, block_bytes_max=1)
    store.put((LOG, [Written(offset, 1) for offset in range(100)]))
    source = Watched(tmp_path)
    with reading(source) as indexes:
        (index,) = indexes.read([place(store)])
        (block,) = indexes.read_blocks([(index.key, index[42])])
    assert len(index) == 100
    assert [size for _, size in source.reads[:2]] == [TAIL_BYTES_MIN, 100 * 64]
    assert [record.base_offset for record in block.records_from(0)] == [42]


def test_transient_errors_are_retried(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put((LOG, [Written(0, 1)]))
    pauses: list[float] = []
    source = Watched(tmp_path, [ObjectStoreUnavailableError("503"), ObjectStoreUnavailableError("503")])
    with reading(source, pauses.append) as indexes:
        (index,) = indexes.read([place(store)])
    assert len(index) == 1
    assert pauses == [0.1, 0.2]


def break_off(data: bytes) -> bytes:
    return data[:-1]


def flip(data: bytes) -> bytes:
    return data[:-60] + bytes([data[-60] ^ 1]) + data[-59:]


@pytest.mark.parametrize("damage", [break_off, flip])
def test_a_damaged_object_is_named(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    store = Store(tmp_path)
    path = store.path_of(store.put((LOG, [Written(0, 1)])))
    path.write_bytes(damage(path.read_bytes()))
    with (
        reading(Watched(tmp_path)) as indexes,
        pytest.raises(
            StoredDataError, match=rf"object is damaged: {place(store).key}, .*ponor object verify"
        ),
    ):
        list(indexes.read([place(store)]))


@pytest.mark.parametrize(
    ("error", "line", "reads"),
    [
        (
            ObjectStoreRefusedError("403 for bucket b"),
            "object store refused the request: 403 for bucket b; give the driver a role",
            1,
        ),
        (ObjectStoreUnavailableError("timed out"), "cannot be read after 3 attempts: timed out", 3),
    ],
)
def test_failing_store_is_named(tmp_path: Path, error: Exception, line: str, reads: int) -> None:
    store = Store(tmp_path)
    store.put((LOG, [Written(0, 1)]))
    source = Watched(tmp_path, [error] * 5)
    with reading(source) as indexes, pytest.raises(ClusterUnreachableError) as caught:
        list(indexes.read([place(store)]))
    assert line in str(caught.value)
    assert isinstance(caught.value, PonorSparkError)
    assert len(source.reads) == reads
