"""LRU cache of object indexes, bounded by bytes.

It serves repeated reads of the same objects: the two ends of a time range, or micro-batches of a stream
within one large object. Objects never change, so entries are never stale. `object_indexes` reads the indexes.
"""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock  # noqa: TID251 - shared by the threads that read
from typing import Final

from s3stream.objects.index import ObjectIndex

CACHE_BYTES_MAX: Final = 64 << 20


class IndexCache:
    """Maps object keys to indexes. Thread-safe."""

    def __init__(self, bytes_max: int = CACHE_BYTES_MAX) -> None:
        self._bytes_max: Final = bytes_max
        self._lock: Final = Lock()
        self._kept: OrderedDict[str, ObjectIndex] = OrderedDict()
        self._bytes = 0

    def get(self, key: str) -> ObjectIndex | None:
        """Return the cached index of an object, or None."""
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
            return found

    def keep(self, index: ObjectIndex) -> None:
        """Cache an index, unless it alone exceeds the bound."""
        with self._lock:
            if index.key not in self._kept:
                self._kept[index.key] = index
                self._bytes += index.memory_bytes
            while self._bytes > self._bytes_max:
                self._bytes -= self._kept.popitem(last=False)[1].memory_bytes
