"""The data movements of a compaction: blocks from the store into a buffer, and puts and parts from the
buffer.

Each block is checked in the buffer against the CRC32C of its index entry. No record is decoded. The buffer is
reused for every iteration and task (`block_memory.py`). Uploads send the checked bytes from the buffer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, Protocol

from crc32c import crc32c
from ponor_runtime.disk import Buffer
from ponor_runtime.object_store import (
    MultipartStore,
    MultipartUpload,
    ObjectStore,
    ObjectStoreError,
    UploadedPart,
)
from ponor_runtime.turns import Steps, in_turns

from s3stream.compaction.plan import PlannedRead
from s3stream.compaction.sources import ObjectLocation
from s3stream.errors import ObjectCorruptError
from s3stream.objects.reader import READ_TRIES_MAX
from s3stream.stores.reads_in_place import get_into

BYTES_PER_STEP: Final = 4 * 1024 * 1024
"""Bytes checked in one turn of the event loop, about a millisecond."""


class Throttle(Protocol):
    """Consulted before every call to the store; may delay the call. A server-side copy counts as a
    write of 0 bytes.
    """

    async def before_read(self, size_bytes: int) -> None:
        """Return when a call may read this many bytes."""
        ...

    async def before_write(self, size_bytes: int) -> None:
        """Return when a call may write this many bytes."""
        ...


class Unthrottled:
    """`Throttle` without limits."""

    async def before_read(self, size_bytes: int) -> None:
        """Return immediately."""

    async def before_write(self, size_bytes: int) -> None:
        """Return immediately."""


class BlockReader:
    """Executes planned reads with bounded concurrency."""

    def __init__(
        self,
        store: ObjectStore,
        sources: Sequence[ObjectLocation],
        throttle: Throttle,
        *,
        reads_in_flight_max: int,
        on_moved: Callable[[int], None],
    ) -> None:
        self._store = store
        self._sources = sources
        self._throttle = throttle
        self._places = asyncio.Semaphore(reads_in_flight_max)
        self._on_moved = on_moved

    async def read(self, reads: Iterable[PlannedRead], memory: memoryview) -> None:
        """Read all blocks into their places.

        Raises:
            ObjectNotFoundError: a source was deleted.
            ObjectCorruptError: a block did not match its index entry in any attempt.
            ObjectStoreError: the store failed.
        """
        await all_of(self._read(read, memory) for read in reads)

    async def _read(self, read: PlannedRead, memory: memoryview) -> None:
        async with self._places:
            await self._throttle.before_read(read.size_bytes)
            for tries_left in reversed(range(READ_TRIES_MAX)):
                try:
                    await self._read_once(read, memory)
                except ObjectCorruptError:
                    if not tries_left:
                        raise
                else:
                    break
        self._on_moved(read.size_bytes)

    async def _read_once(self, read: PlannedRead, memory: memoryview) -> None:
        key = self._sources[read.source].key
        found_bytes = await get_into(self._store, key, read.position, _places(read, memory))
        if found_bytes != read.size_bytes:
            raise ObjectCorruptError(
                f"{key}, position {read.position}: block length: {found_bytes} bytes instead of"
                f" {read.size_bytes}"
            )
        await in_turns(_checking(key, read, memory))


def _places(read: PlannedRead, memory: memoryview) -> list[memoryview]:
    """Return the target slices of a read. Blocks that are adjacent in both the source and the
    buffer share one slice.
    """
    ends: list[tuple[int, int]] = []
    for entry, place in read.blocks:
        start = ends.pop()[0] if ends and ends[-1][1] == place else place
        ends.append((start, place + entry.size_bytes))
    return [memory[start:end] for start, end in ends]


def _checking(key: str, read: PlannedRead, memory: memoryview) -> Steps[None]:
    checked_bytes = 0
    for entry, place in read.blocks:
        if crc32c(memory[place : place + entry.size_bytes]) != entry.crc:
            raise ObjectCorruptError(
                f"{key}, position {entry.position}: block CRC32C: the bytes do not match the CRC in the index"
            )
        checked_bytes += entry.size_bytes
        if checked_bytes >= BYTES_PER_STEP:
            checked_bytes = 0
            yield


class PartUploads:
    """Writes outputs with bounded concurrency, and keeps track of open multipart uploads."""

    def __init__(
        self,
        store: ObjectStore,
        multipart: MultipartStore,
        throttle: Throttle,
        *,
        uploads_in_flight_max: int,
        on_moved: Callable[[int], None],
    ) -> None:
        self._store = store
        self._multipart = multipart
        self._throttle = throttle
        self._places = asyncio.Semaphore(uploads_in_flight_max)
        self._on_moved = on_moved
        self._open: dict[str, MultipartUpload] = {}
        self._parts: dict[str, list[UploadedPart]] = {}

    async def put(self, key: str, buffers: Sequence[Buffer]) -> None:
        """Put a whole object in one call."""
        async with self._places:
            await self._throttle.before_write(sum(map(len, buffers)))
            await self._store.put(key, buffers)

    async def begin(self, key: str) -> None:
        """Create the object's multipart upload unless it is open."""
        if key not in self._open:
            await self._throttle.before_write(0)
            self._open[key] = await self._multipart.create_multipart(key)
            self._parts[key] = []

    async def upload(self, key: str, number: int, buffers: Sequence[Buffer]) -> None:
        """Upload a part from memory."""
        async with self._places:
            await self._throttle.before_write(sum(map(len, buffers)))
            self._parts[key].append(await self._multipart.upload_part(self._open[key], number, buffers))

    async def copy(self, key: str, number: int, source_key: str, start: int, size_bytes: int) -> None:
        """Copy a part within the store."""
        async with self._places:
            await self._throttle.before_write(0)
            part = await self._multipart.upload_part_copy(
                self._open[key], number, source_key, start, size_bytes
            )
            self._parts[key].append(part)
        self._on_moved(size_bytes)

    async def complete(self, key: str, size_bytes: int) -> None:
        """Complete the object from its parts."""
        parts = self._parts[key]
        assert sum(part.size_bytes for part in parts) == size_bytes, (
            "the parts do not add up to the size of the object"
        )
        await self._throttle.before_write(0)
        await self._multipart.complete_multipart(self._open[key], parts)
        del self._open[key], self._parts[key]

    async def abort(self) -> None:
        """Abort all open uploads. If the store fails to abort one, garbage collection aborts it."""
        for upload in self._open.values():
            try:
                await self._multipart.abort_multipart(upload)
            except ObjectStoreError:
                continue
        self._open.clear()


async def all_of(calls: Iterable[Awaitable[None]]) -> None:
    """Run coroutines concurrently. If one fails, cancel the others and raise its error."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
