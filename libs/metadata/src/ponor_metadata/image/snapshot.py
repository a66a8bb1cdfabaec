"""Snapshots: the encoding of an image as of one index. Equal images have equal encodings in all processes.

Layout (docs/formats/image.md): 8 bytes of magic with the version, then sections. A section is its length
(u32), the CRC32C of its payload (u32), both little endian, and the payload. The first section contains index,
cluster time, digest and the number of rows of each kind; each further section contains rows of one kind, in
key order, as columns. Writer and reader handle one section per step, which takes about a millisecond, so a
large image does not block the event loop. The image may change between two steps of the writer; the snapshot
does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from struct import Struct
from typing import Any, Final

from crc32c import crc32c

from ponor_metadata.image.batches import DIGEST_BYTES
from ponor_metadata.image.image import MetadataImage
from ponor_metadata.image.memory_table import FrozenRows, ImageTable
from ponor_metadata.image.registry import SCHEMAS, SECTIONS
from ponor_metadata.tables.columns import ColumnReader
from ponor_metadata.tables.schema import Schema, Section, Values

MAGIC: Final = b"PONORIM1"
"""Version 1."""
HEADER: Final = Struct(f"<BQq{DIGEST_BYTES}s{len(SECTIONS)}Q")
"""Kind 0, index, cluster time, running digest, and the number of rows of each kind."""
SECTION_FRAME: Final = Struct("<II")
"""Length and CRC32C of the payload."""
SECTION_HEADER: Final = Struct("<BH")
"""Number of the kind, and number of rows."""
SECTION_ROWS_MAX: Final = 512
SECTION_BYTES_MAX: Final = 16 * 1024
"""Limit of the bytes in a section's weighed columns (`Section.weighed`). One step encodes or decodes a
section, and 16 KiB of packed ranges contain about 3,000 pieces."""


class SnapshotCorruptError(Exception):
    """The bytes are not a snapshot of this version; the message names the position and the violated rule."""


class SnapshotEncoding:
    """An encoding of the image as of its creation; the image may change while it is encoded.

    Until the encoding is complete, the image copies each block before its first change, so do not keep an
    encoding that is not continued.

    Attributes:
        index: index of the image's newest batch.
        cluster_time_ms: cluster time of that batch.
        digest: running digest after that batch (16 bytes).
        rows: number of rows in all tables.
        size_bytes: size of the chunks returned so far.
    """

    def __init__(self, image: MetadataImage) -> None:
        self.index = image.index
        self.cluster_time_ms = image.cluster_time_ms
        self.digest = image.digest
        frozen = [
            each for schema in SCHEMAS for each in zip(schema.sections, image[schema].freeze(), strict=True)
        ]
        self.rows = sum(rows.count for _, rows in frozen)
        self.size_bytes = 0
        self._hash = blake2b(digest_size=DIGEST_BYTES)
        self._chunks: Iterator[bytes] | None = self._encode(frozen)

    @property
    def state_digest(self) -> bytes:
        """BLAKE2b-128 of the whole snapshot, equal for equal images. Read it after the last chunk."""
        assert self._chunks is None, "the snapshot has further chunks"
        return self._hash.digest()

    def next_chunk(self) -> bytes | None:
        """Return the next bytes of the snapshot, or None after the last. Takes about a millisecond."""
        chunk = None if self._chunks is None else next(self._chunks, None)
        if chunk is None:
            self._chunks = None
            return None
        self._hash.update(chunk)
        self.size_bytes += len(chunk)
        return chunk

    def __iter__(self) -> Iterator[bytes]:
        while (chunk := self.next_chunk()) is not None:
            yield chunk

    def _encode(self, frozen: list[tuple[Section, FrozenRows]]) -> Iterator[bytes]:
        counts = [rows.count for _, rows in frozen]
        yield MAGIC + _frame(HEADER.pack(0, self.index, self.cluster_time_ms, self.digest, *counts))
        frozen.reverse()
        while frozen:
            section, rows = frozen.pop()  # frees the picture of each table after its last section
            for part in _cut(section, rows.values):
                yield _frame(_encode_rows(section, part))


def begin_snapshot(image: MetadataImage) -> SnapshotEncoding:
    """Begin to encode the image as of now. This copies 8 bytes per 512 rows."""
    return SnapshotEncoding(image)


def encode(image: MetadataImage) -> bytes:
    """Encode the whole image in one step."""
    return b"".join(begin_snapshot(image))


def decode(data: bytes) -> MetadataImage:
    """Decode a whole image in one step.

    Raises:
        SnapshotCorruptError: the bytes break the layout.
    """
    reader = SnapshotReader(data)
    while reader.read_section():
        pass
    return reader.image


class SnapshotReader:
    """Decodes a snapshot section by section. Callers that know the digest of the bytes verify it first.

    Attributes:
        image: the decoded image; complete after `read_section` returned False.
    """

    def __init__(self, data: bytes | bytearray) -> None:
        """Read magic and header. The data must not change: no copy is made (80 MB would block for 55 ms).

        Raises:
            SnapshotCorruptError: magic or header break the layout.
        """
        self._data = memoryview(data)
        if bytes(self._data[: len(MAGIC)]) != MAGIC:
            raise SnapshotCorruptError(
                f"snapshot: it does not begin with the magic {MAGIC.decode()}; another version of"
                " Ponor may have written it"
            )
        self._position = len(MAGIC)
        payload = self._payload()
        if len(payload) != HEADER.size or payload[0] != 0:
            raise SnapshotCorruptError("snapshot: the first section is not the header of an image")
        _, index, cluster_time_ms, digest, *counts = HEADER.unpack(payload)
        self.image = MetadataImage(index=index, cluster_time_ms=cluster_time_ms, digest=digest)
        kinds = [(schema, section) for schema in SCHEMAS for section in schema.sections]
        self._left = [
            _RowsLeft(schema, self.image[schema], section, count)
            for (schema, section), count in zip(kinds, counts, strict=True)
            if count
        ]
        self._left.reverse()

    def read_section(self) -> bool:
        """Add the rows of the next section to the image. Return False if there is none. Takes a few
        milliseconds.

        Raises:
            SnapshotCorruptError: the section breaks the layout.
        """
        if not self._left:
            if self._position != len(self._data):
                raise SnapshotCorruptError(f"snapshot: bytes after the last section at {self._position}")
            return False
        position = self._position
        left = self._left[-1]
        payload = self._payload()
        try:
            rows = _decode_rows(payload, left.section, left.count)
            left.table.load(left.section, rows)
        except (ValueError, TypeError, OverflowError, AssertionError) as error:
            raise SnapshotCorruptError(
                f"snapshot: bad {left.section.name or left.schema.name} in the section at {position}: {error}"
            ) from error
        left.count -= len(rows)
        if left.count == 0:
            self._left.pop()
        return True

    def _payload(self) -> bytes:
        start = self._position + SECTION_FRAME.size
        if start > len(self._data):
            raise SnapshotCorruptError(f"snapshot: ends inside the section header at {self._position}")
        length, checksum = SECTION_FRAME.unpack_from(self._data, self._position)
        payload = bytes(self._data[start : start + length])
        if len(payload) != length:
            raise SnapshotCorruptError(f"snapshot: ends inside the section at {self._position}")
        if crc32c(payload) != checksum:
            raise SnapshotCorruptError(f"snapshot: wrong CRC32C in the section at {self._position}")
        self._position = start + length
        return payload


@dataclass(slots=True)
class _RowsLeft:
    """Rows of one kind that the reader has not read yet."""

    schema: Schema[Any, Any]
    table: ImageTable[Any, Any]
    section: Section
    count: int


def _decode_rows(payload: bytes, section: Section, left: int) -> list[Values]:
    reader = ColumnReader(payload)
    number, count = SECTION_HEADER.unpack(reader.take(SECTION_HEADER.size))
    if number != section.number or not 1 <= count <= min(left, SECTION_ROWS_MAX):
        raise ValueError(f"{count} rows of kind {number}; at most {left} of kind {section.number} are left")
    columns = [column.read(reader, count) for column in section.columns]
    if reader.rest:
        raise ValueError(f"{reader.rest} bytes after the last column")
    return list(zip(*columns, strict=True))


def _cut(section: Section, rows: Iterator[Values]) -> Iterator[list[Values]]:
    """Cut rows into parts that are as long as the limits allow, at least one row each."""
    if not section.weighed:
        while part := list(islice(rows, SECTION_ROWS_MAX)):
            yield part
        return
    part, weight = [], 0
    for row in rows:
        row_weight = section.weight(row)
        if part and (len(part) == SECTION_ROWS_MAX or weight + row_weight > SECTION_BYTES_MAX):
            yield part
            part, weight = [], 0
        part.append(row)
        weight += row_weight
    if part:
        yield part


def _encode_rows(section: Section, rows: list[Values]) -> bytes:
    payload = bytearray(SECTION_HEADER.pack(section.number, len(rows)))
    for column, values in zip(section.columns, zip(*rows, strict=True), strict=True):
        column.write(values, payload)
    return bytes(payload)


def _frame(payload: bytes) -> bytes:
    return SECTION_FRAME.pack(len(payload), crc32c(payload)) + payload
