"""Derive from a partition's Meta stream and the controller's stream rows which Kafka offsets can be read, and
from which stream slices.

No I/O (docs/design/spark.md#snapshots). The committed part of the Meta stream may lag the other metadata by
an upload:

- Its list of segments may lack rolls. This is harmless: a roll does not change the distance between Kafka
  offsets and stream offsets.
- Its log start may be older. Streams are trimmed at the log start, so the trimmed slices give the current log
  start.
- A new partition's Meta stream may have no committed entry. This module then assumes the content that the
  broker writes when it first opens the partition.
- The entry that records the cleaning of a segment may be missing. Then the list names the old slices. They
  still exist, because a broker trims them only after that entry is committed.

If the list names uncommitted offsets between committed ones, `lay_out` raises `PartitionBehindError`, and the
caller retries with newer metadata.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from ponor_partition import meta_entry
from ponor_partition.errors import PartitionCorruptError
from ponor_partition.log_meta import LogMeta
from ponor_partition.meta_entry import MetaValues
from ponor_partition.segment import CLEANED, DATA, OPEN_END, TXN, Segment
from ponor_runtime.identity import StreamId

from ponor_spark.snapshot import SegmentSlice

META: Final = "meta"
DATA_KINDS: Final = (DATA, DATA + CLEANED)


class PartitionBehindError(Exception):
    """The committed part of this partition has a gap: offsets below committed ones are missing.

    Newer metadata will include them.
    """


class CommittedRange(NamedTuple):
    """Stream offsets [start_offset, end_offset) are committed and not trimmed."""

    stream_id: int
    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class PartitionLayout:
    """Kafka offsets [log_start_offset, committed_end_offset) lie in `segments`, without a gap."""

    log_start_offset: int
    committed_end_offset: int
    segments: tuple[SegmentSlice, ...]


def lay_out(values: MetaValues, streams: Mapping[str, CommittedRange]) -> PartitionLayout:
    """Return the readable part of a partition.

    Args:
        values: the folded, committed part of its Meta stream.
        streams: its streams by tag `kind`.

    Raises:
        PartitionBehindError: retry with newer metadata.
        PartitionCorruptError: the Meta stream violates its format.
    """
    log = log_meta_of(values, streams)
    committed = {each.stream_id: each for each in streams.values()}
    start = _log_start(log, committed, partition_value(values).get("start", 0))
    slices, end = _committed_slices(log, committed, start)
    return PartitionLayout(start, end, slices)


def stable_layout(
    layout: PartitionLayout, values: MetaValues, streams: Mapping[str, CommittedRange]
) -> PartitionLayout:
    """Limit a layout to offsets below the last stable offset, for `read_committed`.

    Raises:
        PartitionBehindError: the aborted transactions below that offset are not known yet.
    """
    checkpoint = partition_value(values)
    stable = checkpoint.get("stable")
    if stable is None:
        return layout
    known_to = streams[TXN].end_offset if TXN in streams else 0
    if known_to < checkpoint.get("stable_txn", 0):
        raise PartitionBehindError(f"aborted transactions below {stable} are not committed yet")
    end = max(layout.log_start_offset, min(stable, layout.committed_end_offset))
    return replace(layout, committed_end_offset=end, segments=_cut(layout.segments, end))


def log_meta_of(values: MetaValues, streams: Mapping[str, CommittedRange]) -> LogMeta:
    """Return the segments; if no Meta entry is committed yet, the segment that the first open writes."""
    log = LogMeta()
    value = values.get(meta_entry.LOG)
    if value is None or value.whole is None:
        if values:
            raise PartitionCorruptError("meta stream: it has entries, but no list of segments")
        if DATA in streams:
            log.apply_change(LogMeta.stream_change(DATA, StreamId(streams[DATA].stream_id)))
            log.apply_change(LogMeta.roll_change(0, {DATA: 0}, 0))
        return log
    for _ in log.replaying(value):
        pass
    return log


def partition_value(values: MetaValues) -> dict[str, int]:
    """Return the numeric fields of the checkpoint; empty if there is none."""
    value = values.get(meta_entry.PARTITION)
    if value is None or value.whole is None:
        return {}
    try:
        content = json.loads(value.whole)
        return {str(name): int(field) for name, field in content.items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise PartitionCorruptError(
            f"PARTITION value {value.whole[:80]!r} is not a checkpoint: {error}"
        ) from error


def _log_start(log: LogMeta, committed: Mapping[int, CommittedRange], noted: int) -> int:
    """Return the recorded log start, or a later one if slices were trimmed since."""
    starts = [noted]
    for segment in log.segments:
        held = committed.get(log.streams[segment.data_stream])
        trimmed_to = segment.data.start if held is None else held.start_offset
        if segment.data.end != OPEN_END:
            trimmed_to = min(trimmed_to, segment.data.end)
        if trimmed_to > segment.data.start:
            starts.append(segment.kafka_offset(trimmed_to))
    return max(starts)


def _committed_slices(
    log: LogMeta, committed: Mapping[int, CommittedRange], start: int
) -> tuple[tuple[SegmentSlice, ...], int]:
    """Return the slices from the log start as far as they are committed without a gap, and their end."""
    slices: list[SegmentSlice] = []
    end = start
    for segment in log.segments:
        here = _held_of(segment, committed.get(log.streams[segment.data_stream]))
        if here is None or here.end_offset <= start:
            continue
        if here.base_offset > end:
            raise PartitionBehindError(
                f"offsets {end} to {here.base_offset - 1} are not committed yet, although higher offsets are"
            )
        slices.append(replace(here, base_offset=end))
        end = here.end_offset
    held = committed.get(log.streams[log.active.data_stream]) if log.segments else None
    if held is not None and end < log.active.kafka_offset(held.end_offset):
        # The records from `end` on are committed, but only in old slices, which the list of segments no
        # longer contains. The new slices that replace them are not committed yet.
        raise PartitionBehindError(
            f"offsets from {end} on are not committed yet in the slices that the list of segments names"
        )
    return tuple(slices), end


def _cut(slices: tuple[SegmentSlice, ...], stable: int) -> tuple[SegmentSlice, ...]:
    """Limit to offsets below `stable`."""
    return tuple(
        replace(each, end_offset=min(each.end_offset, stable)) for each in slices if each.base_offset < stable
    )


def _held_of(segment: Segment, held: CommittedRange | None) -> SegmentSlice | None:
    """Return the committed part of a segment; None if there is none."""
    if held is None:
        return None
    first = max(segment.data.start, held.start_offset)
    last = held.end_offset if segment.data.end == OPEN_END else min(segment.data.end, held.end_offset)
    if first >= last:
        return None
    return SegmentSlice(
        held.stream_id,
        segment.kafka_offset(first),
        segment.kafka_offset(last),
        segment.base_offset - segment.data.start,
        None if segment.content is None else segment.content.max_timestamp,
    )
