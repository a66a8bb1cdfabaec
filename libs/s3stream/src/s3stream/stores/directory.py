"""An object store in a directory, as durable as the disk below it.

    ROOT/objects/SEGMENT/…/NAME.object     the object of key SEGMENT/…/NAME
    ROOT/uploads/N/…                       temporary files of one process

A put writes a temporary file, syncs it, links it to its name and syncs the directory. The link makes a put
create-only: the kernel refuses a taken name. Several processes share a ROOT. Each holds the lock of one
numbered upload directory while it runs. The next process that opens the store therefore detects the files
of processes that exited, and deletes them. The suffix marks objects, because the Disk port cannot
tell files from directories.
"""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import PurePath
from typing import Final

from ponor_runtime.disk import Buffer, Disk, DiskLock
from ponor_runtime.object_store import (
    ObjectAlreadyExistsError,
    ObjectInfo,
    ObjectNotFoundError,
    ObjectStoreError,
    ObjectStoreRefusedError,
    ObjectStoreUnavailableError,
    check_key,
)

PROCESSES_MAX: Final = 256
"""Processes that may have one directory store open at the same time."""

_SUFFIX: Final = ".object"
_KNOWN_DIRECTORIES_MAX: Final = 16 * 1024
_RETRIABLE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
_REFUSED: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENAMETOOLONG})


class DirectoryObjectStore:
    """`ObjectStore` over the Disk port. Listings are in ascending key order."""

    def __init__(self, disk: Disk, root: PurePath, uploads: PurePath, lock: DiskLock) -> None:
        self._disk = disk
        self._objects = root / "objects"
        self._uploads = uploads
        self._lock = lock
        self._upload_number = 0
        self._known_directories: set[PurePath] = set()

    @classmethod
    async def open(cls, disk: Disk, root: PurePath) -> DirectoryObjectStore:
        """Create the directory if needed, and delete temporary files of exited processes.

        Raises:
            ObjectStoreRefusedError: the directory cannot be created or written, or too many
                processes have it open.
        """
        with as_store_error(f"object store {root}"):
            await disk.make_directories(root / "objects")
            await disk.make_directories(root / "uploads")
            uploads, lock = await _claim_uploads(disk, root / "uploads")
        return cls(disk, root, uploads, lock)

    async def put(self, key: str, buffers: Sequence[Buffer]) -> None:
        await self._publish(key, lambda temporary: self._write_temporary(temporary, buffers))

    async def put_pieces(self, key: str, pieces: AsyncIterator[Buffer]) -> None:
        """Put an object that is not completely in memory (`directory_multipart.py`)."""
        await self._publish(key, lambda temporary: self._write_pieces(temporary, pieces))

    async def put_file(self, key: str, source: PurePath) -> None:
        """Put a synced file of the same file system. The file also keeps its old name; the caller removes
        that name.
        """
        path = self._path(key)
        with as_store_error(key):
            await self._make_directory(path.parent)
            await self._link(key, source, path)

    async def get(self, key: str, start: int, length: int) -> bytes:
        path = self._path(key)
        with as_store_error(key):
            file = await self._disk.open(path)
            try:
                return await file.read(start, length)
            finally:
                await file.close()

    async def get_tail(self, key: str, length: int) -> tuple[bytes, int]:
        path = self._path(key)
        with as_store_error(key):
            file = await self._disk.open(path)
            try:
                size = await file.size()
                start = max(0, size - length)
                return await file.read(start, size - start), size
            finally:
                await file.close()

    async def delete(self, keys: Sequence[str]) -> None:
        directories: dict[PurePath, None] = {}
        for key in keys:
            path = self._path(key)
            directories[path.parent] = None
            with as_store_error(key), suppress(FileNotFoundError):
                await self._disk.remove(path)
        # If a crash undid a deletion that the garbage collector has confirmed, the object would
        # leak. The directory of a missing name is therefore synced too: the process that removed
        # the name may have crashed before its sync.
        for directory in directories:
            with as_store_error(str(directory)), suppress(FileNotFoundError):
                await self._disk.sync_directory(directory)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        async for info in self._walk(self._objects, "", prefix):
            yield info

    async def close(self) -> None:
        self._lock.release()

    def _path(self, key: str) -> PurePath:
        *directories, name = check_key(key).split("/")
        if any(segment.endswith(_SUFFIX) for segment in directories):
            raise ValueError(f"object store key {key!r}: no segment but the last may end in {_SUFFIX!r}")
        return self._objects.joinpath(*directories, name + _SUFFIX)

    async def _publish(self, key: str, write: Callable[[PurePath], Awaitable[None]]) -> None:
        path = self._path(key)
        self._upload_number += 1
        temporary = self._uploads / f"{self._upload_number}.tmp"
        with as_store_error(key):
            try:
                await write(temporary)
                await self._make_directory(path.parent)
                await self._link(key, temporary, path)
            finally:
                with suppress(OSError):
                    await self._disk.remove(temporary)

    async def _write_pieces(self, temporary: PurePath, pieces: AsyncIterator[Buffer]) -> None:
        file = await self._disk.open(temporary, create=True)
        try:
            position = 0
            async for piece in pieces:
                await file.write(position, [piece])
                position += len(piece)
            await file.sync()
        finally:
            await file.close()

    async def _write_temporary(self, temporary: PurePath, buffers: Sequence[Buffer]) -> None:
        file = await self._disk.open(temporary, create=True, uncached=True)
        try:
            await file.write_sync(0, buffers)
        finally:
            await file.close()

    async def _make_directory(self, directory: PurePath) -> None:
        if directory in self._known_directories:
            return
        await self._disk.make_directories(directory)
        if len(self._known_directories) >= _KNOWN_DIRECTORIES_MAX:
            self._known_directories.clear()
        self._known_directories.add(directory)

    async def _link(self, key: str, temporary: PurePath, path: PurePath) -> None:
        try:
            await self._disk.link(temporary, path)
        except FileExistsError:
            # The put that made the existing name may have crashed before its sync, and this caller
            # may rely on the durability of that object.
            await self._disk.sync_directory(path.parent)
            raise ObjectAlreadyExistsError(f"{key}: the key is taken") from None
        await self._disk.sync_directory(path.parent)

    async def _walk(self, directory: PurePath, key_prefix: str, prefix: str) -> AsyncIterator[ObjectInfo]:
        with as_store_error(key_prefix or str(directory)):
            names = await self._disk.list(directory)
        for key in sorted(key_prefix + _listed_name(name) for name in names):
            if key.endswith("/"):
                if key.startswith(prefix) or prefix.startswith(key):
                    async for info in self._walk(directory / key[len(key_prefix) : -1], key, prefix):
                        yield info
            elif key.startswith(prefix):
                with suppress(ObjectNotFoundError):  # deleted during this listing
                    yield await self._info(key)

    async def _info(self, key: str) -> ObjectInfo:
        with as_store_error(key):
            file = await self._disk.open(self._path(key))
            try:
                return ObjectInfo(key, await file.size(), await file.modified_at_ms())
            finally:
                await file.close()


