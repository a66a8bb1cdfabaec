"""The index of one object, decoded and verified: the positions of each stream's blocks.

Pure: `objects/reader.py` fetches the bytes. The index stays encoded, 64 bytes per block, because caches hold
many.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Final

from crc32c import crc32c
from ponor_runtime.disk import Buffer
from ponor_runtime.identity import ObjectId, StreamId
from ponor_runtime.turns import Steps, at_once

from s3stream.errors import ObjectCorruptError
from s3stream.objects.format import (
    ENTRY,
    ENTRY_BYTES,
    FOOTER,
    FOOTER_BYTES,
    FOOTER_CHECKED_BYTES,
    FORMAT_VERSION,
    MAGIC,
    BlockEntry,
    Footer,
)
from s3stream.records import RECORD_HEADER_BYTES

ENTRIES_PER_STEP: Final = 128
"""Entries verified in one turn of the event loop, about a quarter of a millisecond."""
_ORDER: Final = struct.Struct(">qqq")
"""First fields of an encoded entry, which are all that a search reads: stream id, epoch, start offset."""
_INDEX_OVERHEAD_BYTES: Final = 400


class ObjectIndex:
    """All index entries of one object, in (stream id, start offset) order."""

    def __init__(self, key: str, footer: Footer, encoded: bytes) -> None:
        self.key: Final = key
        self.object_id: Final[ObjectId] = footer.object_id
        self.size_bytes: Final = footer.index_position + footer.index_bytes + FOOTER_BYTES
        self._encoded: Final = encoded
        self._count: Final = footer.entry_count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> BlockEntry:
        if not 0 <= number < self._count:
            raise IndexError(f"{self.key} has {self._count} blocks, not {number + 1}")
        return BlockEntry._make(ENTRY.unpack_from(self._encoded, number * ENTRY_BYTES))

    def __iter__(self) -> Iterator[BlockEntry]:
        return map(BlockEntry._make, ENTRY.iter_unpack(self._encoded))

    @property
    def memory_bytes(self) -> int:
        """Memory of the cached index."""
        return len(self._encoded) + _INDEX_OVERHEAD_BYTES

    def blocks_of(self, stream_id: StreamId, start_offset: int, end_offset: int) -> Sequence[BlockEntry]:
        """Return the blocks of one stream that contain offsets of [start_offset, end_offset), in
        offset order. They are adjacent in the object.
        """
        number = bisect_right(range(self._count), (stream_id, start_offset), key=self._position_in_order)
        if number > 0:
            before = self[number - 1]
            if before.stream_id == stream_id and before.end_offset > start_offset:
                number -= 1
        found: list[BlockEntry] = []
        while number < self._count:
            entry = self[number]
            if entry.stream_id != stream_id or entry.start_offset >= end_offset:
                break
            found.append(entry)
            number += 1
        return found

    def blocks_behind(self, position: int) -> Sequence[BlockEntry]:
        """Return the blocks that begin at or after a position of the object."""
        number = bisect_left(range(self._count), position, key=lambda at: self[at].position)
        return [self[at] for at in range(number, self._count)]

    def _position_in_order(self, number: int) -> tuple[StreamId, int]:
        stream_id, _, start_offset = _ORDER.unpack_from(self._encoded, number * ENTRY_BYTES)
        return StreamId(stream_id), start_offset


def decode_footer(key: str, object_id: ObjectId, tail: Buffer, size_bytes: int) -> Footer:
    """Decode and verify the footer at the end of `tail`, the last bytes of an object of
    `size_bytes`.

    Raises:
        ObjectCorruptError: names the object, the position and the rule.
    """
    if size_bytes < FOOTER_BYTES + ENTRY_BYTES or len(tail) < FOOTER_BYTES:
        raise ObjectCorruptError(
            f"{key}, position 0: object length: {size_bytes} bytes are too few for an index and a footer"
        )
    position = size_bytes - FOOTER_BYTES
    encoded = memoryview(tail)[-FOOTER_BYTES:]
    *fields, footer_crc, magic = FOOTER.unpack(encoded)
    footer = Footer._make(fields)

    def refuse(rule: str) -> ObjectCorruptError:
        return ObjectCorruptError(f"{key}, position {position}: footer {rule}")

    if magic != MAGIC:
        raise refuse(f"magic: {magic!r} instead of {MAGIC!r}; this is not an object, or its end is missing")
    if crc32c(encoded[:FOOTER_CHECKED_BYTES]) != footer_crc:
        raise refuse("CRC32C: the bytes of the footer do not match the CRC")
    if footer.version != FORMAT_VERSION or footer.flags != 0:
        raise refuse(
            f"version: {footer.version} with flags {footer.flags}; this reader supports {FORMAT_VERSION}"
            " with 0"
        )
    if footer.object_id != object_id:
        raise refuse(f"object id: {footer.object_id}; the key says {object_id}")
    if footer.entry_count < 1 or footer.index_bytes != footer.entry_count * ENTRY_BYTES:
        raise refuse(
            f"entry count: {footer.entry_count} entries do not match {footer.index_bytes} bytes of index"
        )
    if footer.index_position + footer.index_bytes != position:
        raise refuse(
            f"index position: {footer.index_position} + {footer.index_bytes} bytes do not end at the footer"
        )
    return footer


def decode_index(key: str, footer: Footer, encoded: bytes) -> ObjectIndex:
    """Run `index_steps` without pauses."""
    return at_once(index_steps(key, footer, encoded))


def index_steps(key: str, footer: Footer, encoded: bytes) -> Steps[ObjectIndex]:
    """Decode and verify the index block and every entry in it.

    The blocks must cover the object from position 0 to the index without gaps, in strict (stream,
    offset) order.

    Raises:
        ObjectCorruptError: names the object, the position and the rule.
    """
    if len(encoded) != footer.index_bytes or crc32c(encoded) != footer.index_crc:
        raise ObjectCorruptError(
            f"{key}, position {footer.index_position}: index CRC32C: the bytes do not match the CRC"
        )
    previous: BlockEntry | None = None
    data_end = 0
    for number, entry in enumerate(map(BlockEntry._make, ENTRY.iter_unpack(encoded))):
        broken = _broken_rule(entry, data_end) or _broken_order(previous, entry)
        if broken is not None:
            position = footer.index_position + number * ENTRY_BYTES
            raise ObjectCorruptError(f"{key}, position {position}: index entry {number} {broken}")
        data_end = entry.position + entry.size_bytes
        previous = entry
        if number % ENTRIES_PER_STEP == ENTRIES_PER_STEP - 1:
            yield
    if data_end != footer.index_position:
        raise ObjectCorruptError(
            f"{key}, position {data_end}: blocks end here, but the index begins at {footer.index_position}"
        )
    return ObjectIndex(key, footer, encoded)


def _broken_rule(entry: BlockEntry, data_end: int) -> str | None:
    if entry.stream_id < 0 or entry.epoch < 0:
        return f"identity: stream {entry.stream_id} at epoch {entry.epoch}"
    if not 0 <= entry.start_offset < entry.end_offset:
        return f"offsets: [{entry.start_offset}, {entry.end_offset}) is not a valid range"
    if entry.position != data_end:
        return f"position: {entry.position}; the previous block ends at {data_end}"
    if not 1 <= entry.record_count <= entry.end_offset - entry.start_offset:
        return f"record count: {entry.record_count} for [{entry.start_offset}, {entry.end_offset})"
    if entry.size_bytes < entry.record_count * RECORD_HEADER_BYTES:
        return f"size: {entry.size_bytes} bytes cannot hold {entry.record_count} record headers"
    return None


def _broken_order(previous: BlockEntry | None, entry: BlockEntry) -> str | None:
    if previous is None or previous.stream_id < entry.stream_id:
        return None
    if previous.stream_id > entry.stream_id:
        return f"order: stream {entry.stream_id} after stream {previous.stream_id}"
    if entry.start_offset < previous.end_offset or entry.epoch < previous.epoch:
        return (
            f"order: stream {entry.stream_id} at epoch {entry.epoch}, offset {entry.start_offset}"
            f" after epoch {previous.epoch}, end {previous.end_offset}"
        )
    return None
