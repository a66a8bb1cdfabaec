"""Snapshot: an image as bytes. Equal images have equal bytes.

Layout (docs/formats/records.md): 8 bytes of magic, then sections. A section is its length (u32), the CRC32C of its payload (u32), both little
endian, and the payload: a message of image.proto. The first is an ImageHeader that says how many follow; each of the others is an
ImageSection with rows of one table, in key order: at most 1,000, and at most 64 KiB unless a single row is larger. A reader takes one section at a time, so that a large image never
holds up the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final, Protocol

from crc32c import crc32c
from google.protobuf.message import DecodeError
from ponor.metadata.v1.image_pb2 import ImageHeader, ImageSection

from ponor_metadata import snapshot_rows as rows
from ponor_metadata.digest import DIGEST_BYTES
from ponor_metadata.image import MetadataImage
from ponor_metadata.tables import MemoryTable

MAGIC: Final = b"PONORIM1"
SECTION_HEADER: Final = Struct("<II")
SECTION_ROWS_MAX: Final = 1_000
SECTION_BYTES_MAX: Final = 64 * 1024
"""Of rows. A section is what a reader takes in one go, and a row of a wide stream set object may have 50 KiB."""


class SnapshotCorruptError(Exception):
    """The bytes are no snapshot; the message says where and which rule they break."""


class _Message(Protocol):
    def SerializeToString(self, *, deterministic: bool) -> bytes: ...  # noqa: N802 -- protobuf's name


@dataclass(frozen=True, slots=True)
class TableCodec:
    """How one table travels: the field of ImageSection, the attribute of the image, and the two conversions."""

    field: str
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


TABLE_CODECS: Final = (
    TableCodec("clusters", rows.encode_cluster, rows.decode_cluster),
    TableCodec("features", rows.encode_feature, rows.decode_feature),
    TableCodec("tenants", rows.encode_tenant, rows.decode_tenant),
    TableCodec("counters", rows.encode_counter, rows.decode_counter),
    TableCodec("nodes", rows.encode_node, rows.decode_node),
    TableCodec("streams", rows.encode_stream, rows.decode_stream),
    TableCodec("objects", rows.encode_object, rows.decode_object),
    TableCodec("stream_objects", rows.encode_stream_object, rows.decode_stream_object),
    TableCodec("stream_set_objects", rows.encode_stream_set_object, rows.decode_stream_set_object),
    TableCodec("keys", rows.encode_key, rows.decode_key),
    TableCodec("topics", rows.encode_topic, rows.decode_topic),
    TableCodec("partitions", rows.encode_partition, rows.decode_partition),
    TableCodec("operations", rows.encode_operation, rows.decode_operation),
    TableCodec("broker_configs", rows.encode_broker_configs, rows.decode_broker_configs),
)
"""In the order of the format. Field of ImageSection and attribute of the image have the same name."""


def encode(image: MetadataImage) -> bytes:
    """The whole image as bytes."""
    sections = [_frame(section) for section in _sections(image)]
    header = ImageHeader(
        index=image.index,
        cluster_time_ms=image.cluster_time_ms,
        digest=image.digest,
        section_count=len(sections),
    )
    return b"".join((MAGIC, _frame(header), *sections))


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
    """Decodes a snapshot section by section."""

    def __init__(self, data: bytes) -> None:
        """Read magic and header.

        Raises:
            SnapshotCorruptError: they break the layout.
        """
        self._data = memoryview(data)
        if bytes(self._data[: len(MAGIC)]) != MAGIC:
            raise SnapshotCorruptError(f"snapshot: byte 0 is not the magic {MAGIC!r}; of another version?")
        self._position = len(MAGIC)
        header = self._message(ImageHeader.FromString)
        if len(header.digest) != DIGEST_BYTES:
            raise SnapshotCorruptError(f"snapshot: a digest of {len(header.digest)} bytes in the header")
        self._sections_left: int = header.section_count
        self.image = MetadataImage(
            index=header.index, cluster_time_ms=header.cluster_time_ms, digest=header.digest
        )
        """Complete once `read_section` answered False."""

    def read_section(self) -> bool:
        """Put the rows of the next section into the image; False when there was none.

        Raises:
            SnapshotCorruptError: the section breaks the layout.
        """
        if self._sections_left == 0:
            if self._position != len(self._data):
                raise SnapshotCorruptError(f"snapshot: bytes after the last section at {self._position}")
            return False
        position = self._position
        section = self._message(ImageSection.FromString)
        try:
            for codec in TABLE_CODECS:
                table: MemoryTable[Any, Any] = getattr(self.image, codec.field)
                for message in getattr(section, codec.field):
                    table.put(codec.decode(message))
        except (ValueError, AssertionError) as error:
            raise SnapshotCorruptError(
                f"snapshot: a bad row in the section at {position}: {error}"
            ) from error
        self._sections_left -= 1
        return True

    def _message(self, parse: Callable[[bytes], Any]) -> Any:
        start = self._position + SECTION_HEADER.size
        if start > len(self._data):
            raise SnapshotCorruptError(f"snapshot: ends inside of the section header at {self._position}")
        length, checksum = SECTION_HEADER.unpack_from(self._data, self._position)
        payload = bytes(self._data[start : start + length])
        if len(payload) != length:
            raise SnapshotCorruptError(f"snapshot: ends inside of the section at {self._position}")
        if crc32c(payload) != checksum:
            raise SnapshotCorruptError(f"snapshot: wrong CRC32C in the section at {self._position}")
        try:
            message = parse(payload)
        except DecodeError as error:
            raise SnapshotCorruptError(f"snapshot: no message in the section at {self._position}") from error
        self._position = start + length
        return message


def _sections(image: MetadataImage) -> Iterator[ImageSection]:
    for codec in TABLE_CODECS:
        messages = map(codec.encode, getattr(image, codec.field))
        for chunk in _chunks(messages):
            section = ImageSection()
            getattr(section, codec.field).extend(chunk)
            yield section


def _chunks(messages: Iterable[Any]) -> Iterator[list[Any]]:
    chunk: list[Any] = []
    chunk_bytes = 0
    for message in messages:
        size_bytes = message.ByteSize()
        if chunk and (len(chunk) == SECTION_ROWS_MAX or chunk_bytes + size_bytes > SECTION_BYTES_MAX):
            yield chunk
            chunk, chunk_bytes = [], 0
        chunk.append(message)
        chunk_bytes += size_bytes
    if chunk:
        yield chunk


def _frame(message: _Message) -> bytes:
    payload = message.SerializeToString(deterministic=True)
    return SECTION_HEADER.pack(len(payload), crc32c(payload)) + payload
