"""Snapshot: an image as bytes, as of one index. Equal images have equal bytes, on every process.

Layout (docs/formats/image.md): 8 bytes of magic, which say the version, then sections. A section is its length (u32), the CRC32C of its payload (u32), both little
endian, and the payload. The first says as of when, and how many rows of each kind follow; each of the others holds rows of one kind, in key
order, as columns. Both writer and reader take one section at a time, a matter of a millisecond, so that a large image never holds up the
event loop; the writer's image may change between two of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from itertools import islice
from struct import Struct
from typing import Final

from crc32c import crc32c

from ponor_metadata.blocks import Values
from ponor_metadata.digest import DIGEST_BYTES
from ponor_metadata.image import MetadataImage
from ponor_metadata.snapshot_columns import ColumnReader
from ponor_metadata.snapshot_layout import LAYOUTS, FrozenRows, Layout, SectionKind, layout_of

MAGIC_BYTES: Final = 8
SECTION_FRAME: Final = Struct("<II")
"""Length and CRC32C of the payload."""
SECTION_HEADER: Final = Struct("<BH")
"""Kind, and the number of rows."""
SECTION_ROWS_MAX: Final = 512
SECTION_BYTES_MAX: Final = 16 * 1024
"""Of what rows hold beside numbers: a section is what is encoded or decoded in one go, and 16 KiB of packed ranges are 3,000 pieces."""


class SnapshotCorruptError(Exception):
    """The bytes are no snapshot; the message says where and which rule they break."""


class SnapshotEncoding:
    """The encoding of an image as of the index at which this was made; the image may change meanwhile.

    What the image changes before the encoding is finished, it copies first (block by block), so do not keep one that nobody goes on with.

    Attributes:
        index: the snapshot is as of this batch.
        cluster_time_ms: cluster clock of that batch.
        digest: running digest after that batch (16 bytes).
        rows: in all tables together.
        size_bytes: of the chunks so far.
    """

    def __init__(self, image: MetadataImage) -> None:
        self.index = image.index
        self.cluster_time_ms = image.cluster_time_ms
        self.digest = image.digest
        layout = layout_of(image)
        frozen = [(kind, kind.freeze(image)) for kind in layout.kinds]
        self.rows = sum(rows.count for _, rows in frozen)
        self.size_bytes = 0
        self._hash = blake2b(digest_size=DIGEST_BYTES)
        self._chunks: Iterator[bytes] | None = self._encode(layout, frozen)

    @property
    def state_digest(self) -> bytes:
        """BLAKE2b-128 of the whole snapshot: the same on every process whose image is the same. To be read when all chunks were taken."""
        assert self._chunks is None, "the snapshot is not encoded to its end"
        return self._hash.digest()

    def next_chunk(self) -> bytes | None:
        """The next bytes of the snapshot, about a millisecond's work; None when there are no more."""
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

    def _encode(self, layout: Layout, frozen: list[tuple[SectionKind, FrozenRows]]) -> Iterator[bytes]:
        counts = [rows.count for _, rows in frozen]
        header = image_header(layout).pack(0, self.index, self.cluster_time_ms, self.digest, *counts)
        yield layout.magic + _frame(header)
        frozen.reverse()
        while frozen:
            kind, rows = frozen.pop()  # what was encoded need not be kept as it was
            for section in _cut(kind, rows.values):
                yield _frame(_section(kind, section))


def begin_snapshot(image: MetadataImage) -> SnapshotEncoding:
    """Begin to encode the image as it is now. Takes time in proportion to a thousandth of its rows, some nanoseconds each."""
    return SnapshotEncoding(image)


def encode(image: MetadataImage) -> bytes:
    """The whole image as bytes, all at once."""
    return b"".join(begin_snapshot(image))


def decode(data: bytes) -> MetadataImage:
    """The image that `encode` wrote, all at once.

    Raises:
        SnapshotCorruptError: the bytes break the layout.
    """
    reader = SnapshotReader(data)
    while reader.read_section():
        pass
    return reader.image


