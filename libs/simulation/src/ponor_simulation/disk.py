"""A simulated disk with delays, ordered operations, injected errors and loss of unsynced data.

The contents are in `disk_state`. Three rules are stricter than real disks: a write in flight is
applied in two parts; a power loss keeps any subset of the unsynced sectors and any prefix of the
unsynced name changes; after a failed sync the lost pages look clean, and no later sync writes them.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, NamedTuple

from ponor_runtime.disk import SECTOR_BYTES, Buffer

from ponor_simulation.chance import wall_ms_at
from ponor_simulation.disk_state import DirectoryState, DiskState, FileState
from ponor_simulation.loop import VirtualTimeLoop
from ponor_simulation.trace import Trace


class AfterCrashError(GeneratorExit):
    """Code of a crashed process used a file. The error is a `GeneratorExit`, so that Python prints no message
    when it ends a `finally` block.
    """


class FlippedBit(NamedTuple):
    """The place of a flipped bit; `position` in bytes."""

    path: str
    position: int
    bit: int


@dataclass(slots=True)
class DiskFault:
    """Failure of the next `count` operations of a kind on matching paths.

    Attributes:
        operation: `open`, `read`, `write`, `sync`, `rename`, `link`, `remove`, `sync_directory`.
        number: an errno.
        path_part: only paths that contain this.
        skip: this many matching operations succeed first.
        count: then this many fail.
    """

    operation: str
    number: int = errno.EIO
    path_part: str = ""
    skip: int = 0
    count: int = 1


@dataclass(slots=True)
class DiskSpeed:
    """Bounds of the duration of an operation, in seconds. One operation in a hundred takes up to `hiccup_s`
    longer.
    """

    read_s: tuple[float, float] = (0.00005, 0.0003)
    write_s: tuple[float, float] = (0.00005, 0.0005)
    sync_s: tuple[float, float] = (0.0002, 0.003)
    name_s: tuple[float, float] = (0.00005, 0.001)
    hiccup_s: float = 0.05


class SimDisk:
    """`Disk` of one simulated machine. It exists longer than the processes that use it."""

    def __init__(self, loop: VirtualTimeLoop, seed: str, trace: Trace, name: str = "disk") -> None:
        self._loop = loop
        self._chance = random.Random(f"disk {seed}")
        self._trace = trace
        self._name = name
        self.state = DiskState()
        self.speed = DiskSpeed()
        self.faults: list[DiskFault] = []
        self.capacity_bytes: int | None = None
        self.watch: Callable[[str, PurePath], None] | None = None
        """Called when an operation begins. A scenario uses it to crash in the middle of an operation."""
        self.torn_files = 0
        """Number of files that lost bytes in a power loss."""
        self.failed_operations = 0
        self._locked: dict[PurePath, SimDiskLock] = {}
        self._life = 0
        self._names = _OperationQueue(self)

    # The port

    async def open(self, path: PurePath, *, create: bool = False, uncached: bool = False) -> SimFile:
        del uncached  # the simulated disk has no cache

        def opened() -> FileState:
            directory = self.state.directory(path.parent)
            if not create:
                return self.state.file(path)
            if path.name in directory.names:
                raise FileExistsError(errno.EEXIST, "file exists", str(path))
            file = FileState()
            directory.change({path.name: file})
            return file

        state = await self._names.submit("open", path, self.speed.name_s, opened)
        return SimFile(self, path, state)

    async def exists(self, path: PurePath) -> bool:
        def found() -> bool:
            if path in self.state.directories:
                return True
            parent = self.state.directories.get(path.parent)
            return parent is not None and path.name in parent.names

        return bool(await self._names.submit("exists", path, self.speed.name_s, found))

    async def list(self, directory: PurePath) -> list[str]:
        found = await self._names.submit(
            "list", directory, self.speed.name_s, lambda: self.state.names(directory)
        )
        return sorted(found)

    async def make_directories(self, directory: PurePath) -> None:
        await self._names.submit(
            "make_directories", directory, self.speed.sync_s, lambda: self.state.make_directories(directory)
        )

    async def rename(self, source: PurePath, target: PurePath) -> None:
        def renamed() -> None:
            if source.parent != target.parent:
                raise OSError(
                    errno.EXDEV, "the simulated disk renames within one directory only", str(target)
                )
            file = self.state.file(source)
            self.state.directory(source.parent).change({source.name: None, target.name: file})

        await self._names.submit("rename", target, self.speed.name_s, renamed)

    async def link(self, source: PurePath, target: PurePath) -> None:
        def linked() -> None:
            file = self.state.file(source)
            directory = self.state.directory(target.parent)
            if target.name in directory.names:
                raise FileExistsError(errno.EEXIST, "file exists", str(target))
            directory.change({target.name: file})

        await self._names.submit("link", target, self.speed.name_s, linked)

    async def remove(self, path: PurePath) -> None:
        def removed() -> None:
            self.state.file(path)
            self.state.directory(path.parent).change({path.name: None})

        await self._names.submit("remove", path, self.speed.name_s, removed)

    async def sync_directory(self, directory: PurePath) -> None:
        waiting: list[tuple[DirectoryState, int]] = []

        def begun() -> None:
            state = self.state.directory(directory)
            waiting.append((state, len(state.unsynced)))

        def finished() -> None:
            state, count = waiting[0]
            state.persist(count)

        await self._names.submit("sync_directory", directory, self.speed.sync_s, finished, begun)

    def lock(self, directory: PurePath) -> SimDiskLock:
        self.state.directory(directory)
        if directory in self._locked:
            raise BlockingIOError(errno.EAGAIN, f"another process uses the directory {directory}")
        lock = SimDiskLock(self._locked, directory)
        self._locked[directory] = lock
        return lock

    # Faults

    def crash(self, *, power_loss: bool) -> None:
        """Drop all operations of the process. Without a power loss the disk keeps unsynced data too."""
        self._life += 1
        self._locked.clear()
        self._names = _OperationQueue(self)
        kept = self._chance.choice((0.0, 0.5, 0.9, 1.0))
        self._record("power-loss" if power_loss else "process-crash", self._name, str(kept))
        if power_loss:
            self.torn_files += self.state.lose_power(self._chance, kept)

    def flip_bit(self, path: PurePath, position: int, bit: int) -> None:
        """Flip a stored bit."""
        file = self.state.file(path)
        for content in (file.seen, file.durable):
            if position < len(content):
                content[position] ^= 1 << bit

    def rot(self, lot: int) -> FlippedBit | None:
        """Flip one stored bit and return its place; None if all bytes of all files are zero.

        Every file is equally likely, and within a file every nonzero byte. Most bytes of a fresh segment are
        zero, and flipping their bits tests nothing.

        Args:
            lot: selects the bit; at least 0. With equal contents, equal numbers select the same bit.
        """
        files = [
            (directory / name, state.durable)
            for directory, names in sorted(self.state.directories.items())
            for name, state in sorted(names.names.items())
            if any(state.durable)
        ]
        if not files:
            return None
        path, content = files[lot % len(files)]
        written = [position for position, byte in enumerate(content) if byte]
        place = FlippedBit(str(path), written[lot // len(files) % len(written)], lot % 8)
        self.flip_bit(path, place.position, place.bit)
        return place

    # Used by files

    @property
    def life(self) -> int:
        """The number of crashes. Operations that began before a crash have no effect after it."""
        return self._life

    def duration(self, bounds: tuple[float, float]) -> float:
        """Draw the duration of the next operation, in seconds."""
        low, high = bounds
        seconds = (
            low + (high - low) * self._chance.random()
        )  # the formula of `uniform`, without its call: this runs for every operation
        return seconds + (
            self._chance.uniform(0, self.speed.hiccup_s) if self._chance.random() < 0.01 else 0.0
        )

    def wall_ms(self) -> int:
        """The time of a correct wall clock."""
        return wall_ms_at(self._loop)

    def torn_at(self, size_bytes: int) -> int:
        """Draw how many bytes of a write are applied when the write begins; the rest follow when it ends."""
        return self._chance.randrange(-(-size_bytes // SECTOR_BYTES) + 1) * SECTOR_BYTES

    def check(self, operation: str, path: PurePath) -> None:
        """Raise an injected error."""
        for fault in self.faults:
            if fault.operation == operation and fault.path_part in str(path):
                if fault.skip > 0:
                    fault.skip -= 1
                elif fault.count > 0:
                    fault.count -= 1
                    self.failed_operations += 1
                    self._record("fault", operation, path.name, fault.number)
                    raise OSError(fault.number, os.strerror(fault.number), str(path))

    def check_capacity(self, path: PurePath, growth_bytes: int) -> None:
        """Raise ENOSPC if a file that grows by `growth_bytes` would exceed the disk's capacity."""
        if self.capacity_bytes is not None and growth_bytes > 0:
            used = self.state.used_bytes()
            if used + growth_bytes > self.capacity_bytes:
                self.failed_operations += 1
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def later(self, seconds: float, callback: Callable[[], None]) -> None:
        """Run `callback` after `seconds` of virtual time, unless the process crashes before. A pause of the
        process does not delay the callback.
        """
        life = self._life
        self._loop.call_later(
            seconds, lambda: callback() if life == self._life else None, context=self._loop.outside
        )

    def future(self) -> asyncio.Future[Any]:
        return self._loop.create_future()

    def _record(self, what: str, *details: object) -> None:
        self._trace.record(self._loop.time(), self._name, what, *details)

    def record_operation(self, operation: str, path: PurePath) -> None:
        """Record an operation in the trace."""
        self._record(operation, path.name)
        if self.watch is not None:
            self.watch(operation, path)


