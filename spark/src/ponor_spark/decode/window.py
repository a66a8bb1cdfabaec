"""What a kernel is told about one batch: where its records lie in Kafka's offsets and in time, and which of them are wanted.

What lives here: the value alone, which both kernels and who calls them share.
"""

from __future__ import annotations

from typing import NamedTuple


class Window(NamedTuple):
    """Of one batch. Records outside of [start_offset, end_offset) and [start_ms, last_ms] are left out: the largest time there is must not be lost."""

    place: int
    """The Kafka offset that names the batch in errors."""
    record_count: int
    base_offset: int
    """Kafka offset of offset delta 0."""
    last_offset_delta: int
    base_timestamp_ms: int
    """What the records' deltas add to; the time of all of them if `is_append_time`."""
    is_append_time: bool
    start_offset: int
    end_offset: int
    start_ms: int
    last_ms: int
