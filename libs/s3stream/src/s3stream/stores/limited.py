"""Bounds the calls in flight to a store, so that a burst of readers waits here and not in sockets and threads, and a store in trouble is asked for less."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final

from ponor_runtime.disk import Buffer
from ponor_runtime.object_store import ObjectInfo, ObjectStore
from ponor_runtime.telemetry import Telemetry

from s3stream.stores.congestion import CongestionWindow
from s3stream.stores.reads_in_place import get_into, reads_in_place

READS_IN_FLIGHT_MAX: Final = 64
WRITES_IN_FLIGHT_MAX: Final = 32


class LimitedObjectStore:
    """`ObjectStore` that lets a number of reads and a number of writes through at a time, in the order of the calls; fewer while the store is slow.

    Stands inside of the retries: who waits before a repetition holds no place. Listings are long and rare and are not counted.
    """

    def __init__(
        self,
        inner: ObjectStore,
        *,
        reads_in_flight_max: int = READS_IN_FLIGHT_MAX,
        writes_in_flight_max: int = WRITES_IN_FLIGHT_MAX,
        telemetry: Telemetry | None = None,
    ) -> None:
        self._inner = inner
        self._reads = CongestionWindow(reads_in_flight_max)
        self._writes = CongestionWindow(writes_in_flight_max)
        if telemetry is not None:
            telemetry.gauge("ponor_object_store_concurrency", lambda: self._reads.limit, **{"class": "read"})
            telemetry.gauge(
                "ponor_object_store_concurrency", lambda: self._writes.limit, **{"class": "write"}
            )

    async def put(self, key: str, buffers: Sequence[Buffer]) -> None:
        async with self._writes.place():
            await self._inner.put(key, buffers)

    async def get(self, key: str, start: int, length: int) -> bytes:
        async with self._reads.place():
            return await self._inner.get(key, start, length)

    @property
    def reads_in_place(self) -> bool:
        return reads_in_place(self._inner)

    async def get_into(self, key: str, start: int, places: Sequence[memoryview]) -> int:
        async with self._reads.place():
            return await get_into(self._inner, key, start, places)

    async def get_tail(self, key: str, length: int) -> tuple[bytes, int]:
        async with self._reads.place():
            return await self._inner.get_tail(key, length)

    async def delete(self, keys: Sequence[str]) -> None:
        async with self._writes.place():
            await self._inner.delete(keys)

    def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        return self._inner.list(prefix)

    async def close(self) -> None:
        await self._inner.close()
