"""Selection of the part of a compacted partition that may be cleaned, and whether its cleaning is due.

No I/O (Apache Kafka's `LogCleanerManager.cleanableOffsets` and `LogToClean`). Only whole closed segments are
cleaned, never the active one.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ponor_partition.log_meta import LogMeta
from ponor_partition.segment import Segment

from ponor_broker.partitions.topics.topic_config import TopicConfig

NEVER_MS: Final = (1 << 63) - 1


class Cleanable(NamedTuple):
    """Kafka offsets [start, dirty_from) are clean, [dirty_from, end) are dirty; `oldest_ms` is the
    creation time of the oldest dirty segment.
    """

    start: int
    dirty_from: int
    end: int
    clean_bytes: int
    dirty_bytes: int
    oldest_ms: int

    @property
    def dirty_ratio(self) -> float:
        """Share of dirty bytes in the cleanable bytes."""
        return self.dirty_bytes / max(self.clean_bytes + self.dirty_bytes, 1)

    def is_due(self, config: TopicConfig, now_ms: int) -> bool:
        """Return whether the dirty ratio, or the age of the oldest dirty segment (KIP-354), exceeds
        its bound.
        """
        if self.dirty_bytes == 0:
            return False
        return (
            self.dirty_ratio > config.min_cleanable_ratio
            or now_ms - self.oldest_ms > config.max_compaction_lag_ms
        )


def survey(
    log_meta: LogMeta, start_offset: int, readable_end: int, config: TopicConfig, now_ms: int
) -> Cleanable | None:
    """Return what may be cleaned of a log that starts at `start_offset` and is readable up to
    `readable_end`; None if nothing is dirty.
    """
    dirty_from = max(log_meta.cleaned_to, start_offset)
    end, clean_bytes, dirty_bytes, oldest_ms = start_offset, 0, 0, NEVER_MS
    for segment in log_meta.segments[:-1]:
        segment_end = segment.end_offset
        if segment_end <= start_offset:
            continue
        size_bytes = 0 if segment.content is None else segment.content.size_bytes
        if segment_end <= dirty_from:
            clean_bytes += size_bytes
        elif segment_end > readable_end or _is_too_young(segment, config, now_ms):
            break
        else:
            # segments of an older release have no size: count one byte
            dirty_bytes += max(size_bytes, 1)
            oldest_ms = min(oldest_ms, segment.created_ms)
        end = segment_end
    if end <= dirty_from:
        return None
    return Cleanable(start_offset, dirty_from, end, clean_bytes, dirty_bytes, oldest_ms)


def groups(segments: list[Segment], segment_bytes: int, offsets_max: int) -> list[list[Segment]]:
    """Group neighbouring segments that will be merged: at most `segment_bytes` and `offsets_max` offsets per
    group.
    """
    found: list[list[Segment]] = []
    room_bytes = 0
    for segment in segments:
        size_bytes = segment_bytes if segment.content is None else segment.content.size_bytes
        fits = size_bytes <= room_bytes and segment.end_offset - found[-1][0].base_offset <= offsets_max
        if not fits:
            found.append([])
            room_bytes = segment_bytes
        found[-1].append(segment)
        room_bytes -= size_bytes
    return found


def _is_too_young(segment: Segment, config: TopicConfig, now_ms: int) -> bool:
    if config.min_compaction_lag_ms == 0 or segment.content is None:
        return False
    return segment.content.max_timestamp > now_ms - config.min_compaction_lag_ms
