"""A store of gigabytes that stores no data: blocks are generated when they are read, and written
bytes are hashed and compared with the expected ones.

A block is a function of its stream, first offset and length, so an object's index determines its
content. Every put, part and copy is checked against the index in the object's last bytes. It
implements `ObjectStore` and `MultipartStore` with S3's rules: create-only, and a minimum size of
all parts except the last.
"""

from __future__ import annotations

import random
import struct
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final, NamedTuple

from crc32c import crc32c
from ponor_runtime.disk import Buffer
from ponor_runtime.identity import ObjectId
from ponor_runtime.object_store import (
    MultipartNotFoundError,
    MultipartUpload,
    ObjectAlreadyExistsError,
    ObjectInfo,
    ObjectNotFoundError,
    OpenMultipart,
    UploadedPart,
)
from s3stream.objects.format import ENTRY, ENTRY_BYTES, FOOTER_BYTES, BlockEntry, Footer
from s3stream.objects.index import decode_footer
from s3stream.objects.keys import parse_object_key

NOISE_BYTES: Final = 1 << 20
NOISE: Final = random.Random(7).randbytes(NOISE_BYTES)
STAMP: Final = struct.Struct(">qqQ")
"""Stream, first offset and length, so that all blocks differ."""
END_KEPT_BYTES_MAX: Final = 2 << 20
"""Stored bytes of the last part of an upload, which must include index and footer."""
SLICE_BYTES: Final = 1 << 20
"""Bytes generated at a time for a comparison."""


def generated_block(stream_id: int, start_offset: int, size_bytes: int) -> bytes:
    """The bytes of a block."""
    at = (stream_id * 7919 + start_offset * 104_729) % (NOISE_BYTES - size_bytes)
    return STAMP.pack(stream_id, start_offset, size_bytes) + NOISE[at : at + size_bytes - STAMP.size]


class _Object(NamedTuple):
    """Index and footer, and the number of block bytes before them."""

    data_bytes: int
    end: bytes

    @property
    def size_bytes(self) -> int:
        return self.data_bytes + len(self.end)

    def entries(self) -> Iterator[BlockEntry]:
        for fields in ENTRY.iter_unpack(self.end[:-FOOTER_BYTES]):
            yield BlockEntry._make(fields)

    def read(self, start: int, length: int) -> bytes:
        """Generate bytes of the object."""
        stop = min(start + length, self.size_bytes)
        pieces: list[bytes] = []
        at = start
        number = self._entry_at(start) if start < self.data_bytes else 0
        while at < min(stop, self.data_bytes):
            entry = BlockEntry._make(ENTRY.unpack_from(self.end, number * ENTRY_BYTES))
            block = generated_block(entry.stream_id, entry.start_offset, entry.size_bytes)
            piece = block[at - entry.position : stop - entry.position]
            pieces.append(piece)
            at += len(piece)
            number += 1
        if at < stop:
            pieces.append(self.end[at - self.data_bytes : stop - self.data_bytes])
        return b"".join(pieces)

    def digest(self, start: int, length: int) -> bytes:
        """Hash bytes of the object."""
        hashed = sha256()
        for at in range(start, start + length, SLICE_BYTES):
            hashed.update(self.read(at, min(SLICE_BYTES, start + length - at)))
        return hashed.digest()

    def _entry_at(self, position: int) -> int:
        """Number of the block at a position; entries are in position order."""
        low, high = 0, (len(self.end) - FOOTER_BYTES) // ENTRY_BYTES
        while high - low > 1:
            middle = (low + high) // 2
            if ENTRY.unpack_from(self.end, middle * ENTRY_BYTES)[5] <= position:
                low = middle
            else:
                high = middle
        return low


@dataclass(slots=True)
class _Upload:
    """Parts as lengths and hashes, and the last bytes so far."""

    parts: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    end: bytes = b""
    end_number: int = 0