async def _claim_uploads(disk: Disk, directory: PurePath) -> tuple[PurePath, DiskLock]:
    """Lock the first free upload directory, and empty all upload directories without a running process."""
    present = set(await disk.list(directory))
    claimed: tuple[PurePath, DiskLock] | None = None
    for number in range(PROCESSES_MAX):
        uploads = directory / str(number)
        if uploads.name not in present:
            if claimed is not None:
                continue
            await disk.make_directories(uploads)
        try:
            lock = disk.lock(uploads)
        except BlockingIOError:
            continue
        for name in await disk.list(uploads):
            await disk.remove(uploads / name)
        if claimed is None:
            claimed = uploads, lock
        else:
            lock.release()
    if claimed is None:
        raise ObjectStoreRefusedError(
            f"{directory}: {PROCESSES_MAX} processes have this object store open; stop some"
        )
    return claimed


def _listed_name(name: str) -> str:
    return name.removesuffix(_SUFFIX) if name.endswith(_SUFFIX) else name + "/"


@contextmanager
def as_store_error(thing: str) -> Iterator[None]:
    """Translate disk errors into errors of the object-store port."""
    try:
        yield
    except FileNotFoundError as error:
        raise ObjectNotFoundError(f"{thing}: no such object ({error})") from error
    except OSError as error:
        if error.errno in _RETRIABLE:
            raise ObjectStoreUnavailableError(
                f"{thing}: {error}; free disk space or file handles; the call is repeated"
            ) from error
        if error.errno in _REFUSED:
            raise ObjectStoreRefusedError(f"{thing}: {error}; check the directory and its owner") from error
        # EIO and similar: after a failed sync, the content of the disk is unknown, so a repeated
        # call proves nothing.
        raise ObjectStoreError(f"{thing}: {error}; check the disk") from error
