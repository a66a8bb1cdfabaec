"""Bounded LRU cache of object indexes. Concurrent readers of one object share the GET that opens it."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, TypeAlias

from ponor_runtime.object_store import ObjectStore

from s3stream.errors import ObjectCorruptError
from s3stream.objects.index import ObjectIndex
from s3stream.objects.reader import READ_TRIES_MAX, OpenedObject, open_object

OnOpened: TypeAlias = Callable[[OpenedObject], Awaitable[None]]


class ObjectIndexCache:
    """Opens objects of one store and caches their indexes. An entry never becomes outdated, because
    objects are immutable.
    """

    def __init__(self, store: ObjectStore, *, bytes_max: int, on_opened: OnOpened | None = None) -> None:
        """Create an empty cache. `on_opened` receives every opened object with its fetched tail, which
        may contain blocks.
        """
        self._store = store
        self._on_opened = on_opened
        self._bytes_max: Final = bytes_max
        self._indexes: OrderedDict[str, ObjectIndex] = OrderedDict()
        self._opening: dict[str, asyncio.Task[ObjectIndex]] = {}
        self._held_bytes = 0

    @property
    def held_bytes(self) -> int:
        """Bytes of the cached indexes."""
        return self._held_bytes

    async def open(self, key: str, size_bytes: int, range_count: int = 0) -> ObjectIndex:
        """Return the verified index of an object. Its size and number of ranges (0: unknown) come from
        the metadata.

        Raises:
            ObjectNotFoundError: no such object.
            ObjectCorruptError: the object broke the format in every attempt.
            ObjectStoreError: the store failed.
        """
        index = self._indexes.get(key)
        if index is not None:
            self._indexes.move_to_end(key)
            return index
        opening = self._opening.get(key)
        if opening is None:
            opening = asyncio.create_task(self._open(key, size_bytes, range_count), name=f"open {key}")
            self._opening[key] = opening
            opening.add_done_callback(lambda done: self._opened(key, done))
        # Shielded, because other readers may wait for the same GET when this reader is cancelled.
        return await asyncio.shield(opening)

    def forget(self, key: str) -> None:
        """Remove the index of an object that the store no longer has."""
        index = self._indexes.pop(key, None)
        if index is not None:
            self._held_bytes -= index.memory_bytes

    async def close(self) -> None:
        """Cancel all GETs in flight."""
        opening = list(self._opening.values())
        for task in opening:
            task.cancel()
        await asyncio.gather(*opening, return_exceptions=True)

    async def _open(self, key: str, size_bytes: int, range_count: int) -> ObjectIndex:
        opened = await self._open_again_if_broken(key, size_bytes, range_count)
        if self._on_opened is not None:
            await self._on_opened(opened)
        return opened.index

    async def _open_again_if_broken(self, key: str, size_bytes: int, range_count: int) -> OpenedObject:
        for _ in range(READ_TRIES_MAX - 1):
            with suppress(ObjectCorruptError):
                return await open_object(self._store, key, size_bytes, range_count)
        return await open_object(self._store, key, size_bytes, range_count)

    def _opened(self, key: str, opening: asyncio.Task[ObjectIndex]) -> None:
        del self._opening[key]
        if opening.cancelled() or opening.exception() is not None:
            return
        index = opening.result()
        self._indexes[key] = index
        self._held_bytes += index.memory_bytes
        while self._held_bytes > self._bytes_max:
            _, dropped = self._indexes.popitem(last=False)
            self._held_bytes -= dropped.memory_bytes
