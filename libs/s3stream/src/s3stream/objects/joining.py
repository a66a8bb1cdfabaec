"""Joins small adjacent blocks, so that the index of an object with many small streams stays small.

Only the index changes: a block is a sequence of records, and the CRC32C of a joined block can be computed
from the CRC32Cs of its pieces. A CRC is linear: appending `n` zero bytes multiplies the first checksum by a
matrix over bits, and the second checksum is then XORed. The matrices for 1, 2, 4 … bytes are stored as four
tables of 256 values, so joining two blocks takes a few microseconds of interpreted code (zlib has
`crc32_combine` for another polynomial).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Final, TypeAlias

from s3stream.objects.format import BlockEntry, spread_of

_POLYNOMIAL: Final = 0x82F63B78
"""The Castagnoli polynomial with reversed bits (RFC 3720)."""
_BITS: Final = range(32)

_Columns: TypeAlias = tuple[int, ...]
"""A matrix over bits: the image of each of the 32 bits."""
_Tables: TypeAlias = tuple[tuple[int, ...], ...]
"""The same matrix as tables: the image of each value of each of the four bytes."""


def joined_crc(first: int, second: int, second_bytes: int) -> int:
    """CRC32C of two concatenated pieces.

    Args:
        first: CRC32C of the first piece.
        second: CRC32C of the second piece.
        second_bytes: length of the second piece.
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
    """Return the tables for 2^`power` zero bytes. Lengths have 32 bits in the format, so there are
    at most 32 tables of 40 KiB.
    """
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
    """Return the blocks of one object, joined as far as the format allows.

    Adjacent blocks of one stream and epoch are joined up to `block_bytes_max`; a larger block is
    unchanged. The returned positions are those in an object that contains just these blocks.
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
