"""Places of an upload's parts in the object, and a file to which parts are written at their places.

Contains the arithmetic of places, their encoding in etags, and the choice of bytes that bypass the page
cache. `directory_multipart.py` manages the uploads.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Final, Self

from ponor_runtime.disk import Buffer, Disk, DiskFile

PAGE_BYTES: Final = 4096
"""Page size of the page cache. A page is written either through the cache or around it, never both,
because write-back could overwrite direct writes."""

DIRECT_BYTES_MIN: Final = 64 * 1024
"""Shorter writes use the page cache."""


def etag_of(crc: int, place: int | None) -> str:
    """Return the etag of a part with this CRC32C, at this position of the object or in a separate file."""
    return f"{crc:08x}" if place is None else f"{crc:08x}@{place}"


def place_of(etag: str) -> int | None:
    """Return the position in an etag; None if the part is in a separate file."""
    _, separator, place = etag.partition("@")
    return int(place) if separator else None


class PartPlaces:
    """Lengths of the parts of one upload, recorded when each part began."""

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}
        self._ends = [0]
        """Ends of parts 0, 1, … up to the first missing part; part 0 is empty."""

    def place(self, number: int, size_bytes: int) -> int | None:
        """Return the position of a part with this length; None if an earlier part has not begun, or
        if this part had another length before.
        """
        if self._sizes.setdefault(number, size_bytes) != size_bytes:
            return None
        while len(self._ends) in self._sizes:
            self._ends.append(self._ends[-1] + self._sizes[len(self._ends)])
        return self._ends[number - 1] if number <= len(self._ends) else None


class PlacedFile:
    """A file that several writers fill at different positions. Whole pages bypass the page cache;
    pages shared with adjacent parts do not.
    """

    def __init__(self, cached: DiskFile, uncached: DiskFile) -> None:
        self._cached = cached
        self._uncached = uncached

    @classmethod
    async def open(cls, disk: Disk, path: PurePath) -> Self:
        """Open an existing file."""
        cached = await disk.open(path)
        try:
            return cls(cached, await disk.open(path, uncached=True))
        except BaseException:
            await cached.close()
            raise

    async def write(self, position: int, piece: Buffer) -> None:
        """Write a piece at a position. It is not durable yet."""
        view = memoryview(piece)
        if len(view) < DIRECT_BYTES_MIN:
            await self._write_cached(position, view)
            return
        begin = -position % PAGE_BYTES
        end = begin + (len(view) - begin) // PAGE_BYTES * PAGE_BYTES
        await self._write_cached(position, view[:begin])
        await self._uncached.write(position + begin, [view[begin:end]])
        await self._write_cached(position + end, view[end:])

    async def close(self) -> None:
        """Close both descriptors without a sync."""
        try:
            await self._uncached.close()
        finally:
            await self._cached.close()

    async def _write_cached(self, position: int, view: memoryview) -> None:
        if view:
            await self._cached.write(position, [view])