class SimDiskLock:
    """A held lock; a crash of its process releases it."""

    def __init__(self, locked: dict[PurePath, SimDiskLock], directory: PurePath) -> None:
        self._locked = locked
        self._directory = directory

    def release(self) -> None:
        if self._locked.get(self._directory) is self:
            del self._locked[self._directory]


class _OperationQueue:
    """Runs operations one after the other, as a file's I/O thread does. Cancelling a caller does not stop its
    operation.
    """

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk
        self._waiting: deque[Callable[[], None]] = deque()
        self._busy = False

    def submit(
        self,
        operation: str,
        path: PurePath,
        bounds: tuple[float, float],
        finish: Callable[[], Any],
        begin: Callable[[], None] | None = None,
    ) -> asyncio.Future[Any]:
        """Queue an operation: `begin` runs when its turn comes, `finish` after its duration.

        The future has the result of `finish`.
        """
        disk = self._disk
        future = disk.future()
        seconds = disk.duration(bounds)

        def complete() -> None:
            try:
                result = finish()
            except OSError as error:
                settle(error)
            else:
                settle(None, result)

        def start() -> None:
            disk.record_operation(operation, path)
            try:
                disk.check(operation, path)
                if begin is not None:
                    begin()
            except OSError as error:
                disk.later(seconds, lambda error=error: settle(error))  # type: ignore[misc]
            else:
                disk.later(seconds, complete)

        def settle(error: OSError | None, result: Any = None) -> None:
            if not future.done():
                if error is not None:
                    future.set_exception(error)
                else:
                    future.set_result(result)
            self._next()

        self._waiting.append(start)
        if not self._busy:
            self._busy = True
            self._next()
        return future

    def _next(self) -> None:
        if self._waiting:
            self._waiting.popleft()()
        else:
            self._busy = False


