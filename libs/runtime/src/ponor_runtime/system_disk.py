"""The real disk: POSIX files, `fdatasync`, directory locks by `flock`.

What lives here: the loop's side of the `Disk` port. Every open file has a thread of its own (`disk_worker`) while it is open, so that
operations on one file run in the order called and a slow sync of one file never holds up another; calls on names share one more. The
system calls on an open file stand in `file_calls`.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Callable, Sequence
from pathlib import Path, PurePath
from typing import Any

from ponor_runtime.disk import Buffer
from ponor_runtime.disk_worker import DiskWorker, DiskWorkerPool
from ponor_runtime.file_calls import FileCalls, WriteChunks


class SystemDisk:
    """`Disk` on the machine's file systems."""

    def __init__(self) -> None:
        self._pool = DiskWorkerPool()
        self._names: DiskWorker | None = None
        self._chunks = WriteChunks()

    async def open(self, path: PurePath, *, create: bool = False, uncached: bool = False) -> SystemFile:
        worker = self._pool.bind()
        chunks = self._chunks if uncached else None
        opening = worker.submit(FileCalls, path, create, chunks)
        try:
            calls = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(lambda done: self._abandon(done, worker))
            raise
        except BaseException:
            self._pool.give_back(worker)
            raise
        return SystemFile(calls, worker, self._pool)

    def _abandon(self, opened: asyncio.Future[FileCalls], worker: DiskWorker) -> None:
        # The caller was cancelled while the file was being opened: nobody else will close it.
        if not opened.cancelled() and opened.exception() is None:
            opened.result().close()
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
    """`DiskFile` on the calls of one open file and the thread bound to it."""

    __slots__ = ("_calls", "_closed", "_pool", "_worker")

    def __init__(self, calls: FileCalls, worker: DiskWorker, pool: DiskWorkerPool) -> None:
        self._calls = calls
        self._worker = worker
        self._pool = pool
        self._closed = False

    async def size(self) -> int:
        return await self._worker.submit(self._open_calls().size)

    async def read(self, position: int, length: int) -> bytes:
        return await self._worker.submit(self._open_calls().read, position, length)

    async def write(self, position: int, buffers: Sequence[Buffer]) -> None:
        await self._worker.submit(self._open_calls().write, position, buffers)

    async def sync(self) -> None:
        await self._worker.submit(self._open_calls().sync)

    async def write_sync(self, position: int, buffers: Sequence[Buffer]) -> None:
        await self._worker.submit(self._open_calls().write_sync, position, buffers)

    def write_sync_then(
        self, position: int, buffers: Sequence[Buffer], done: Callable[[BaseException | None], None]
    ) -> None:
        calls = self._open_calls()
        self._worker.submit_then(lambda error, _: done(error), calls.write_sync, position, buffers)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        closing = self._worker.submit(self._calls.close)
        self._pool.give_back(self._worker)
        await closing

    def _open_calls(self) -> FileCalls:
        if self._closed:
            raise ValueError("this file was closed")
        return self._calls


class SystemDiskLock:
    """A held `flock`; the kernel releases it when the process ends."""

    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


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
