"""Joins small adjacent blocks, so that the index of an object with many small streams stays small. Pure.

Only the index changes: a block is a sequence of records, and its CRC32C follows from those of its pieces. A checksum is
linear: behind `n` zero bytes it is a bit matrix times itself, and the checksum of the second piece is added. The
matrices for 1, 2, 4 … bytes are kept as four tables of 256 values, so joining two blocks takes a few microseconds of
interpreted code (zlib has `crc32_combine` for the other polynomial).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Final, TypeAlias

from s3stream.objects.format import BlockEntry, spread_of

_POLYNOMIAL: Final = 0x82F63B78
"""Castagnoli's, bits reversed (RFC 3720)."""
_BITS: Final = range(32)

_Columns: TypeAlias = tuple[int, ...]
"""What each of the 32 bits becomes."""
_Tables: TypeAlias = tuple[tuple[int, ...], ...]
"""What each value of each of the four bytes becomes."""


def joined_crc(first: int, second: int, second_bytes: int) -> int:
    """CRC32C of two pieces as one.

    Args:
        first: CRC32C of the first piece.
        second: CRC32C of the second.
        second_bytes: length of the second; the first one's does not matter.
    """
    power = 0
    while second_bytes:
        if second_bytes & 1:
            a, b, c, d = _tables(power)
            first = a[first & 0xFF] ^ b[first >> 8 & 0xFF] ^ c[first >> 16 & 0xFF] ^ d[first >> 24]
        second_bytes >>= 1
        power += 1
    return first ^ second


@cache
def _tables(power: int) -> _Tables:
    """For 2^`power` zero bytes. Lengths have 32 bits in the format, so there are at most 32 of them, of 40 KiB each."""
    columns = _columns(power)
    tables: list[tuple[int, ...]] = []
    for byte in range(4):
        values = [0]
        for column in columns[8 * byte : 8 * byte + 8]:
            values += [value ^ column for value in values]
        tables.append(tuple(values))
    return tuple(tables)


@cache
def _columns(power: int) -> _Columns:
    if power == 0:
        return tuple(_behind_a_zero_byte(1 << bit) for bit in _BITS)
    half = _columns(power - 1)
    return tuple(_times(half, column) for column in half)


def _behind_a_zero_byte(crc: int) -> int:
    for _ in range(8):
        crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
    return crc


def _times(columns: _Columns, value: int) -> int:
    product = 0
    for bit in _BITS:
        if value >> bit & 1:
            product ^= columns[bit]
    return product


def joined_blocks(entries: Iterable[BlockEntry], block_bytes_max: int) -> Iterator[BlockEntry]:
    """Blocks in the order in which they will lie in one object, as few as the format allows.

    Blocks are joined that continue each other in one stream under one epoch, up to `block_bytes_max`; a larger one stays as it is. Positions are those in an object that holds
    just these blocks from its beginning on.
    """
    position = 0
    open_block: BlockEntry | None = None
    for entry in entries:
        if open_block is not None:
            if _continues(open_block, entry) and open_block.size_bytes + entry.size_bytes <= block_bytes_max:
                open_block = _joined(open_block, entry)
                continue
            yield open_block
            position += open_block.size_bytes
        open_block = entry._replace(position=position)
    if open_block is not None:
        yield open_block


def _continues(block: BlockEntry, entry: BlockEntry) -> bool:
    return (block.stream_id, block.epoch, block.end_offset) == (
        entry.stream_id,
        entry.epoch,
        entry.start_offset,
    )


def _joined(block: BlockEntry, entry: BlockEntry) -> BlockEntry:
    max_timestamp_ms = max(block.max_timestamp_ms, entry.max_timestamp_ms)
    min_timestamp_ms = min(block.min_timestamp_ms, entry.min_timestamp_ms)
    return block._replace(
        end_offset=entry.end_offset,
        max_timestamp_ms=max_timestamp_ms,
        size_bytes=block.size_bytes + entry.size_bytes,
        record_count=block.record_count + entry.record_count,
        crc=joined_crc(block.crc, entry.crc, entry.size_bytes),
        spread=spread_of(min_timestamp_ms, max_timestamp_ms),
    )
