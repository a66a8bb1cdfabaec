"""Object format v1: the sizes and structs that the writer and the readers share.

    data block 0 | … | data block n−1 | index block | footer

docs/formats/object.md describes every byte. Stream objects and stream set objects have the same format. All
integers are big-endian. The format is based on AutoMQ's. Differences: 64-bit end offsets (a 32-bit delta
lost data in AutoMQ, see its PR 3339), CRC32C, stream epoch and max timestamp for every block, and a footer
with its own CRC.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from crc32c import crc32c
from ponor_runtime.identity import ObjectId, StreamEpoch, StreamId

from s3stream.records import TIMESTAMP_MIN

MAGIC: Final = b"PONOROBJ"
"""The last eight bytes of every object."""

FORMAT_VERSION: Final = 1
BLOCK_BYTES_MAX: Final = 512 * 1024
"""A block is at most this long, or contains a single larger record."""

ENTRY: Final = struct.Struct(">qqqqqQIIII")
"""stream id, stream epoch, start offset, end offset, max timestamp, position, size, record count, CRC32C,
spread.
"""

ENTRY_BYTES: Final = ENTRY.size
SPREAD_MAX: Final = (1 << 32) - 1
"""Maximum distance of timestamps in an entry, 49 days; a larger one is stored as unknown."""

FOOTER: Final = struct.Struct(">qQQIIHHI8s")
"""object id, index position, index length, entry count, index CRC32C, version, flags (0), footer CRC32C,
magic.
"""

FOOTER_BYTES: Final = FOOTER.size
FOOTER_CHECKED_BYTES: Final = 36
"""The footer's CRC32C covers these first bytes. The CRC itself and the magic follow them."""

assert ENTRY_BYTES == 64
assert FOOTER_BYTES == 48


class BlockEntry(NamedTuple):
    """One index entry: a data block of one stream at one stream epoch.

    The block contains `record_count` records that cover [start_offset, end_offset) without gaps, at
    [position, position + size_bytes) of the object. `max_timestamp_ms` is the largest timestamp of its
    records (−1: none). `spread` encodes the smallest timestamp: its distance from the largest in
    milliseconds, plus one; 0 if it is unknown.
    """

    stream_id: StreamId
    epoch: StreamEpoch
    start_offset: int
    end_offset: int
    max_timestamp_ms: int
    position: int
    size_bytes: int
    record_count: int
    crc: int
    spread: int = 0

    @property
    def min_timestamp_ms(self) -> int:
        """Lower bound of the timestamps in the block; `TIMESTAMP_MIN` if unknown."""
        return self.max_timestamp_ms - self.spread + 1 if self.spread else TIMESTAMP_MIN

    def encode(self) -> bytes:
        """Encode the 64 bytes of this entry."""
        return ENTRY.pack(*self)


def spread_of(min_timestamp_ms: int, max_timestamp_ms: int) -> int:
    """Return the `spread` of an entry with these bounds of its timestamps: 0 if they are too far
    apart or the minimum is unknown.
    """
    spread = max(max_timestamp_ms - min_timestamp_ms, 0) + 1
    return spread if spread <= SPREAD_MAX else 0


class Footer(NamedTuple):
    """The last 48 bytes of an object, without the footer's own CRC and magic."""

    object_id: ObjectId
    index_position: int
    index_bytes: int
    entry_count: int
    index_crc: int
    version: int = FORMAT_VERSION
    flags: int = 0

    def encode(self) -> bytes:
        """Encode the 48 bytes, including CRC and magic."""
        checked = FOOTER.pack(*self, 0, MAGIC)[:FOOTER_CHECKED_BYTES]
        return FOOTER.pack(*self, crc32c(checked), MAGIC)
