"""One verified data block: the records of one stream at one epoch.

A block stays encoded in memory, with the position and base offset of each record (12 bytes). A cache can
therefore account for its memory, and a read in the middle decodes only the records that it returns.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from itertools import islice
from typing import Final

from crc32c import crc32c
from ponor_runtime.turns import Steps, at_once

from s3stream.errors import ObjectCorruptError
from s3stream.objects.block_walk import walk
from s3stream.objects.format import BLOCK_BYTES_MAX, BlockEntry
from s3stream.records import RECORD_HEADER, RECORD_HEADER_BYTES, TIMESTAMP_MIN, StreamRecord

RECORDS_PER_STEP: Final = 256
"""Records that a read decodes in one turn of the event loop, in about a quarter of a millisecond."""

RECORDS_PER_WALK: Final = 16_384
"""Blocks of up to this many records are verified in one turn, in less than half a millisecond."""

_BLOCK_OVERHEAD_BYTES: Final = 600
_RECORD_OVERHEAD_BYTES: Final = 12


class DataBlock:
    """A block that matches its index entry."""

    def __init__(
        self, entry: BlockEntry, data: bytes, positions: array[int], base_offsets: array[int]
    ) -> None:
        self.entry: Final = entry
        self._data: Final = data
        self._positions: Final = positions
        self._base_offsets: Final = base_offsets

    @property
    def memory_bytes(self) -> int:
        """Memory of the cached block."""
        return memory_bytes_of(self.entry)

    def records_from(self, offset: int) -> Iterator[StreamRecord]:
        """Return records from the one that contains `offset` on; payloads are views into the block."""
        number = max(bisect_right(self._base_offsets, offset) - 1, 0)
        view, stream_id, epoch = memoryview(self._data), self.entry.stream_id, self.entry.epoch
        unpack_from = RECORD_HEADER.unpack_from
        for at in islice(self._positions, number, None):
            _, _, base_offset, max_timestamp, count, payload_bytes = unpack_from(view, at)
            start = at + RECORD_HEADER_BYTES
            yield StreamRecord(
                stream_id, epoch, base_offset, count, max_timestamp, view[start : start + payload_bytes]
            )


def memory_bytes_of(entry: BlockEntry) -> int:
    """Memory that the block of this entry will take in a cache."""
    return entry.size_bytes + entry.record_count * _RECORD_OVERHEAD_BYTES + _BLOCK_OVERHEAD_BYTES


def decode_block(key: str, entry: BlockEntry, data: bytes) -> DataBlock:
    """Run `block_steps` without pauses."""
    return at_once(block_steps(key, entry, data))


def block_steps(key: str, entry: BlockEntry, data: bytes) -> Steps[DataBlock]:
    """Verify a block against its index entry: length, CRC32C, and each record's stream, epoch and offsets.

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
        raise _corrupt(key, entry.position, "CRC32C: the bytes do not match the CRC in the index")
    positions: array[int] = array("I")
    base_offsets: array[int] = array("q")
    at, offset, max_timestamp = 0, entry.start_offset, TIMESTAMP_MIN
    while at < len(data):
        before = at
        # The walk stops before a record that breaks a rule, and never moves back.
        at, offset, newest = walk(
            data, at, RECORDS_PER_WALK, entry.stream_id, entry.epoch, offset, positions, base_offsets
        )
        assert before <= at <= len(data)
        if at == before:
            raise _misplaced(key, entry, data, at, offset)
        max_timestamp = max(max_timestamp, newest)
        yield
    found = (offset, len(positions), max_timestamp)
    if found != (entry.end_offset, entry.record_count, entry.max_timestamp_ms):
        raise _corrupt(
            key,
            entry.position,
            f"summary: {found[1]} records up to offset {found[0]}, max timestamp {found[2]};"
            f" the index has {entry.record_count} records up to offset {entry.end_offset},"
            f" max timestamp {entry.max_timestamp_ms}",
        )
    return DataBlock(entry, data, positions, base_offsets)


def _misplaced(key: str, entry: BlockEntry, data: bytes, at: int, offset: int) -> ObjectCorruptError:
    """Return the error for the record before which the walk stopped."""
    if len(data) - at < RECORD_HEADER_BYTES:
        return _corrupt(
            key, entry.position + at, f"record: {len(data) - at} bytes remain, too few for a record header"
        )
    stream_id, epoch, base_offset, _, count, payload_bytes = RECORD_HEADER.unpack_from(data, at)
    return _corrupt(
        key,
        entry.position + at,
        f"record: stream {stream_id}, epoch {epoch}, offset {base_offset}, count {count}, {payload_bytes}"
        f" bytes; expected stream {entry.stream_id}, epoch {entry.epoch}, offset {offset}",
    )


def _corrupt(key: str, position: int, rule: str) -> ObjectCorruptError:
    return ObjectCorruptError(f"{key}, position {position}: block {rule}")
