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
from s3stream.objects.format import BLOCK_BYTES_MAX, BlockEntry
from s3stream.records import (
    RECORD_COUNT_MAX,
    RECORD_HEADER,
    RECORD_HEADER_BYTES,
    StreamRecord,
    decode_records,
)
from s3stream.turns import Steps, at_once

RECORDS_PER_STEP: Final = 256
"""A quarter of a millisecond of the loop."""

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
    """`block_steps` at once."""
    return at_once(block_steps(key, entry, data))


def block_steps(key: str, entry: BlockEntry, data: bytes) -> Steps[DataBlock]:
    """Check a block against its index entry: length, CRC32C, and each record's stream, epoch and place in the run of offsets.

    Raises:
        ObjectCorruptError: names the object, the position and the rule.
    """
    if len(data) != entry.size_bytes:
        raise _corrupt(key, entry.position, f"length: {len(data)} bytes instead of {entry.size_bytes}")
    crc = 0
    view = memoryview(data)
    for start in range(0, len(data), BLOCK_BYTES_MAX):
        crc = crc32c(view[start : start + BLOCK_BYTES_MAX], crc)
        yield
    if crc != entry.crc:
        raise _corrupt(key, entry.position, "CRC32C: its bytes do not match the one in the index")
    walk = _RecordWalk(key, entry, data)
    while walk.advance(RECORDS_PER_STEP):
        yield
    found = (walk.expected_offset, len(walk.positions), walk.max_timestamp)
    if found != (entry.end_offset, entry.record_count, entry.max_timestamp_ms):
        raise _corrupt(
            key,
            entry.position,
            f"summary: {found[1]} records to offset {found[0]}, max timestamp {found[2]}; the index has"
            f" {entry.record_count}, {entry.end_offset}, {entry.max_timestamp_ms}",
        )
    return DataBlock(entry, data, walk.positions, walk.base_offsets)


class _RecordWalk:
    """Position and base offset of every record, end offset and max timestamp. Reads headers alone: this is paid once per record read."""

    def __init__(self, key: str, entry: BlockEntry, data: bytes) -> None:
        self._key = key
        self._entry = entry
        self._data = data
        self._at = 0
        self.positions: array[int] = array("I")
        self.base_offsets: array[int] = array("q")
        self.expected_offset = entry.start_offset
        self.max_timestamp: int | None = None

    def advance(self, records: int) -> bool:
        """Walk over so many records; False when the block is walked."""
        key, entry, data, at = self._key, self._entry, self._data, self._at
        length, expected_offset, max_timestamp = len(data), self.expected_offset, self.max_timestamp
        for _ in range(records):
            if at >= length:
                break
            if length - at < RECORD_HEADER_BYTES:
                raise _corrupt(key, entry.position + at, f"record: {length - at} bytes remain")
            stream_id, epoch, base_offset, timestamp, count, payload_bytes = RECORD_HEADER.unpack_from(
                data, at
            )
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
            self.positions.append(at)
            self.base_offsets.append(base_offset)
            at = end
            expected_offset += count
            if max_timestamp is None or timestamp > max_timestamp:
                max_timestamp = timestamp
        self._at, self.expected_offset, self.max_timestamp = at, expected_offset, max_timestamp
        return at < length


def _corrupt(key: str, position: int, rule: str) -> ObjectCorruptError:
    return ObjectCorruptError(f"{key}, position {position}: block {rule}")
