"""Parts of a partition in Kafka's offsets, as the driver hands them to whoever decodes.

What lives here: two plain values that planning, decoding and tails share. No behaviour, and nothing of Arrow: planning does without.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Clip:
    """Only these Kafka offsets of a partition, [start_offset, end_offset), are wanted."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class AbortedRange:
    """An aborted transaction: batches of this producer at offsets [first_offset, last_offset] were never committed."""

    producer_id: int
    first_offset: int
    last_offset: int
