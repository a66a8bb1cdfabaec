"""The CRC32C of two pieces one behind the other, from the CRC32C of each: no byte of them is looked at.

A checksum is linear: behind `n` zero bytes it is a matrix of bits times itself, and the checksum of the second piece is added. The matrices for 1, 2, 4 … bytes are kept as
four tables of 256 values, so that joining two blocks takes a few microseconds of interpreted code (zlib's `crc32_combine` for the other polynomial).
"""

from __future__ import annotations

from functools import cache
from typing import Final, TypeAlias

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
