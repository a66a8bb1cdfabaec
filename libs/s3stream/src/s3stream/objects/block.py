"""One data block, proven: the records of one stream at one epoch.

A block stays encoded in memory; beside it stand only the position and base offset of each record, 12 bytes a record, so that a
cache can account for what it holds and a read in the middle decodes what it returns and nothing else.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from typing import Final

from crc32c import crc32c

from s3stream.errors import ObjectCorruptError
from s3stream.objects.format import BlockEntry
from s3stream.records import (
    RECORD_COUNT_MAX,
    RECORD_HEADER,
    RECORD_HEADER_BYTES,
    StreamRecord,
    decode_records,
)

_BLOCK_OVERHEAD_BYTES: Final = 600
_RECORD_OVERHEAD_BYTES: Final = 12


class DataBlock:
    """A block whose bytes match its index entry in every respect."""

    def __init__(
        self, entry: BlockEntry, data: bytes, positions: array[int], base_offsets: array[int]
    ) -> None:
        self.entry: Final = entry
        self._data: Final = data
        self._positions: Final = positions
        self._base_offsets: Final = base_offsets

    @property
    def memory_bytes(self) -> int:
        """What keeping this block costs."""
        return memory_bytes_of(self.entry)

    def records_from(self, offset: int) -> Iterator[StreamRecord]:
        """Records from the one that contains `offset` on; payloads are views into the block."""
        number = max(bisect_right(self._base_offsets, offset) - 1, 0)
        return decode_records(memoryview(self._data)[self._positions[number] :])


def memory_bytes_of(entry: BlockEntry) -> int:
    """What keeping the block of this entry will cost, known before it is fetched."""
    return entry.size_bytes + entry.record_count * _RECORD_OVERHEAD_BYTES + _BLOCK_OVERHEAD_BYTES


def decode_block(key: str, entry: BlockEntry, data: bytes) -> DataBlock:
    """Check a block against its index entry: length, CRC32C, and each record's stream, epoch and place in the run of offsets.

    Raises:
        ObjectCorruptError: names the object, the position and the rule.
    """
    if len(data) != entry.size_bytes:
        raise _corrupt(key, entry.position, f"length: {len(data)} bytes instead of {entry.size_bytes}")
    if crc32c(data) != entry.crc:
        raise _corrupt(key, entry.position, "CRC32C: its bytes do not match the one in the index")
    positions, base_offsets, end_offset, max_timestamp = _walk(key, entry, data)
    found = (end_offset, len(positions), max_timestamp)
    if found != (entry.end_offset, entry.record_count, entry.max_timestamp_ms):
        raise _corrupt(
            key,
            entry.position,
            f"summary: {len(positions)} records to offset {end_offset}, max timestamp {max_timestamp}; the index has"
            f" {entry.record_count}, {entry.end_offset}, {entry.max_timestamp_ms}",
        )
    return DataBlock(entry, data, positions, base_offsets)


def _walk(key: str, entry: BlockEntry, data: bytes) -> tuple[array[int], array[int], int, int | None]:
    """Position and base offset of every record, end offset and max timestamp. Reads headers alone: this is paid once per record read."""
    positions: array[int] = array("I")
    base_offsets: array[int] = array("q")
    length = len(data)
    at = 0
    expected_offset = entry.start_offset
    max_timestamp: int | None = None
    while at < length:
        if length - at < RECORD_HEADER_BYTES:
            raise _corrupt(key, entry.position + at, f"record: {length - at} bytes remain")
        stream_id, epoch, base_offset, timestamp, count, payload_bytes = RECORD_HEADER.unpack_from(data, at)
        end = at + RECORD_HEADER_BYTES + payload_bytes
        if (
            stream_id != entry.stream_id
            or epoch != entry.epoch
            or base_offset != expected_offset
            or not 1 <= count <= RECORD_COUNT_MAX
            or end > length
        ):
            raise _corrupt(
                key,
                entry.position + at,
                f"record: stream {stream_id}, epoch {epoch}, offset {base_offset}, count {count}, {payload_bytes} bytes where"
                f" stream {entry.stream_id}, epoch {entry.epoch}, offset {expected_offset} belongs",
            )
        positions.append(at)
        base_offsets.append(base_offset)
        at = end
        expected_offset += count
        if max_timestamp is None or timestamp > max_timestamp:
            max_timestamp = timestamp
    return positions, base_offsets, expected_offset, max_timestamp


def _corrupt(key: str, position: int, rule: str) -> ObjectCorruptError:
    return ObjectCorruptError(f"{key}, position {position}: block {rule}")
