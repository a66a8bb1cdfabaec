"""Retention by age and by size: the offset from which a partition keeps its data (Kafka's
retention.ms and retention.bytes).

No I/O. Whole segments are deleted, oldest first, as in Kafka: by age while the newest record of the oldest
segment is too old, by size while the log without it still reaches the bound. The active segment is closed and
deleted too if its newest record is too old.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from ponor_broker.partitions.log.partition_log import PartitionLog
from ponor_broker.partitions.topics.topic_config import TopicConfig

NEVER_MS: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Extent:
    """A segment for retention: Kafka offsets [base, end), bytes, and the time from which its age counts."""

    base_offset: int
    end_offset: int
    size_bytes: int
    newest_ms: int


def extents(log: PartitionLog, limit: int) -> list[Extent]:
    """Return the oldest segments of a log, at most `limit`, oldest first. The last one may be the active
    segment, unless this is empty.

    The age of a segment without timestamps counts from the creation of the next segment, or from its own
    creation if it is the last.
    """
    found: list[Extent] = []
    segments = log.log_meta.segments
    for segment, after in pairwise(segments[: limit + 1]):
        content = segment.content
        newest_ms = after.created_ms if content is None else content.max_timestamp
        found.append(
            Extent(
                segment.base_offset,
                after.base_offset,
                segment.size_bytes,
                newest_ms if newest_ms >= 0 else after.created_ms,
            )
        )
    active, content = log.log_meta.active, log.active_content
    if len(segments) <= limit and log.end_offset > active.base_offset:
        newest_ms = content.max_timestamp if content.max_timestamp >= 0 else active.created_ms
        found.append(Extent(active.base_offset, log.end_offset, content.size_bytes, newest_ms))
    return found


def retained_from(
    segments: Sequence[Extent], log_bytes: int, readable_end: int, config: TopicConfig, now_ms: int
) -> int:
    """Return the offset from which data stays: the base of a segment, or the end of the last given segment.
    Nothing above the readable end is deleted.

    Args:
        segments: the oldest ones of the log.
        log_bytes: bytes of all segments.
        readable_end: the high watermark.
        config: the topic's config.
        now_ms: wall clock.
    """
    by_size = _gone_by_size(segments, log_bytes, config)
    by_age = _gone_by_age(segments, config, now_ms)
    gone = max(by_size, by_age)
    while gone and segments[gone - 1].end_offset > readable_end:
        gone -= 1
    if gone:
        return segments[gone - 1].end_offset
    return segments[0].base_offset if segments else 0


def next_due_ms(segments: Sequence[Extent], config: TopicConfig) -> int:
    """Return the time at which the oldest segment exceeds its age; NEVER_MS without segments, or without
    retention by age.
    """
    if not segments or not config.deletes_old or config.retention_ms < 0:
        return NEVER_MS
    return min(segments[0].newest_ms + config.retention_ms + 1, NEVER_MS)


def _gone_by_age(segments: Sequence[Extent], config: TopicConfig, now_ms: int) -> int:
    if not config.deletes_old or config.retention_ms < 0:
        return 0
    for at, segment in enumerate(segments):
        if now_ms - segment.newest_ms <= config.retention_ms:
            return at
    return len(segments)


def _gone_by_size(segments: Sequence[Extent], log_bytes: int, config: TopicConfig) -> int:
    if not config.deletes_old or config.retention_bytes < 0:
        return 0
    excess_bytes = log_bytes - config.retention_bytes
    for at, segment in enumerate(segments):
        excess_bytes -= segment.size_bytes
        if excess_bytes < 0:
            return at
    return len(segments)