class SimFile:
    """`DiskFile` of a simulated disk."""

    def __init__(self, disk: SimDisk, path: PurePath, state: FileState) -> None:
        self._disk = disk
        self._path = path
        self._state = state
        self._queue = _OperationQueue(disk)
        self._life = disk.life
        self._closed = False

    async def size(self) -> int:
        return int(await self._submit("size", self._disk.speed.read_s, lambda: len(self._state.seen)))

    async def modified_at_ms(self) -> int:
        return int(await self._submit("size", self._disk.speed.read_s, lambda: self._state.written_at_ms))

    async def read(self, position: int, length: int) -> bytes:
        def read() -> bytes:
            return bytes(self._state.seen[position : position + length])

        data: bytes = await self._submit("read", self._disk.speed.read_s, read)
        return data

    async def write(self, position: int, buffers: Sequence[Buffer]) -> None:
        await self._write(position, buffers)

    async def sync(self) -> None:
        await self._sync()

    async def write_sync(self, position: int, buffers: Sequence[Buffer]) -> None:
        writing, syncing = self._write(position, buffers), self._sync()
        await writing
        await syncing

    def write_sync_then(
        self, position: int, buffers: Sequence[Buffer], done: Callable[[BaseException | None], None]
    ) -> None:
        writing, syncing = self._write(position, buffers), self._sync()

        def synced(_: asyncio.Future[None]) -> None:
            done(writing.exception() or syncing.exception())

        syncing.add_done_callback(synced)

    async def close(self) -> None:
        if not self._closed:
            closing = self._submit("close", self._disk.speed.name_s, lambda: None)
            self._closed = True
            await closing

    def _write(self, position: int, buffers: Sequence[Buffer]) -> asyncio.Future[None]:
        # Copy now: the caller may reuse its buffers when this call returns.
        data = memoryview(b"".join(buffers))
        applied = min(self._disk.torn_at(len(data)), len(data))

        def begin() -> None:
            self._disk.check_capacity(self._path, position + len(data) - len(self._state.seen))
            self._state.write(position, data[:applied])

        def finish() -> None:
            self._state.write(position + applied, data[applied:])
            self._state.written_at_ms = self._disk.wall_ms()

        return self._submit("write", self._disk.speed.write_s, finish, begin)

    def _sync(self) -> asyncio.Future[None]:
        begun: list[tuple[int, bytes]] = []

        def begin() -> None:
            begun.extend((start, bytes(self._state.seen[start:end])) for start, end in self._state.dirty)

        def finish() -> None:
            self._state.persist(begun)
            del self._state.dirty[: len(begun)]

        def ended(syncing: asyncio.Future[None]) -> None:
            # After a failed write-back the kernel marks the pages clean ("fsyncgate", 2018), so later syncs
            # do not write them.
            if not syncing.cancelled() and syncing.exception() is not None:
                self._state.dirty.clear()

        syncing = self._submit("sync", self._disk.speed.sync_s, finish, begin)
        syncing.add_done_callback(ended)
        return syncing

    def _submit(
        self,
        operation: str,
        bounds: tuple[float, float],
        finish: Callable[[], Any],
        begin: Callable[[], None] | None = None,
    ) -> asyncio.Future[Any]:
        if self._closed:
            raise ValueError("this file was closed")
        if self._life != self._disk.life:
            raise AfterCrashError(f"{self._path} was used after the process that opened it had crashed")
        return self._queue.submit(operation, self._path, bounds, finish, begin)
