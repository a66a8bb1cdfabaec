"""Retention by age and by size: from which offset on a partition keeps its data (Kafka's retention.ms and retention.bytes).

What lives here: the decision, pure. Whole segments go, oldest first, as in Kafka: by age as long as the oldest's newest record is too old, by size as
long as what is left still reaches the bound. The active segment goes too if all of it is too old; it is closed for that.
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
    """A segment as retention sees it: Kafka offsets [base, end), its bytes, and the time from which its age is counted."""

    base_offset: int
    end_offset: int
    size_bytes: int
    newest_ms: int


def extents(log: PartitionLog, limit: int) -> list[Extent]:
    """The oldest segments of a log, at most `limit`, oldest first; the active one last if it is among them and not empty.

    A segment without timestamps is as old as its end: as the next one's beginning, or its own where it is the last.
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
    """The offset from which on data stays: the base of a segment, or the end of the last that was given. Nothing beyond the readable end goes.

    Args:
        segments: the oldest of the log.
        log_bytes: bytes of all its segments.
        readable_end: the high watermark.
        config: what the topic keeps.
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
    """When age will take the oldest segment if nothing else happens; never, without one or without retention by age."""
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