class SnapshotReader:
    """Decodes a snapshot section by section. Whoever got the bytes compares their digest first, where he was told it.

    Attributes:
        image: complete once `read_section` answered False.
    """

    def __init__(self, data: bytes | bytearray) -> None:
        """Read magic and header. The data is read where it lies, and must stay as it is: a copy of 80 MB would hold the event loop for 55 ms.

        Raises:
            SnapshotCorruptError: they break the layout.
        """
        self._data = memoryview(data)
        layout = LAYOUTS.get(bytes(self._data[:MAGIC_BYTES]))
        if layout is None:
            known = " or ".join(magic.decode() for magic in LAYOUTS)
            raise SnapshotCorruptError(f"snapshot: byte 0 is not the magic {known}; of another version?")
        self._position = MAGIC_BYTES
        payload = self._payload()
        header = image_header(layout)
        if len(payload) != header.size or payload[0] != 0:
            raise SnapshotCorruptError("snapshot: the first section is no header of an image")
        _, index, cluster_time_ms, digest, *counts = header.unpack(payload)
        self._left = [[kind, count] for kind, count in zip(layout.kinds, counts, strict=True) if count]
        self._left.reverse()
        self.image = MetadataImage(index=index, cluster_time_ms=cluster_time_ms, digest=digest)

    def read_section(self) -> bool:
        """Put the rows of the next section into the image, a few milliseconds' work; False when there was none.

        Raises:
            SnapshotCorruptError: the section breaks the layout.
        """
        if not self._left:
            if self._position != len(self._data):
                raise SnapshotCorruptError(f"snapshot: bytes after the last section at {self._position}")
            return False
        position = self._position
        kind, count = self._left[-1]
        payload = self._payload()
        try:
            rows = _read_rows(payload, kind, count)
            kind.load(self.image, rows)
        except (ValueError, TypeError, OverflowError, AssertionError) as error:
            raise SnapshotCorruptError(
                f"snapshot: bad {kind.name} in the section at {position}: {error}"
            ) from error
        self._left[-1][1] -= len(rows)
        if self._left[-1][1] == 0:
            self._left.pop()
        return True

    def _payload(self) -> bytes:
        start = self._position + SECTION_FRAME.size
        if start > len(self._data):
            raise SnapshotCorruptError(f"snapshot: ends inside of the section header at {self._position}")
        length, checksum = SECTION_FRAME.unpack_from(self._data, self._position)
        payload = bytes(self._data[start : start + length])
        if len(payload) != length:
            raise SnapshotCorruptError(f"snapshot: ends inside of the section at {self._position}")
        if crc32c(payload) != checksum:
            raise SnapshotCorruptError(f"snapshot: wrong CRC32C in the section at {self._position}")
        self._position = start + length
        return payload


def image_header(layout: Layout) -> Struct:
    """Kind 0, index, cluster clock, running digest, and the number of rows of each kind."""
    return Struct(f"<BQq{DIGEST_BYTES}s{len(layout.kinds)}Q")


def _read_rows(payload: bytes, kind: SectionKind, left: int) -> list[Values]:
    reader = ColumnReader(payload)
    number, count = SECTION_HEADER.unpack(reader.take(SECTION_HEADER.size))
    if number != kind.number or not 1 <= count <= min(left, SECTION_ROWS_MAX):
        raise ValueError(f"{count} rows of kind {number}; at most {left} of kind {kind.number} are left")
    columns = [column.read(reader, count) for column in kind.columns]
    if reader.rest:
        raise ValueError(f"{reader.rest} bytes after the last column")
    return list(zip(*columns, strict=True))


def _cut(kind: SectionKind, rows: Iterator[Values]) -> Iterator[list[Values]]:
    """As many rows at once as the bounds allow, at least one."""
    if kind.weigh is None:
        while section := list(islice(rows, SECTION_ROWS_MAX)):
            yield section
        return
    section, weight = [], 0
    for row in rows:
        row_bytes = kind.weigh(row)
        if section and (len(section) == SECTION_ROWS_MAX or weight + row_bytes > SECTION_BYTES_MAX):
            yield section
            section, weight = [], 0
        section.append(row)
        weight += row_bytes
    if section:
        yield section


def _section(kind: SectionKind, rows: list[Values]) -> bytes:
    payload = bytearray(SECTION_HEADER.pack(kind.number, len(rows)))
    for column, values in zip(kind.columns, zip(*rows, strict=True), strict=True):
        column.write(values, payload)
    return bytes(payload)


def _frame(payload: bytes) -> bytes:
    return SECTION_FRAME.pack(len(payload), crc32c(payload)) + payload
