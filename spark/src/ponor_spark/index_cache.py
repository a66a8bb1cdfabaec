"""Indexes of objects that were read, within a bound of bytes: the least recently used one goes first.

What lives here: keeping, for whoever reads the same objects again: the two ends of a range in time, or the micro-batches of a stream that go through one large object. Objects never change, so what is kept is never
wrong. Reading is `object_indexes`.
"""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock  # noqa: TID251 - shared by the threads that read
from typing import Final

from s3stream.objects.index import ObjectIndex

CACHE_BYTES_MAX: Final = 64 << 20


class IndexCache:
    """By key of the object, from any thread."""

    def __init__(self, bytes_max: int = CACHE_BYTES_MAX) -> None:
        self._bytes_max: Final = bytes_max
        self._lock: Final = Lock()
        self._kept: OrderedDict[str, ObjectIndex] = OrderedDict()
        self._bytes = 0

    def get(self, key: str) -> ObjectIndex | None:
        """What is kept of an object."""
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
            return found

    def keep(self, index: ObjectIndex) -> None:
        """One that is larger than the bound alone is not kept."""
        with self._lock:
            if index.key not in self._kept:
                self._kept[index.key] = index
                self._bytes += index.memory_bytes
            while self._bytes > self._bytes_max:
                self._bytes -= self._kept.popitem(last=False)[1].memory_bytes
