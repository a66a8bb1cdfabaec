"""The driver's reads of objects: indexes, in parallel with one ranged GET each, and single blocks.

The size of every object is known from the metadata, so the end of the object is fetched directly, with a
length estimated from the number of blocks that an object of this size may have. The number of reads in flight
is set for a store latency of 30 ms or more, so that ten thousand reads take about two seconds. `planning`
chooses the objects and `index_cache` keeps the indexes.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from itertools import islice
from threading import Lock  # noqa: TID251 - shared by the threads that read
from typing import Final, NamedTuple, Self, TypeVar

from ponor_runtime.disk import Buffer
from ponor_runtime.identity import ObjectId
from ponor_runtime.object_store import (
    ObjectNotFoundError,
    ObjectStoreError,
    ObjectStoreRefusedError,
    ObjectStoreUnavailableError,
)
from ponor_runtime.turns import at_once
from s3stream.errors import ObjectCorruptError
from s3stream.objects.block import DataBlock, decode_block
from s3stream.objects.format import FOOTER_BYTES, BlockEntry
from s3stream.objects.index import ObjectIndex, decode_footer, index_steps
from s3stream.objects.keys import object_key, parse_object_key

from ponor_spark.errors import ClusterUnreachableError, PonorSparkError, StoredDataError, lease_over
from ponor_spark.index_cache import IndexCache
from ponor_spark.object_reading import ReadRetry
from ponor_spark.object_source import ObjectSource
from ponor_spark.snapshot import HeldPiece

R = TypeVar("R")
W = TypeVar("W")
INDEXES_IN_FLIGHT_MAX: Final = 256
"""Reads in flight, or completed and not consumed yet."""
BLOCKS_IN_FLIGHT_MAX: Final = 64
SEARCH_AHEAD_FIRST: Final = 4
"""Initial read-ahead of a search. It grows with the consumed reads, so that at most half are unused."""
TAIL_BYTES_MIN: Final = 4 << 10
TAIL_BYTES_PER_MIB: Final = 512
"""Eight index entries per MiB. Two are usual; only objects of very many small streams need a second GET."""


class ObjectPlace(NamedTuple):
    """Location of an object in the metadata."""

    key: str
    size_bytes: int


def place_of(namespaces: Sequence[str], piece: HeldPiece) -> ObjectPlace:
    """Return the location of a piece's object, with the snapshot's namespaces."""
    return ObjectPlace(object_key(namespaces[piece.namespace], ObjectId(piece.object_id)), piece.size_bytes)


class ObjectIndexes(AbstractContextManager["ObjectIndexes"]):
    """Object reads of one planning, in threads that block. Errors are `PonorSparkError` and name the
    object.
    """

    def __init__(
        self,
        source: ObjectSource,
        *,
        lease_id: int,
        cache: IndexCache | None = None,
        retry: ReadRetry | None = None,
        pause: Callable[[float], None] = time.sleep,  # noqa: TID251 - a thread of the driver waits
    ) -> None:
        """Create the reader; nothing is read yet.

        `lease_id` is for errors, `cache` may outlive the reader, `pause` waits for the given seconds.
        """
        self._source = source
        self._lease_id = lease_id
        self._retry = retry or ReadRetry()
        self._pause = pause
        self._pool = ThreadPoolExecutor(INDEXES_IN_FLIGHT_MAX, thread_name_prefix="ponor-index")
        self._cache = IndexCache() if cache is None else cache
        self._running: dict[str, Future[ObjectIndex]] = {}
        self.read_count = 0
        """Indexes fetched so far."""
        self._lock = Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def read(self, places: Iterable[ObjectPlace], *, until_found: bool = False) -> Iterator[ObjectIndex]:
        """Yield the index of each object in the given order, with read-ahead; `until_found`: the caller may
        stop early.
        """
        first = SEARCH_AHEAD_FIRST if until_found else INDEXES_IN_FLIGHT_MAX
        return self._ahead(self._index, places, first, INDEXES_IN_FLIGHT_MAX)

    def read_blocks(self, wanted: Iterable[tuple[str, BlockEntry]]) -> Iterator[DataBlock]:
        """Yield the verified blocks of (key, entry) in the given order."""
        return self._ahead(self._block, wanted, BLOCKS_IN_FLIGHT_MAX, BLOCKS_IN_FLIGHT_MAX)

    def _ahead(self, read: Callable[[W], R], wanted: Iterable[W], first: int, most: int) -> Iterator[R]:
        """Read with a window that grows from `first` to `most` reads as results are consumed.

        Unconsumed reads are cancelled.
        """
        remaining = iter(wanted)
        waiting: deque[Future[R]] = deque()
        taken = 0
        try:
            while True:
                room = min(max(first, taken), most) - len(waiting)
                waiting.extend(self._pool.submit(read, each) for each in islice(remaining, room))
                if not waiting:
                    return
                yield waiting.popleft().result()
                taken += 1
        finally:
            for each in waiting:
                each.cancel()

    def _index(self, place: ObjectPlace) -> ObjectIndex:
        """Return the index from the cache, from a read in flight, or from the store."""
        with self._lock:
            found = self._cache.get(place.key)
            if found is not None:
                return found
            running = self._running.get(place.key)
            own = self._running[place.key] = Future() if running is None else running
        if running is not None:
            return running.result()
        try:
            found = self._read_with_retry(place.key, lambda: self._fetch_index(place))
            self._cache.keep(found)
            own.set_result(found)
            return found
        except BaseException as error:
            own.set_exception(error)
            raise
        finally:
            with self._lock:
                self.read_count += 1
                del self._running[place.key]

    def _fetch_index(self, place: ObjectPlace) -> ObjectIndex:
        key, size_bytes = place
        guess = min(size_bytes, TAIL_BYTES_MIN + (size_bytes >> 20) * TAIL_BYTES_PER_MIB)
        tail = memoryview(self._source.get(key, size_bytes - guess, guess))
        footer = decode_footer(key, parse_object_key(key)[1], tail, size_bytes)
        start = len(tail) - FOOTER_BYTES - footer.index_bytes
        encoded: Buffer = (
            tail[start : start + footer.index_bytes]
            if start >= 0
            else self._source.get(key, footer.index_position, footer.index_bytes)
        )
        return at_once(index_steps(key, footer, bytes(encoded)))

    def _block(self, wanted: tuple[str, BlockEntry]) -> DataBlock:
        key, entry = wanted
        return self._read_with_retry(
            key,
            lambda: decode_block(key, entry, bytes(self._source.get(key, entry.position, entry.size_bytes))),
        )

    def _read_with_retry(self, key: str, read: Callable[[], R]) -> R:
        failures = 0
        while True:
            try:
                return read()
            except (ObjectCorruptError, ObjectStoreError) as error:
                failures += 1
                passing = isinstance(error, ObjectStoreUnavailableError | ObjectCorruptError)
                if not passing or failures >= self._retry.attempts_max:
                    raise self._explained(key, error, failures) from error
            self._pause(self._retry.pause_ms(failures) / 1000)

    def _explained(self, key: str, error: Exception, failures: int) -> PonorSparkError:
        if isinstance(error, ObjectNotFoundError):
            return lease_over(self._lease_id, f"object {key} is gone")
        if isinstance(error, ObjectStoreRefusedError):
            return ClusterUnreachableError(
                f"object store refused the request: {error}; give the driver a role or AWS_* in its"
                " environment, and check the option store"
            )
        if isinstance(error, ObjectCorruptError):
            return StoredDataError(f"object is damaged: {error}; `ponor object verify {key}` shows details")
        return ClusterUnreachableError(
            f"object {key} cannot be read after {failures} attempts: {error}; check the object store and the"
            " option store"
        )
