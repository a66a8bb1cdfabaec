"""Kafka's rule for the partition of an internal topic that stores a group or a transactional id."""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final

CACHED_CHARS_MAX: Final = 255
"""Longer texts are not cached: the cache could hold hundreds of megabytes of names that clients choose."""


def java_string_hash(text: str) -> int:
    """Return Java's `String.hashCode()`: over UTF-16 code units, a signed 32-bit number."""
    return _cached_hash(text) if len(text) <= CACHED_CHARS_MAX else _hash(text)


def _hash(text: str) -> int:
    encoded = text.encode("utf-16-le", "surrogatepass")
    value = 0
    for unit in struct.unpack(f"<{len(encoded) // 2}H", encoded):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


_cached_hash = lru_cache(maxsize=4_096)(_hash)


def partition_for(key: str, partitions: int) -> int:
    """Return the partition that stores a key: Kafka's `abs(hashCode) % partitions`, where the abs of the
    smallest int is 0.

    Kafka's tools compute the same, so the rule is part of the format.
    """
    assert partitions > 0
    hashed = java_string_hash(key)
    return (0 if hashed == -(1 << 31) else abs(hashed)) % partitions
