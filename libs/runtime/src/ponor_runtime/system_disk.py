"""The disk port on POSIX files, `fdatasync`, and `flock` for directory locks.

Every open file has its own thread (`disk_worker`), so that operations on one file run in call order and a
slow sync of one file never delays another; operations on names (such as rename) share one more thread.
`file_calls` holds the system calls on an open file. Group commits use native AIO without a thread where the
kernel supports it (`kernel_writes`).
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path, PurePath
from typing import Any, TypeAlias, TypeVar

from ponor_runtime.disk import Buffer
from ponor_runtime.disk_worker import DiskWorker, DiskWorkerPool, Tell, settle
from ponor_runtime.file_calls import FileCalls, WriteChunks
from ponor_runtime.kernel_writes import WRITE_BYTES_MAX, KernelWrites

_T = TypeVar("_T")

_Call: TypeAlias = tuple[Tell, Callable[..., Any], tuple[Any, ...]]
"""Completion callback, function and its arguments."""


class SystemDisk:
    """`Disk` on the machine's file systems.

    Without `uses_kernel_writes` every write goes through a thread.
    """

    def __init__(self, *, uses_kernel_writes: bool = True) -> None:
        self._uses_kernel_writes = uses_kernel_writes
        self._kernel_writes: KernelWrites | None = None
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
        return SystemFile(calls, worker, self._pool, self._kernel_writes_of_loop() if uncached else None)

    def _kernel_writes_of_loop(self) -> KernelWrites | None:
        loop = asyncio.get_running_loop()
        if self._kernel_writes is None and self._uses_kernel_writes:
            try:
                self._kernel_writes = KernelWrites(loop)
            except OSError:
                self._uses_kernel_writes = False
        return (
            self._kernel_writes
            if self._kernel_writes is not None and self._kernel_writes.loop is loop
            else None
        )

    def _abandon(self, opened: asyncio.Future[FileCalls], worker: DiskWorker) -> None:
        # The caller was cancelled during the open and will not close the file.
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
        """Stop the threads and the AIO context. Call after all files are closed."""
        if self._kernel_writes is not None:
            self._kernel_writes.close()
            self._kernel_writes = None
        self._pool.stop_idle()
        if self._names is not None:
            self._names.stop()
            self._names = None

    def _on_names(self, function: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
        if self._names is None:
            self._names = DiskWorker("ponor-disk-names")
        return self._names.submit(function, *arguments)


class SystemFile:
    """`DiskFile` on one open file and its thread.

    A small synced write of an uncached file (a group commit) goes to the kernel without the thread if no
    other call is in progress. Later calls wait for it, which preserves the call order.
    """

    __slots__ = (
        "_behind",
        "_calls",
        "_closed",
        "_in_kernel",
        "_kernel_writes",
        "_on_thread",
        "_pool",
        "_worker",
    )

    def __init__(
        self,
        calls: FileCalls,
        worker: DiskWorker,
        pool: DiskWorkerPool,
        kernel_writes: KernelWrites | None,
    ) -> None:
        self._calls = calls
        self._worker = worker
        self._pool = pool
        self._kernel_writes = kernel_writes
        self._closed = False
        self._on_thread = 0  # unfinished calls on the thread
        self._in_kernel = False
        self._behind: list[_Call] = []

    async def size(self) -> int:
        return await self._run(self._open_calls().size)

    async def modified_at_ms(self) -> int:
        return await self._run(self._open_calls().modified_at_ms)

    async def read(self, position: int, length: int) -> bytes:
        return await self._run(self._open_calls().read, position, length)

    async def write(self, position: int, buffers: Sequence[Buffer]) -> None:
        await self._run(self._open_calls().write, position, buffers)

    async def sync(self) -> None:
        await self._run(self._open_calls().sync)

    async def write_sync(self, position: int, buffers: Sequence[Buffer]) -> None:
        await self._run(self._open_calls().write_sync, position, buffers)

    def write_sync_then(
        self, position: int, buffers: Sequence[Buffer], done: Callable[[BaseException | None], None]
    ) -> None:
        self._open_calls()
        if self._on_thread or self._in_kernel or not self._begin_in_kernel(position, buffers, done):
            self._write_sync_on_thread(position, buffers, done)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        closing: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def closed(error: BaseException | None, _: object) -> None:
            self._pool.give_back(self._worker)
            settle(closing, error, None)

        self._call(closed, self._calls.close)
        await closing

    def _open_calls(self) -> FileCalls:
        if self._closed:
            raise ValueError("this file was closed")
        return self._calls

    # The thread

    def _run(self, function: Callable[..., _T], *arguments: Any) -> asyncio.Future[_T]:
        future: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        self._call(partial(settle, future), function, *arguments)
        return future

    def _call(self, tell: Tell, function: Callable[..., Any], *arguments: Any) -> None:
        if self._in_kernel:
            self._behind.append((tell, function, arguments))
        else:
            self._on_thread += 1
            self._worker.submit_then(partial(self._called, tell), function, *arguments)

    def _called(self, tell: Tell, error: BaseException | None, result: object) -> None:
        self._on_thread -= 1
        tell(error, result)

    def _write_sync_on_thread(
        self, position: int, buffers: Sequence[Buffer], done: Callable[[BaseException | None], None]
    ) -> None:
        self._call(lambda error, _: done(error), self._calls.write_sync, position, buffers)

    # The kernel

    def _begin_in_kernel(
        self, position: int, buffers: Sequence[Buffer], done: Callable[[BaseException | None], None]
    ) -> bool:
        kernel_writes = self._kernel_writes
        size_bytes = sum(map(len, buffers))
        if kernel_writes is None or size_bytes > WRITE_BYTES_MAX:
            return False
        descriptor = self._calls.descriptor_for_kernel(position, size_bytes)
        if descriptor is None:
            return False

        def ended(result: int) -> None:
            self._in_kernel = False
            behind, self._behind = self._behind, []
            refused = result != size_bytes and self._not_written(result)
            if refused:
                self._write_sync_on_thread(position, buffers, done)
            for tell, function, arguments in behind:
                self._call(tell, function, *arguments)
            if not refused:
                done(None if result == size_bytes else OSError(-result, os.strerror(-result)))

        refusal = kernel_writes.begin(descriptor, position, buffers, ended)
        self._in_kernel = not refusal
        if refusal not in {0, errno.EAGAIN}:
            self._kernel_writes = None  # the kernel would refuse later writes as well
        return self._in_kernel

    def _not_written(self, result: int) -> bool:
        """Whether to write the same bytes again on the thread, because the kernel refused them or wrote only
        a part.
        """
        self._calls.forget_synced()
        if -result in {errno.EINVAL, errno.EOPNOTSUPP}:
            self._kernel_writes = None
        return result >= 0 or -result in {errno.EAGAIN, errno.EINVAL, errno.EOPNOTSUPP}


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
        raise NotADirectoryError(f"cannot create directory {directory}: {present} is a file")
    for path in reversed(missing):
        path.mkdir(exist_ok=True)
    for path in [directory, *(made.parent for made in missing)]:
        _sync_directory(path)
