"""Multipart uploads of a directory store: parts at their final place in the object, or in separate files.

    ROOT/multiparts/KEY+ID+begun            an open upload and the object that it becomes; `/` in KEY is written `~`
    ROOT/multiparts/KEY+ID+NUMBER.part      a part whose place was unknown when it arrived

All files are in one flat directory, because the Disk port cannot remove directories. As in S3, parts outlive
the process that wrote them; the garbage collector lists and aborts uploads. Parts are not durable before the
completion: a crash loses only the upload.

A part is written to its place if all parts before it have begun, which is the usual order. Its etag contains
the place. A completion is then a sync and a link. Parts in separate files are first copied to their places.
If the places do not fit (parts were omitted, or replaced by parts of another length), everything is copied.
Writes bypass the page cache (`ponor_runtime.file_calls`). When all parts were separate files, every byte
passed the page cache three times, which took nine tenths of a compaction's CPU
(docs/design/compaction.md#plans).
"""  # noqa: E501

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import PurePath
from typing import Final

from crc32c import crc32c
from ponor_runtime.clock import Clock
from ponor_runtime.disk import Buffer, Disk
from ponor_runtime.object_store import (
    MultipartNotFoundError,
    MultipartUpload,
    ObjectStoreError,
    OpenMultipart,
    UploadedPart,
    check_key,
)
from ponor_runtime.randomness import Randomness

from s3stream.stores.buffers import total_bytes
from s3stream.stores.directory import DirectoryObjectStore, as_store_error
from s3stream.stores.placed_parts import PartPlaces, PlacedFile, etag_of, place_of

KEY_BYTES_MAX: Final = 160
"""Key, upload id and part number form one file name. Object keys have at most half of this length."""

PIECE_BYTES: Final = 1024 * 1024
"""Bytes in memory while files are joined or copied."""

UPLOADS_KNOWN_MAX: Final = 1024
"""Open uploads whose part positions this process remembers. Further parts of older uploads go into
separate files."""

_BEGUN: Final = "begun"
_PART: Final = ".part"
_TEMPORARY: Final = ".tmp"


