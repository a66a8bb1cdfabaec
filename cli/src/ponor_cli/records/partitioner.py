"""Which partition a record goes to: as Kafka's own producers choose, so that a key stays with its partition whoever writes it.

Source: `BuiltInPartitioner` and `Utils.murmur2` of Apache Kafka's clients (MurmurHash2, 32 bits, by Austin Appleby, public domain).
"""

from __future__ import annotations

from typing import Final

_SEED: Final = 0x9747B28C
_MULTIPLIER: Final = 0x5BD1E995
_SHIFT: Final = 24
_MASK: Final = 0xFFFF_FFFF


def partition_of_key(key: bytes, partitions: int) -> int:
    """The partition of a key among so many."""
    return (murmur2(key) & 0x7FFF_FFFF) % partitions


def murmur2(data: bytes) -> int:
    """MurmurHash2 with Kafka's seed, unsigned."""
    length = len(data)
    state = (_SEED ^ length) & _MASK
    whole = length & ~3
    for position in range(0, whole, 4):
        word = int.from_bytes(data[position : position + 4], "little") * _MULTIPLIER & _MASK
        word ^= word >> _SHIFT
        state = (state * _MULTIPLIER & _MASK) ^ (word * _MULTIPLIER & _MASK)
    if whole < length:
        state ^= int.from_bytes(data[whole:], "little")
        state = state * _MULTIPLIER & _MASK
    state ^= state >> 13
    state = state * _MULTIPLIER & _MASK
    return state ^ (state >> 15)
