"""Kafka's rule for the partition of an internal topic that stores a group or a transactional id."""

from __future__ import annotations

from ponor_kafka.java_hash import java_string_hash


def partition_for(key: str, partitions: int) -> int:
    """Return the partition that stores a key: Kafka's `abs(hashCode) % partitions`, where the abs of the
    smallest int is 0.

    Kafka's tools compute the same, so the rule is part of the format.
    """
    assert partitions > 0
    hashed = java_string_hash(key)
    return (0 if hashed == -(1 << 31) else abs(hashed)) % partitions
