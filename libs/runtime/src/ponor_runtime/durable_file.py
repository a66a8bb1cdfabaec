"""Small files that are written atomically and durably.

A file is written under a temporary name, synced and renamed, and its directory is synced. The content is
opaque.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from ponor_runtime.disk import Buffer, Disk

TEMPORARY_SUFFIX = ".tmp"
READ_BYTES = 1024 * 1024


async def write_durably(disk: Disk, path: PurePath, buffers: Sequence[Buffer]) -> None:
    """Replace the content of `path` durably. After a crash the file has either the old or the new
    content.

    Raises:
        OSError: the disk failed; the content is then unknown, and the process must stop.
    """
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    if await disk.exists(temporary):
        await disk.remove(temporary)
    file = await disk.open(temporary, create=True)
    try:
        await file.write_sync(0, buffers)
    finally:
        await file.close()
    await disk.rename(temporary, path)
    await disk.sync_directory(path.parent)


async def read_whole(disk: Disk, path: PurePath) -> bytes:
    """All bytes of a file.

    Raises:
        FileNotFoundError: no such file.
    """
    file = await disk.open(path)
    try:
        size_bytes = await file.size()
        pieces: list[bytes] = []
        position = 0
        while position < size_bytes:
            piece = await file.read(position, min(READ_BYTES, size_bytes - position))
            if not piece:
                break
            pieces.append(piece)
            position += len(piece)
        return b"".join(pieces)
    finally:
        await file.close()


async def remove_leftovers(disk: Disk, directory: PurePath) -> None:
    """Remove temporary files that a crash left behind."""
    for name in await disk.list(directory):
        if name.endswith(TEMPORARY_SUFFIX):
            await disk.remove(directory / name)
