"""The partition of `__consumer_offsets` that stores a group. Kafka's tools compute the same, so the
rule is part of the format.
"""

from __future__ import annotations

import struct


def java_string_hash(text: str) -> int:
    """Return Java's `String.hashCode()`: over UTF-16 code units, a signed 32-bit number."""
    encoded = text.encode("utf-16-le", "surrogatepass")
    value = 0
    for unit in struct.unpack(f"<{len(encoded) // 2}H", encoded):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def partition_for(group_id: str, partitions: int) -> int:
    """Return Kafka's `abs(hashCode) % partitions`, where the abs of the smallest int is 0."""
    assert partitions > 0
    hashed = java_string_hash(group_id)
    return (0 if hashed == -(1 << 31) else abs(hashed)) % partitions
