"""Input of a kernel for one batch, shared by both kernels and their callers: Kafka offsets and times of its
records, and the requested ranges.
"""

from __future__ import annotations

from typing import NamedTuple


class Window(NamedTuple):
    """Window of one batch.

    Records outside [start_offset, end_offset) and [start_ms, last_ms] are dropped; `last_ms` is inclusive so
    that the largest timestamp is representable.
    """

    place: int
    """The Kafka offset that identifies the batch in errors."""
    record_count: int
    base_offset: int
    """Kafka offset of offset delta 0."""
    last_offset_delta: int
    base_timestamp_ms: int
    """Base of the records' timestamp deltas; the time of all records if `is_append_time`."""
    is_append_time: bool
    start_offset: int
    end_offset: int
    start_ms: int
    last_ms: int
