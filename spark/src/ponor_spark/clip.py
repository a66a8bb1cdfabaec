"""Ranges of Kafka offsets of a partition. Planning, decoding and reads of the tail share them.

Planning runs without Arrow, so this module does not import it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Clip:
    """Restricts reading to the Kafka offsets [start_offset, end_offset) of a partition."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class AbortedRange:
    """An aborted transaction: batches of this producer at offsets [first_offset, last_offset] were never
    committed.
    """

    producer_id: int
    first_offset: int
    last_offset: int
