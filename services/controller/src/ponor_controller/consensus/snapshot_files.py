"""Snapshot files on disk: list, read with verification, write in pieces, remove old ones."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import PurePath
from typing import Final

from ponor_runtime.clock import Clock
from ponor_runtime.disk import Disk, DiskFile
from ponor_runtime.durable_file import TEMPORARY_SUFFIX, remove_leftovers

from ponor_controller.consensus.errors import RESTORE_REMEDY, RecordLogCorruptError
from ponor_controller.consensus.snapshot_format import (
    DIGEST_BYTES,
    HEADER_BYTES_MAX,
    SnapshotHeader,
    decode_header,
    encode_header,
    header_bytes,
)

NAME_PREFIX: Final = "snapshot-"
PARTIAL_SUFFIX: Final = ".part"
"""Suffix of the file of a partially received snapshot. The file survives a restart."""
KEPT_SNAPSHOTS: Final = 2
"""A restart decodes the newest one. The older one is where the retained tail and its running digest begin."""
HASH_SLICE_BYTES: Final = 1024 * 1024
"""Bytes hashed in one step, which takes about a millisecond."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot with its body, an encoded image."""

    header: SnapshotHeader
    body: bytes


class SnapshotFiles:
    """The snapshots in one directory."""

    def __init__(self, disk: Disk, directory: PurePath) -> None:
        self._disk = disk
        self._directory = directory
        self._indices: list[int] = []
        # The snapshotter and the receiver of snapshots add and remove files concurrently.
        self._changing = asyncio.Lock()

    @property
    def indices(self) -> list[int]:
        """Indices of the existing files, oldest first."""
        return list(self._indices)

    async def open(self) -> None:
        """List the existing files.

        Raises:
            RecordLogCorruptError: a file has an invalid name.
        """
        await self._disk.make_directories(self._directory)
        await remove_leftovers(self._disk, self._directory)
        self._indices = []
        for name in await self._disk.list(self._directory):
            if name.endswith(PARTIAL_SUFFIX):
                continue
            digits = name.removeprefix(NAME_PREFIX)
            if digits == name or not digits.isdecimal():
                raise RecordLogCorruptError(
                    self._directory / name, 0, "the file name is not that of a snapshot", "move the file away"
                )
            self._indices.append(int(digits))
        self._indices.sort()

    async def read(self, index: int) -> Snapshot:
        """Read and verify one file.

        Raises:
            RecordLogCorruptError: a checksum or digest does not match.
        """
        path = self.path(index)
        file = await self._disk.open(path)
        try:
            header = decode_header(await file.read(0, HEADER_BYTES_MAX), path)
            if header.index != index:
                raise RecordLogCorruptError(
                    path,
                    16,
                    f"the header has index {header.index}, but the file name has {index}",
                    RESTORE_REMEDY,
                )
            begin = header_bytes(header.membership)
            # One read, because joining pieces would copy a body of about 100 MB again.
            body = await file.read(begin, max(0, await file.size() - begin))
        finally:
            await file.close()
        if len(body) != header.size_bytes:
            raise RecordLogCorruptError(
                path,
                begin,
                f"the body has {len(body)} bytes, not the {header.size_bytes} bytes in the header",
                RESTORE_REMEDY,
            )
        if blake2b(body, digest_size=DIGEST_BYTES).digest() != header.state_digest:
            raise RecordLogCorruptError(path, begin, "the digest of the body does not match", RESTORE_REMEDY)
        return Snapshot(header, body)

    async def read_range(self, header: SnapshotHeader, offset: int, length: int) -> bytes:
        """Read a piece of a body without verification; the receiver verifies the whole body.

        Raises:
            FileNotFoundError: the file was removed.
        """
        file = await self._disk.open(self.path(header.index))
        try:
            return await file.read(header_bytes(header.membership) + offset, length)
        finally:
            await file.close()

    async def write(self, header: SnapshotHeader, pieces: Iterable[bytes], clock: Clock) -> SnapshotHeader:
        """Add a file; durable when this returns. Each piece is handled in a separate turn of the event loop.

        Args:
            header: the header; `write` fills in state digest and size.
            pieces: pieces of the body, encoded one at a time while batches are applied.
            clock: yields between pieces.

        Returns:
            The complete header.

        Raises:
            OSError: the disk failed; the process must stop.
        """
        temporary = self.path(header.index).with_name(self.path(header.index).name + TEMPORARY_SUFFIX)
        if await self._disk.exists(temporary):
            await self._disk.remove(temporary)
        try:
            complete = await self._fill(temporary, header, pieces, clock)
        except OSError:
            with suppress(OSError):  # free the space of a full disk; any other error stops the process
                await self._disk.remove(temporary)
            raise
        await self.adopt(temporary, complete)
        return complete

    async def _fill(
        self, path: PurePath, header: SnapshotHeader, pieces: Iterable[bytes], clock: Clock
    ) -> SnapshotHeader:
        file = await self._disk.open(path, create=True)
        try:
            begin = header_bytes(header.membership)
            state_digest = blake2b(digest_size=DIGEST_BYTES)
            size_bytes = 0
            for piece in pieces:
                state_digest.update(piece)
                await file.write(begin + size_bytes, [piece])
                size_bytes += len(piece)
                await clock.sleep(0)
            complete = replace(header, state_digest=state_digest.digest(), size_bytes=size_bytes)
            await file.write_sync(0, [encode_header(complete)])
            return complete
        finally:
            await file.close()

    async def adopt(self, written: PurePath, header: SnapshotHeader) -> None:
        """Rename a complete and synced file; durable when this returns. Remove it if a snapshot of this index
        exists.
        """
        async with self._changing:
            if header.index in self._indices:
                await self._disk.remove(written)
                return
            await self._disk.rename(written, self.path(header.index))
            await self._disk.sync_directory(self._directory)
            self._indices.append(header.index)
            self._indices.sort()

    async def drop_old(self) -> None:
        """Remove all but the newest `KEPT_SNAPSHOTS`."""
        async with self._changing:
            while len(self._indices) > KEPT_SNAPSHOTS:
                await self._disk.remove(self.path(self._indices[0]))
                del self._indices[0]

    def path(self, index: int) -> PurePath:
        """Path of the snapshot at an index."""
        return self._directory / f"{NAME_PREFIX}{index:020d}"

    def partial_path(self, index: int, state_digest: bytes) -> PurePath:
        """Path of a partially received snapshot."""
        return self._directory / f"{NAME_PREFIX}{index:020d}-{state_digest.hex()}{PARTIAL_SUFFIX}"

    async def partials(self) -> list[PurePath]:
        """Paths of partially received snapshots."""
        names = await self._disk.list(self._directory)
        return [self._directory / name for name in names if name.endswith(PARTIAL_SUFFIX)]

    async def drop_old_partials(self) -> None:
        """Remove partially received snapshots that are not newer than the newest complete one."""
        newest = self.path(self._indices[-1]).name if self._indices else ""
        for path in await self.partials():
            if path.name[: len(newest)] <= newest:
                await self._disk.remove(path)

    async def open_file(self, path: PurePath) -> DiskFile:
        """Open a partial file; create it if necessary."""
        return await self._disk.open(path, create=not await self._disk.exists(path))

    async def remove(self, path: PurePath) -> None:
        """Remove a partial file."""
        await self._disk.remove(path)


async def body_digest(body: bytes, clock: Clock) -> bytes:
    """BLAKE2b-128 of a body, computed in steps of about a millisecond."""
    view = memoryview(body)
    digest = blake2b(digest_size=DIGEST_BYTES)
    for offset in range(0, len(body), HASH_SLICE_BYTES):
        digest.update(view[offset : offset + HASH_SLICE_BYTES])
        await clock.sleep(0)
    return digest.digest()
