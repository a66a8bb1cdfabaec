"""System calls on one open file. They run on the file's thread, one at a time."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import PurePath
from typing import Final

from ponor_runtime.disk import SECTOR_BYTES, Buffer

IOVECS_MAX: Final = 1024
"""Maximum number of buffers in one pwritev on Linux (IOV_MAX)."""

CHUNK_BYTES: Final = 2 * 1024 * 1024
CHUNKS_IDLE_MAX: Final = 8
_BLOCK_BYTES: Final = 4096
"""If the end of an uncached write must go through the page cache, that part starts at a page boundary;
otherwise the kernel would read the page first."""

_JOINED_BYTES_MAX: Final = 64 * 1024
"""Smaller buffers are joined before they are copied: two copies in C cost less than a Python iteration per
buffer."""

_WRITE_AND_SYNC: Final = getattr(os, "RWF_DSYNC", 0)
_DIRECT: Final = getattr(os, "O_DIRECT", 0)


class WriteChunks:
    """Pool of aligned buffers for uncached writes. Each concurrent write takes one; a few are kept for reuse.

    Several threads use it; a list's `pop` and `append` are atomic.
    """

    def __init__(self) -> None:
        self._idle: list[memoryview] = []

    def take(self) -> memoryview:
        """Return a buffer for one write."""
        try:
            return self._idle.pop()
        except IndexError:
            memory = mmap.mmap(-1, CHUNK_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            with suppress(OSError):  # the kernel does not support huge pages
                memory.madvise(mmap.MADV_HUGEPAGE)  # the device needs one pinned page instead of 512
            return memoryview(memory)

    def give_back(self, chunk: memoryview) -> None:
        """Return a buffer to the pool."""
        if len(self._idle) < CHUNKS_IDLE_MAX:
            self._idle.append(chunk)


class FileCalls:
    """An open file: one descriptor, and a second one with O_DIRECT for uncached writes where supported."""

    __slots__ = ("_chunks", "_descriptor", "_direct", "_unsynced", "_write_and_sync")

    def __init__(self, path: PurePath, create: bool, chunks: WriteChunks | None) -> None:
        """Open the file; pass `chunks` for uncached writes.

        Raises:
            OSError: the file cannot be opened, or exists already and `create` is set.
        """
        flags = os.O_RDWR | os.O_CLOEXEC
        self._descriptor = os.open(path, flags | (os.O_CREAT | os.O_EXCL if create else 0), 0o644)
        self._chunks = chunks
        self._unsynced = True
        """Whether unsynced writes may exist. True after open: an earlier process may have left some."""
        self._write_and_sync = _WRITE_AND_SYNC
        # An uncached file bypasses the page cache (O_DIRECT): finding, clearing and filling a page costs
        # several times as much as copying its bytes, and data that is written once and read from memory does
        # not need the page.
        self._direct: int | None = None
        if chunks is not None and _DIRECT:
            try:
                self._direct = os.open(path, flags | _DIRECT)
            except OSError as error:
                if error.errno != errno.EINVAL:  # the file system does not support O_DIRECT
                    os.close(self._descriptor)
                    raise

    def size(self) -> int:
        """Length in bytes."""
        return os.fstat(self._descriptor).st_size

    def modified_at_ms(self) -> int:
        """Time of the last write, by the wall clock."""
        return os.fstat(self._descriptor).st_mtime_ns // 1_000_000

    def read(self, position: int, length: int) -> bytes:
        """Read up to `length` bytes; fewer only at the end of the file."""
        piece = os.pread(self._descriptor, length, position)
        if len(piece) in {0, length}:
            return piece
        pieces = [piece]
        read = len(piece)
        # A short read means end of file, the kernel's limit (2 GiB) or a signal. Only an empty read means end
        # of file.
        while read < length and (piece := os.pread(self._descriptor, length - read, position + read)):
            pieces.append(piece)
            read += len(piece)
        return b"".join(pieces)

    def write(self, position: int, buffers: Sequence[Buffer]) -> None:
        """Write all buffers consecutively from `position`; not durable."""
        self._unsynced = True
        self._write(position, buffers, sum(map(len, buffers)), 0)

    def sync(self) -> None:
        """Make all completed writes durable (fdatasync)."""
        os.fdatasync(self._descriptor)
        self._unsynced = False

    def write_sync(self, position: int, buffers: Sequence[Buffer]) -> None:
        """Write all buffers consecutively from `position` and make them durable."""
        # If the file has no other unsynced data, one pwritev with RWF_DSYNC replaces write and fdatasync: the
        # thread acquires the GIL once less, and the kernel searches only the written range for dirty pages.
        size_bytes = sum(map(len, buffers))
        single = CHUNK_BYTES if self._direct is not None and not (position | size_bytes) % SECTOR_BYTES else 0
        in_one_call = 0 < size_bytes <= single or (self._direct is None and 0 < len(buffers) <= IOVECS_MAX)
        flags = self._write_and_sync if in_one_call and not self._unsynced else 0
        self._unsynced = True
        try:
            complete = self._write(position, buffers, size_bytes, flags)
        except OSError as error:
            if not flags or error.errno != errno.EOPNOTSUPP:
                raise
            flags = self._write_and_sync = 0  # the file system does not support RWF_DSYNC
            complete = self._write(position, buffers, size_bytes, 0)
        if not (flags and complete):
            os.fdatasync(self._descriptor)
        self._unsynced = False

    def descriptor_for_kernel(self, position: int, size_bytes: int) -> int | None:
        """Return the O_DIRECT descriptor if one synced write needs only one system call, otherwise None.

        Call only while no other call of this file runs.
        """
        if (
            self._unsynced
            or not self._write_and_sync
            or not size_bytes
            or (position | size_bytes) % SECTOR_BYTES
        ):
            return None
        return self._direct

    def forget_synced(self) -> None:
        """Mark the file as unsynced after a failed or partial write."""
        self._unsynced = True

    def close(self) -> None:
        """Close the descriptors."""
        if self._direct is not None:
            os.close(self._direct)
        os.close(self._descriptor)

    def _write(self, position: int, buffers: Sequence[Buffer], size_bytes: int, flags: int) -> bool:
        """Write the buffers; return whether every byte was written with `flags`."""
        if self._direct is None or position % SECTOR_BYTES:
            return _write_cached(self._descriptor, position, buffers, flags)
        direct_bytes = (
            size_bytes if size_bytes % SECTOR_BYTES == 0 else size_bytes - size_bytes % _BLOCK_BYTES
        )
        try:
            rest = self._write_direct(self._direct, position, buffers, direct_bytes, flags)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            # The device has larger sectors: use cached writes for this file from now on.
            os.close(self._direct)
            self._direct = None
            _write_cached(self._descriptor, position, buffers, 0)
            return False
        if rest:
            _write_cached(self._descriptor, position + direct_bytes, [rest], 0)
        return not rest

    def _write_direct(
        self, descriptor: int, position: int, buffers: Sequence[Buffer], direct_bytes: int, flags: int
    ) -> bytes:
        """Write the first `direct_bytes` bytes chunk by chunk; return the rest."""
        assert self._chunks is not None
        chunk = self._chunks.take()
        try:
            filled = 0
            rest: list[memoryview] = []
            for piece in _pieces(buffers):
                view = memoryview(piece)
                while view and direct_bytes:
                    part = view[: min(CHUNK_BYTES - filled, direct_bytes)]
                    chunk[filled : filled + len(part)] = part
                    filled += len(part)
                    direct_bytes -= len(part)
                    view = view[len(part) :]
                    if filled == CHUNK_BYTES or not direct_bytes:
                        _write_all(descriptor, position, chunk[:filled], flags)
                        position += filled
                        filled = 0
                if view:
                    rest.append(view)
            assert not filled
            return b"".join(rest)
        finally:
            self._chunks.give_back(chunk)


def _pieces(buffers: Sequence[Buffer]) -> Iterator[Buffer]:
    """Yield the same bytes in fewer buffers."""
    for first in range(0, len(buffers), IOVECS_MAX):
        group = buffers[first : first + IOVECS_MAX]
        if len(group) > 1 and sum(map(len, group)) <= _JOINED_BYTES_MAX:
            yield b"".join(group)
        else:
            yield from group


def _write_cached(descriptor: int, position: int, buffers: Sequence[Buffer], flags: int) -> bool:
    complete = True
    for first in range(0, len(buffers), IOVECS_MAX):
        group = buffers[first : first + IOVECS_MAX]
        size = sum(map(len, group))
        written = _pwritev(descriptor, group, position, flags)
        if written < size:
            complete = False
            _write_all(descriptor, position + written, memoryview(b"".join(group))[written:], 0)
        position += size
    return complete


def _write_all(descriptor: int, position: int, view: memoryview, flags: int) -> None:
    # More than one call is rare: a nearly full disk or a very large write. The next call either continues or
    # raises ENOSPC.
    while view:
        written = _pwritev(descriptor, [view], position, flags)
        position += written
        view = view[written:]


def _pwritev(descriptor: int, buffers: Sequence[Buffer], position: int, flags: int) -> int:
    return (
        os.pwritev(descriptor, buffers, position, flags)
        if flags
        else os.pwritev(descriptor, buffers, position)
    )
