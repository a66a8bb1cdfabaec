"""The disk port: files whose durability is explicit.

Rules for every implementation (checked by libs/runtime/tests/disk_conformance.py):
- Before `sync` returns, a crash may lose written bytes or tear them at 512-byte sectors. After it returns
  they are durable.
- Before `sync_directory` returns, a crash may undo a created, linked, renamed or removed name.
- An error from `sync` or `write` is fatal: the caller must not retry it (the kernel may have dropped the
  dirty pages and cleared the error; see "fsyncgate", PostgreSQL, 2018).

Paths are absolute. At most one caller at a time reads a file, and at most one writes it. Operations on one
file run in call order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import PurePath
from typing import Protocol, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview
"""A memoryview must have byte items."""

SECTOR_BYTES = 512
"""Writes are atomic only at this size and alignment."""


class DiskFile(Protocol):
    """An open file."""

    async def size(self) -> int:
        """Length in bytes."""
        ...

    async def modified_at_ms(self) -> int:
        """Time of the last write, by the machine's wall clock. Use it only to compare the ages of files."""
        ...

    async def read(self, position: int, length: int) -> bytes:
        """Return up to `length` bytes; fewer only at the end of the file."""
        ...

    async def write(self, position: int, buffers: Sequence[Buffer]) -> None:
        """Write all buffers consecutively from `position`. Not durable before `sync`."""
        ...

    async def sync(self) -> None:
        """Make every write that completed before this call durable (fdatasync)."""
        ...

    async def write_sync(self, position: int, buffers: Sequence[Buffer]) -> None:
        """Run `write`, then `sync`, with one thread hop on a real disk."""
        ...

    def write_sync_then(
        self, position: int, buffers: Sequence[Buffer], done: Callable[[BaseException | None], None]
    ) -> None:
        """Run `write_sync` without a task and call `done` with None or the error.

        `done` runs on the loop's thread, never from within this call. The buffers must not change before it
        runs.
        """
        ...

    async def close(self) -> None:
        """Release the file; does not sync."""
        ...


class DiskLock(Protocol):
    """A lock on a directory, held until released or until the process ends."""

    def release(self) -> None:
        """Release the lock."""
        ...


class Disk(Protocol):
    """A tree of files.

    Raises (all operations): `FileNotFoundError`, `FileExistsError`, and `OSError` with ENOSPC or EIO.
    """

    async def open(self, path: PurePath, *, create: bool = False, uncached: bool = False) -> DiskFile:
        """Open for reading and writing. With `create` the file must not exist yet.

        `uncached` is a hint that the data will not be read soon: sector-aligned writes bypass the page cache
        where possible. It does not change durability.
        """
        ...

    async def exists(self, path: PurePath) -> bool:
        """Whether a file or directory has this name."""
        ...

    async def list(self, directory: PurePath) -> list[str]:
        """Names in a directory, sorted."""
        ...

    async def make_directories(self, directory: PurePath) -> None:
        """Create a directory and its parents durably; no error if it exists."""
        ...

    async def rename(self, source: PurePath, target: PurePath) -> None:
        """Rename a file, replacing the target."""
        ...

    async def link(self, source: PurePath, target: PurePath) -> None:
        """Give a file a second name.

        Raises `FileExistsError` if the name is taken; the directory store therefore creates objects with this
        call.
        """
        ...

    async def remove(self, path: PurePath) -> None:
        """Remove a name."""
        ...

    async def sync_directory(self, directory: PurePath) -> None:
        """Make the names in a directory durable."""
        ...

    def lock(self, directory: PurePath) -> DiskLock:
        """Lock the directory for this process.

        Raises:
            BlockingIOError: another process holds the lock.
        """
        ...
