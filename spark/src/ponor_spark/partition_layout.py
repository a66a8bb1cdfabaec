"""From a partition's Meta stream and the controller's stream rows to what can be read of it: which Kafka offsets lie in which slice of which stream.

What lives here: the rules, pure (docs/design/spark.md#snapshots). The Meta stream's committed part may lag what the rest of the metadata shows by an upload:

- its list of segments may lack rolls: no matter, a roll leaves the distance between Kafka's offsets and the stream's as it is;
- its log start may be an older one: streams are trimmed at the log start, so what is trimmed of a slice says where the log begins now;
- of a new partition nothing of it may be committed: it says what the first open writes;
- it may lack that a segment was cleaned: then the old slices are still there, because brokers trim them after that entry is committed.

What is left is a list that names offsets which are not committed yet, between others that are: `PartitionBehindError`, to be tried again with newer metadata.
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
    """What is committed of this partition is not whole yet: offsets are missing below others that are there. Newer metadata will show them."""


class CommittedRange(NamedTuple):
    """Stream offsets [start_offset, end_offset) are committed, and not trimmed."""

    stream_id: int
    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class PartitionLayout:
    """Kafka offsets [log_start_offset, committed_end_offset) lie in `segments`, which cover them without a gap."""

    log_start_offset: int
    committed_end_offset: int
    segments: tuple[SegmentSlice, ...]


def lay_out(values: MetaValues, streams: Mapping[str, CommittedRange]) -> PartitionLayout:
    """What can be read of a partition.

    Args:
        values: its Meta stream's committed part, folded.
        streams: its streams by tag `kind`.

    Raises:
        PartitionBehindError: to be tried again with newer metadata.
        PartitionCorruptError: the Meta stream breaks its format.
    """
    log = log_meta_of(values, streams)
    committed = {each.stream_id: each for each in streams.values()}
    start = _log_start(log, committed, partition_value(values).get("start", 0))
    slices, end = _committed_slices(log, committed, start)
    return PartitionLayout(start, end, slices)


def stable_layout(
    layout: PartitionLayout, values: MetaValues, streams: Mapping[str, CommittedRange]
) -> PartitionLayout:
    """For readers of committed records: nothing from the last stable offset on.

    Raises:
        PartitionBehindError: aborted transactions below it are not known yet.
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
    """The list of segments; of a partition whose Meta stream has nothing committed yet, what its first open wrote."""
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
    """The checkpoint's fields that are numbers; none of a partition that has none yet."""
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
    """The log start that is noted, or where trimmed slices say it went meanwhile."""
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
    """Slices from the log start on as far as they are committed without a gap, and where that ends."""
    slices: list[SegmentSlice] = []
    end = start
    for segment in log.segments:
        here = _held_of(segment, committed.get(log.streams[segment.data_stream]))
        if here is None or here.end_offset <= start:
            continue
        if here.base_offset > end:
            raise PartitionBehindError(
                f"offsets {end} to {here.base_offset - 1} are not committed yet, those behind them are"
            )
        slices.append(replace(here, base_offset=end))
        end = here.end_offset
    held = committed.get(log.streams[log.active.data_stream]) if log.segments else None
    if held is not None and end < log.active.kafka_offset(held.end_offset):
        # What was appended is committed so far, in slices that the list has no more: what replaces them is not.
        raise PartitionBehindError(
            f"offsets from {end} on are not committed yet where the list of segments has them"
        )
    return tuple(slices), end


def _cut(slices: tuple[SegmentSlice, ...], stable: int) -> tuple[SegmentSlice, ...]:
    """Nothing from `stable` on."""
    return tuple(
        replace(each, end_offset=min(each.end_offset, stable)) for each in slices if each.base_offset < stable
    )


def _held_of(segment: Segment, held: CommittedRange | None) -> SegmentSlice | None:
    """What is committed of a segment; None when nothing is."""
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