class GeneratingStore:
    """Whole objects and parts. `calls` counts by operation, `proven_bytes` counts verified written bytes."""

    part_size_bytes_min: Final = 5 << 20

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.proven_bytes = 0
        self.copied_bytes = 0
        self._objects: dict[str, _Object] = {}
        self._uploads: dict[MultipartUpload, _Upload] = {}
        self._begun = 0

    @property
    def open_uploads(self) -> int:
        """Multipart uploads that were neither completed nor aborted."""
        return len(self._uploads)

    @property
    def keys(self) -> frozenset[str]:
        """Total size of all objects."""
        return frozenset(self._objects)

    def make(self, key: str, blocks: Iterable[tuple[int, int, int, int]]) -> int:
        """Create an object of (stream, start offset, end offset, bytes), in order, as a broker
        would; return its size.
        """
        _, object_id = parse_object_key(key)
        encoded = bytearray()
        position = 0
        for stream_id, start, end, size_bytes in blocks:
            crc = crc32c(generated_block(stream_id, start, size_bytes))
            encoded += ENTRY.pack(stream_id, 0, start, end, start, position, size_bytes, end - start, crc, 0)
            position += size_bytes
        footer = Footer(
            ObjectId(object_id), position, len(encoded), len(encoded) // ENTRY_BYTES, crc32c(encoded)
        )
        self._objects[key] = _Object(position, bytes(encoded) + footer.encode())
        return self._objects[key].size_bytes

    def entries(self, key: str) -> Iterator[BlockEntry]:
        """The blocks of an object."""
        return self._object(key).entries()

    async def put(self, key: str, buffers: Sequence[Buffer]) -> None:
        self.calls["put"] += 1
        hashed = sha256()
        for buffer in buffers:
            hashed.update(buffer)
        size_bytes = sum(map(len, buffers))
        end = b"".join(bytes(memoryview(buffer)[-END_KEPT_BYTES_MAX:]) for buffer in buffers[-2:])
        self._create(key, size_bytes, end, [(size_bytes, hashed.digest())])

    async def get(self, key: str, start: int, length: int) -> bytes:
        self.calls["get"] += 1
        return self._object(key).read(start, length)

    async def get_tail(self, key: str, length: int) -> tuple[bytes, int]:
        self.calls["get"] += 1
        found = self._object(key)
        start = max(0, found.size_bytes - length)
        return found.read(start, length), found.size_bytes

    async def delete(self, keys: Sequence[str]) -> None:
        self.calls["delete"] += 1
        for key in keys:
            self._objects.pop(key, None)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        self.calls["list"] += 1
        for key in sorted(self._objects):
            if key.startswith(prefix):
                yield ObjectInfo(key, self._objects[key].size_bytes)

    async def close(self) -> None:
        """Do nothing: nothing is open."""

    async def create_multipart(self, key: str) -> MultipartUpload:
        self.calls["multipart_create"] += 1
        self._begun += 1
        upload = MultipartUpload(key, str(self._begun))
        self._uploads[upload] = _Upload()
        return upload

    async def upload_part(
        self, upload: MultipartUpload, number: int, buffers: Sequence[Buffer]
    ) -> UploadedPart:
        self.calls["multipart_part"] += 1
        hashed = sha256()
        for buffer in buffers:
            hashed.update(buffer)
        found = self._upload(upload)
        if number >= found.end_number:
            kept = [bytes(memoryview(buffer)[-END_KEPT_BYTES_MAX:]) for buffer in buffers[-2:]]
            found.end, found.end_number = b"".join(kept), number
        size_bytes = sum(map(len, buffers))
        found.parts[number] = size_bytes, hashed.digest()
        return UploadedPart(number, hashed.hexdigest(), size_bytes)

    async def upload_part_copy(
        self, upload: MultipartUpload, number: int, source_key: str, start: int, length: int
    ) -> UploadedPart:
        self.calls["multipart_copy"] += 1
        source = self._object(source_key)
        assert start + length <= source.size_bytes, "a range within the object"
        digest = source.digest(start, length)
        self._upload(upload).parts[number] = length, digest
        self.copied_bytes += length
        return UploadedPart(number, digest.hex(), length)

    async def complete_multipart(self, upload: MultipartUpload, parts: Sequence[UploadedPart]) -> None:
        self.calls["multipart_complete"] += 1
        found = self._upload(upload)
        numbers = sorted(part.number for part in parts)
        sizes = [found.parts[number] for number in numbers]
        assert all(size >= self.part_size_bytes_min for size, _ in sizes[:-1]), "EntityTooSmall"
        assert numbers[-1] == found.end_number, "index and footer end the object"
        self._create(upload.key, sum(size for size, _ in sizes), found.end, sizes)
        del self._uploads[upload]

    async def abort_multipart(self, upload: MultipartUpload) -> None:
        self.calls["multipart_abort"] += 1
        self._uploads.pop(upload, None)

    async def list_multiparts(self, prefix: str) -> AsyncIterator[OpenMultipart]:
        self.calls["multipart_list"] += 1
        for upload in list(self._uploads):
            if upload.key.startswith(prefix):
                yield OpenMultipart(upload.key, upload.upload_id, 0)

    def _create(self, key: str, size_bytes: int, end: bytes, parts: Iterable[tuple[int, bytes]]) -> None:
        """Accept an object if its bytes match its own index, block by block."""
        if key in self._objects:
            raise ObjectAlreadyExistsError(f"{key}: the key is taken")
        _, object_id = parse_object_key(key)
        footer = decode_footer(key, object_id, end, size_bytes)
        end_bytes = footer.index_bytes + FOOTER_BYTES
        assert end_bytes <= len(end), "the last part holds index and footer"
        created = _Object(size_bytes - end_bytes, end[-end_bytes:])
        for entry in created.entries():
            block = generated_block(entry.stream_id, entry.start_offset, entry.size_bytes)
            assert crc32c(block) == entry.crc, f"{key}: the index is wrong for stream {entry.stream_id}"
        at = 0
        for part_bytes, digest in parts:
            assert created.digest(at, part_bytes) == digest, f"{key}: its bytes do not match its index"
            at += part_bytes
        assert at == created.size_bytes
        self.proven_bytes += at
        self._objects[key] = created

    def _object(self, key: str) -> _Object:
        if key not in self._objects:
            raise ObjectNotFoundError(key)
        return self._objects[key]

    def _upload(self, upload: MultipartUpload) -> _Upload:
        if upload not in self._uploads:
            raise MultipartNotFoundError(upload.key)
        return self._uploads[upload]
