"""The real disk: POSIX files, `fdatasync`, directory locks by `flock`.

What lives here: the system calls behind the `Disk` port. Every open file has a thread of its own (`disk_worker`) while it is open, so
that operations on one file run in the order called and a slow sync of one file never holds up another; calls on names share one more.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Callable, Sequence
from pathlib import Path, PurePath
from typing import Any, Final

from ponor_runtime.disk import Buffer
from ponor_runtime.disk_worker import DiskWorker, DiskWorkerPool

IOVECS_MAX: Final = 1024
"""Linux refuses more buffers in one pwritev (IOV_MAX)."""


class SystemDisk:
    """`Disk` on the machine's file systems."""

    def __init__(self) -> None:
        self._pool = DiskWorkerPool()
        self._names: DiskWorker | None = None

    async def open(self, path: PurePath, *, create: bool = False) -> SystemFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if create else 0)
        worker = self._pool.bind()
        opening = worker.submit(os.open, path, flags, 0o644)
        try:
            descriptor = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(lambda done: self._abandon(done, worker))
            raise
        except BaseException:
            self._pool.give_back(worker)
            raise
        return SystemFile(descriptor, worker, self._pool)

    def _abandon(self, opened: asyncio.Future[int], worker: DiskWorker) -> None:
        # The caller was cancelled while the file was being opened: nobody else will close it.
        if not opened.cancelled() and opened.exception() is None:
            os.close(opened.result())
        self._pool.give_back(worker)

    async def exists(self, path: PurePath) -> bool:
        return bool(await self._on_names(os.path.exists, path))

    async def list(self, directory: PurePath) -> list[str]:
        return sorted(await self._on_names(os.listdir, directory))

    async def make_directories(self, directory: PurePath) -> None:
        await self._on_names(_make_directories, Path(directory))

    async def rename(self, source: PurePath, target: PurePath) -> None:
        await self._on_names(os.replace, source, target)

    async def link(self, source: PurePath, target: PurePath) -> None:
        await self._on_names(os.link, source, target)

    async def remove(self, path: PurePath) -> None:
        await self._on_names(os.unlink, path)

    async def sync_directory(self, directory: PurePath) -> None:
        await self._on_names(_sync_directory, directory)

    def lock(self, directory: PurePath) -> SystemDiskLock:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise BlockingIOError(error.errno, f"another process uses the directory {directory}") from None
        except BaseException:
            os.close(descriptor)
            raise
        return SystemDiskLock(descriptor)

    def close(self) -> None:
        """End the threads that serve no open file; for tests and orderly exits."""
        self._pool.stop_idle()
        if self._names is not None:
            self._names.stop()
            self._names = None

    def _on_names(self, function: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
        if self._names is None:
            self._names = DiskWorker("ponor-disk-names")
        return self._names.submit(function, *arguments)


class SystemFile:
    """`DiskFile` on a descriptor and the thread bound to it."""

    __slots__ = ("_closed", "_descriptor", "_pool", "_worker")

    def __init__(self, descriptor: int, worker: DiskWorker, pool: DiskWorkerPool) -> None:
        self._descriptor = descriptor
        self._worker = worker
        self._pool = pool
        self._closed = False

    async def size(self) -> int:
        return await self._worker.submit(_size, self._descriptor_open())

    async def read(self, position: int, length: int) -> bytes:
        return await self._worker.submit(_read, self._descriptor_open(), position, length)

    async def write(self, position: int, buffers: Sequence[Buffer]) -> None:
        await self._worker.submit(_write, self._descriptor_open(), position, buffers)

    async def sync(self) -> None:
        await self._worker.submit(os.fdatasync, self._descriptor_open())

    async def write_sync(self, position: int, buffers: Sequence[Buffer]) -> None:
        await self._worker.submit(_write_sync, self._descriptor_open(), position, buffers)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        closing = self._worker.submit(os.close, self._descriptor)
        self._pool.give_back(self._worker)
        await closing

    def _descriptor_open(self) -> int:
        if self._closed:
            raise ValueError("this file was closed")
        return self._descriptor


class SystemDiskLock:
    """A held `flock`; the kernel releases it when the process ends."""

    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _size(descriptor: int) -> int:
    return os.fstat(descriptor).st_size


def _read(descriptor: int, position: int, length: int) -> bytes:
    piece = os.pread(descriptor, length, position)
    if len(piece) in {0, length}:
        return piece
    pieces = [piece]
    read = len(piece)
    # A short read means the end of the file, or a limit of the kernel (2 GiB), or a signal: only zero bytes mean the end.
    while read < length and (piece := os.pread(descriptor, length - read, position + read)):
        pieces.append(piece)
        read += len(piece)
    return b"".join(pieces)


def _write(descriptor: int, position: int, buffers: Sequence[Buffer]) -> None:
    for first in range(0, len(buffers), IOVECS_MAX):
        group = buffers[first : first + IOVECS_MAX]
        size = sum(map(_bytes_of, group))
        written = os.pwritev(descriptor, group, position)
        if written < size:
            _write_rest(descriptor, position, b"".join(group), written)
        position += size


def _write_rest(descriptor: int, position: int, data: bytes, written: int) -> None:
    # Rare: a nearly full disk or a very large write. The next call either goes on or raises ENOSPC.
    view = memoryview(data)
    while written < len(view):
        written += os.pwrite(descriptor, view[written:], position + written)


def _write_sync(descriptor: int, position: int, buffers: Sequence[Buffer]) -> None:
    _write(descriptor, position, buffers)
    os.fdatasync(descriptor)


def _bytes_of(buffer: Buffer) -> int:
    return buffer.nbytes if isinstance(buffer, memoryview) else len(buffer)


def _sync_directory(directory: PurePath) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make_directories(directory: Path) -> None:
    missing: list[Path] = []
    present = directory
    while not present.exists():
        missing.append(present)
        present = present.parent
    if not present.is_dir():
        raise NotADirectoryError(f"{present} is a file; {directory} cannot be made below it")
    for path in reversed(missing):
        path.mkdir(exist_ok=True)
    for path in [directory, *(made.parent for made in missing)]:
        _sync_directory(path)
