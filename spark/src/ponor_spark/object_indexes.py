"""The driver's reads of objects: their indexes, many at a time and one ranged GET each, and single blocks.

What lives here: the reads, their bound and their repetition; what was read is kept by an `index_cache`. Which objects are wanted is `planning`'s. The size of every object is
known from the metadata, so its end is fetched at once, sized by how many blocks an object of this size may have. There are as many reads in flight as an object store's answering time
(30 ms and more) asks for, where ten thousand of them may take two seconds.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from itertools import islice
from threading import Lock  # noqa: TID251 - shared by the threads that read
from types import TracebackType
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
"""Or fetched and not yet taken."""
BLOCKS_IN_FLIGHT_MAX: Final = 64
SEARCH_AHEAD_FIRST: Final = 4
"""Reads ahead of a search; they grow with what it has taken, so that half of them at most are in vain."""
TAIL_BYTES_MIN: Final = 4 << 10
TAIL_BYTES_PER_MIB: Final = 512
"""Eight blocks a MiB, where two are full; enough but for objects of very many small streams, which cost a second GET."""


class ObjectPlace(NamedTuple):
    """An object as the metadata has it."""

    key: str
    size_bytes: int


def place_of(namespaces: Sequence[str], piece: HeldPiece) -> ObjectPlace:
    """Where a piece of a snapshot with these namespaces lies."""
    return ObjectPlace(object_key(namespaces[piece.namespace], ObjectId(piece.object_id)), piece.size_bytes)


class ObjectIndexes(AbstractContextManager["ObjectIndexes"]):
    """Reads for one planning, from threads that wait for answers. Errors are `PonorSparkError` and name the object."""

    def __init__(
        self,
        source: ObjectSource,
        *,
        lease_id: int,
        cache: IndexCache | None = None,
        retry: ReadRetry | None = None,
        pause: Callable[[float], None] = time.sleep,  # noqa: TID251 - a thread of the driver waits
    ) -> None:
        """Nothing is read yet. `lease_id` is for errors, `cache` may be one that outlives this, `pause` waits so many seconds."""
        self._source = source
        self._lease_id = lease_id
        self._retry = retry or ReadRetry()
        self._pause = pause
        self._pool = ThreadPoolExecutor(INDEXES_IN_FLIGHT_MAX, thread_name_prefix="ponor-index")
        self._cache = IndexCache() if cache is None else cache
        self._running: dict[str, Future[ObjectIndex]] = {}
        self.read_count = 0
        """Indexes that were fetched so far."""
        self._lock = Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def read(self, places: Iterable[ObjectPlace], *, until_found: bool = False) -> Iterator[ObjectIndex]:
        """The index of each, in the order given, fetched ahead; `until_found`: by somebody who may stop early."""
        first = SEARCH_AHEAD_FIRST if until_found else INDEXES_IN_FLIGHT_MAX
        return self._ahead(self._index, places, first, INDEXES_IN_FLIGHT_MAX)

    def read_blocks(self, wanted: Iterable[tuple[str, BlockEntry]]) -> Iterator[DataBlock]:
        """Blocks of (key, entry), proven, in the order given."""
        return self._ahead(self._block, wanted, BLOCKS_IN_FLIGHT_MAX, BLOCKS_IN_FLIGHT_MAX)

    def _ahead(self, read: Callable[[W], R], wanted: Iterable[W], first: int, most: int) -> Iterator[R]:
        """A window that slides, from `first` reads to as many as were taken, `most` of them. What nobody takes is called off."""
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
        """What is kept, or what somebody fetches already, or from the store."""
        with self._lock:
            found = self._cache.get(place.key)
            if found is not None:
                return found
            running = self._running.get(place.key)
            own = self._running[place.key] = Future() if running is None else running
        if running is not None:
            return running.result()
        try:
            found = self._insist(place.key, lambda: self._fetch_index(place))
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
        return self._insist(
            key,
            lambda: decode_block(key, entry, bytes(self._source.get(key, entry.position, entry.size_bytes))),
        )

    def _insist(self, key: str, read: Callable[[], R]) -> R:
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
                f"object store refuses: {error}; give the driver a role or AWS_* in its environment, and check the option store"
            )
        if isinstance(error, ObjectCorruptError):
            return StoredDataError(f"object is damaged: {error}; `ponor object verify {key}` says more")
        return ClusterUnreachableError(
            f"object {key} cannot be read after {failures} attempts: {error}; check the object store and the option store"
        )
