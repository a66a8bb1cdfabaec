"""The disk port: files whose durability is explicit.

Rules that every implementation keeps (libs/runtime/tests/disk_conformance.py checks them):
- What `write` was given may be lost or torn at 512-byte sectors by a crash until `sync` returned; then it stays.
- A created, linked, renamed or removed name may be undone by a crash until `sync_directory` returned.
- An error from `sync` or `write` is fatal for the caller: nobody may retry it (fsync semantics lost in 2018's "fsyncgate").
Paths are absolute. A file has one user at a time per operation kind; operations on one file are executed in the order called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import PurePath
from typing import Protocol, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview
"""A memoryview is one of bytes."""

SECTOR_BYTES = 512
"""Writes are atomic at this size and alignment, and at no other."""


class DiskFile(Protocol):
    """An open file."""

    async def size(self) -> int:
        """Length in bytes."""
        ...

    async def modified_at_ms(self) -> int:
        """When it was written last, by the machine's wall clock. Only to tell the old from the new."""
        ...

    async def read(self, position: int, length: int) -> bytes:
        """Up to `length` bytes; fewer at the end of the file."""
        ...

    async def write(self, position: int, buffers: Sequence[Buffer]) -> None:
        """Write all buffers one after the other from `position` on. Not durable yet."""
        ...

    async def sync(self) -> None:
        """Make every write that was completed before this call durable (fdatasync)."""
        ...

    async def write_sync(self, position: int, buffers: Sequence[Buffer]) -> None:
        """`write`, then `sync`, in one step: one thread hop on a real disk."""
        ...

    def write_sync_then(
        self, position: int, buffers: Sequence[Buffer], done: Callable[[BaseException | None], None]
    ) -> None:
        """`write_sync` without a task: `done` is called in the loop's thread, never from within this call, with None or the error.

        The buffers must not change before that.
        """
        ...

    async def close(self) -> None:
        """Release the file; does not sync."""
        ...


class DiskLock(Protocol):
    """A lock on a directory, held until released or until the process ends."""

    def release(self) -> None:
        """Let others in."""
        ...


class Disk(Protocol):
    """A tree of files.

    Raises (all operations): `FileNotFoundError`, `FileExistsError`, and `OSError` with ENOSPC or EIO where they apply.
    """

    async def open(self, path: PurePath, *, create: bool = False, uncached: bool = False) -> DiskFile:
        """Open for reading and writing. With `create` the file must not exist yet.

        `uncached` is a hint and changes no rule: what is written will not be read soon, and should pass by the machine's cache where
        it can (writes that begin at a sector).
        """
        ...

    async def exists(self, path: PurePath) -> bool:
        """Whether a file or directory has this name."""
        ...

    async def list(self, directory: PurePath) -> list[str]:
        """Names in a directory, sorted."""
        ...

    async def make_directories(self, directory: PurePath) -> None:
        """Make a directory and its parents durable; no error if it is there."""
        ...

    async def rename(self, source: PurePath, target: PurePath) -> None:
        """Give a file another name, replacing what has that name."""
        ...

    async def link(self, source: PurePath, target: PurePath) -> None:
        """Give a file a second name; `FileExistsError` if it is taken: the create-only step of the directory store."""
        ...

    async def remove(self, path: PurePath) -> None:
        """Remove a name."""
        ...

    async def sync_directory(self, directory: PurePath) -> None:
        """Make the names in a directory durable."""
        ...

    def lock(self, directory: PurePath) -> DiskLock:
        """Take the directory for this process.

        Raises:
            BlockingIOError: another process has it.
        """
        ...