class DirectoryMultipartStore:
    """`MultipartStore` of a directory store. Upload ids begin with their creation time."""

    part_size_bytes_min: Final = 1

    def __init__(
        self,
        store: DirectoryObjectStore,
        directory: PurePath,
        *,
        disk: Disk,
        clock: Clock,
        randomness: Randomness,
    ) -> None:
        self._store = store
        self._directory = directory
        self._disk = disk
        self._clock = clock
        self._randomness = randomness
        self._places: dict[str, PartPlaces] = {}

    @classmethod
    async def open(
        cls, disk: Disk, root: PurePath, *, clock: Clock, randomness: Randomness
    ) -> DirectoryMultipartStore:
        """Open the multipart store at `root`.

        Raises:
            ObjectStoreRefusedError: as `DirectoryObjectStore.open`.
        """
        store = await DirectoryObjectStore.open(disk, root)
        directory = root / "multiparts"
        with as_store_error(f"object store {root}"):
            await disk.make_directories(directory)
        return cls(store, directory, disk=disk, clock=clock, randomness=randomness)

    async def create_multipart(self, key: str) -> MultipartUpload:
        if len(check_key(key)) > KEY_BYTES_MAX:
            raise ValueError(
                f"object store key {key!r}: a multipart upload accepts at most {KEY_BYTES_MAX} characters"
            )
        upload_id = f"{self._clock.wall_ms():013d}-{self._randomness.token(8).hex()}"
        upload = MultipartUpload(key, upload_id)
        with as_store_error(key):
            file = await self._disk.open(self._path(upload, _BEGUN), create=True)
            await file.close()
        self._places[upload_id] = PartPlaces()
        if len(self._places) > UPLOADS_KNOWN_MAX:
            del self._places[next(iter(self._places))]
        return upload

    async def upload_part(
        self, upload: MultipartUpload, number: int, buffers: Sequence[Buffer]
    ) -> UploadedPart:
        return await self._write_part(upload, number, total_bytes(buffers), _pieces(buffers))

    async def upload_part_copy(
        self, upload: MultipartUpload, number: int, source_key: str, start: int, length: int
    ) -> UploadedPart:
        pieces = self._pieces_of_object(source_key, start, length)
        part = await self._write_part(upload, number, length, pieces)
        if part.size_bytes != length:
            raise ObjectStoreError(f"{source_key}: [{start}, {start + length}) reaches beyond the object")
        return part

    async def complete_multipart(self, upload: MultipartUpload, parts: Sequence[UploadedPart]) -> None:
        await self._check_open(upload)
        ordered = sorted(parts, key=lambda part: part.number)
        if await self._is_in_place(upload, ordered):
            await self._store.put_file(upload.key, self._path(upload, _BEGUN))
        else:
            await self._store.put_pieces(upload.key, self._pieces_of_parts(upload, ordered))
        await self.abort_multipart(upload)

    async def abort_multipart(self, upload: MultipartUpload) -> None:
        self._places.pop(upload.upload_id, None)
        prefix = self._path(upload, "").name
        with as_store_error(upload.key):
            # The `begun` file is removed last, so that an interrupted abort is listed and can be repeated.
            names = [name for name in await self._disk.list(self._directory) if name.startswith(prefix)]
            for name in sorted(names, key=lambda name: name.endswith(_BEGUN)):
                with suppress(FileNotFoundError):
                    await self._disk.remove(self._directory / name)

    async def list_multiparts(self, prefix: str) -> AsyncIterator[OpenMultipart]:
        with as_store_error(prefix):
            names = await self._disk.list(self._directory)
        for name in names:
            escaped, upload_id, what = name.split("+")
            key = escaped.replace("~", "/")
            if what == _BEGUN and key.startswith(prefix):
                yield OpenMultipart(key, upload_id, int(upload_id.partition("-")[0]))

    async def close(self) -> None:
        await self._store.close()

    def _path(self, upload: MultipartUpload, what: str) -> PurePath:
        return self._directory / f"{check_key(upload.key).replace('/', '~')}+{upload.upload_id}+{what}"

    async def _check_open(self, upload: MultipartUpload) -> None:
        if not await self._disk.exists(self._path(upload, _BEGUN)):
            raise MultipartNotFoundError(f"{upload.key}: no multipart upload {upload.upload_id}")

    async def _write_part(
        self, upload: MultipartUpload, number: int, size_bytes: int, pieces: AsyncIterator[Buffer]
    ) -> UploadedPart:
        known = self._places.get(upload.upload_id)
        place = known.place(number, size_bytes) if known is not None else None
        await self._check_open(upload)
        if place is not None:
            crc, written_bytes = await self._write_to(upload.key, self._path(upload, _BEGUN), place, pieces)
            return UploadedPart(number, etag_of(crc, place), written_bytes)
        temporary = self._path(upload, f"{number:05d}-{self._randomness.token(8).hex()}{_TEMPORARY}")
        with as_store_error(upload.key):
            await (await self._disk.open(temporary, create=True)).close()
            crc, written_bytes = await self._write_to(upload.key, temporary, 0, pieces)
            await self._disk.rename(temporary, self._part(upload, number))
        return UploadedPart(number, etag_of(crc, None), written_bytes)

    async def _write_to(
        self, key: str, path: PurePath, position: int, pieces: AsyncIterator[Buffer]
    ) -> tuple[int, int]:
        """Write pieces one after the other; return their CRC32C and length."""
        size_bytes = crc = 0
        with as_store_error(key):
            file = await PlacedFile.open(self._disk, path)
            try:
                async for piece in pieces:
                    await file.write(position + size_bytes, piece)
                    size_bytes += len(piece)
                    crc = crc32c(piece, crc)
            finally:
                await file.close()
        return crc, size_bytes

    async def _is_in_place(self, upload: MultipartUpload, parts: Sequence[UploadedPart]) -> bool:
        """Copy parts in separate files to their places, and sync. Return False if the places do not fit."""
        end = 0
        missing: list[tuple[int, UploadedPart]] = []
        for part in parts:
            place = place_of(part.etag)
            if place is None:
                missing.append((end, part))
            elif place != end:
                return False
            end += part.size_bytes
        for position, part in missing:
            await self._write_to(
                upload.key, self._path(upload, _BEGUN), position, self._pieces_of_parts(upload, [part])
            )
        with as_store_error(upload.key):
            file = await self._disk.open(self._path(upload, _BEGUN))
            try:
                if await file.size() != end:
                    return False
                await file.sync()
            finally:
                await file.close()
        return True

    def _part(self, upload: MultipartUpload, number: int) -> PurePath:
        return self._path(upload, f"{number:05d}{_PART}")

    async def _pieces_of_object(self, key: str, start: int, length: int) -> AsyncIterator[Buffer]:
        end = start + length
        for at in range(start, end, PIECE_BYTES):
            yield await self._store.get(key, at, min(PIECE_BYTES, end - at))

    async def _pieces_of_parts(
        self, upload: MultipartUpload, parts: Sequence[UploadedPart]
    ) -> AsyncIterator[Buffer]:
        for part in parts:
            place = place_of(part.etag)
            path = self._part(upload, part.number) if place is None else self._path(upload, _BEGUN)
            file = await self._disk.open(path)
            try:
                crc = 0
                for at in range(0, part.size_bytes, PIECE_BYTES):
                    piece = await file.read((place or 0) + at, min(PIECE_BYTES, part.size_bytes - at))
                    crc = crc32c(piece, crc)
                    yield piece
            finally:
                await file.close()
            if etag_of(crc, place) != part.etag:
                raise ObjectStoreError(
                    f"{upload.key}: part {part.number} is not the one that was uploaded as {part.etag}"
                )


async def _pieces(buffers: Sequence[Buffer]) -> AsyncIterator[Buffer]:
    for buffer in buffers:
        yield buffer
