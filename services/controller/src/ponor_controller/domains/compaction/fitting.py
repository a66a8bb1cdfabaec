"""Which of the set objects that are worth a task fit into one: by their streams, which bound its commit, and their ranges, which bound the check of it.

What lives here: pure, on packed ranges. What is worth a task is `choosing`'s business; in which order and how many are looked at, `offering`'s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ponor_metadata.nouns.objects import StreamSetObjectRow
from ponor_metadata.tables.ranges import decode_ranges
from ponor_runtime.identity import ObjectId

from ponor_controller.domains.compaction.selection import SetObject

STARTS_MAX: Final = 3
"""So many are tried as the first of a task. Each try may decode twice what a task holds, some milliseconds."""


@dataclass(frozen=True, slots=True)
class Widths:
    """What one task may hold.

    Attributes:
        streams_max: of all its objects together.
        alone_streams_max: of one without others, if that is more.
        ranges_max: of all together; and of those that are passed over, all together, in one try.
    """

    streams_max: int
    alone_streams_max: int
    ranges_max: int


@dataclass(slots=True)
class Fitting:
    """Objects for one task, in the order in which they came."""

    objects: list[SetObject] = field(default_factory=list)
    streams: set[int] = field(default_factory=set)
    pieces: int = 0


def find_fitting(
    objects: Sequence[SetObject],
    ranges: Mapping[ObjectId, StreamSetObjectRow],
    widths: Widths,
    *,
    count_min: int,
) -> Fitting:
    """As many as fit beside the first; those that do not are passed over. If that are fewer than `count_min`, the first may keep the others from each other: the next begins."""
    fitting = Fitting()
    for begin in range(min(len(objects), STARTS_MAX)):
        fitting = _beside_first(objects[begin:], ranges, widths)
        if len(fitting.objects) >= count_min:
            break
    return fitting


def _beside_first(
    objects: Sequence[SetObject], ranges: Mapping[ObjectId, StreamSetObjectRow], widths: Widths
) -> Fitting:
    fitting = Fitting()
    passed_ranges = 0
    for each in objects:
        # Not by `ranges.decoded`, which stays in memory: only what is taken is asked for again.
        stream_ids, _, _ = decode_ranges(ranges[each.row.object_id].ranges.data).columns
        new = set(stream_ids).difference(fitting.streams)
        streams, pieces = len(fitting.streams) + len(new), fitting.pieces + len(stream_ids)
        is_alone = not fitting.objects and streams <= widths.alone_streams_max
        if (streams > widths.streams_max and not is_alone) or pieces > widths.ranges_max:
            passed_ranges += len(stream_ids)
            if passed_ranges > widths.ranges_max:
                break
            continue
        fitting.objects.append(each)
        fitting.streams |= new
        fitting.pieces = pieces
        if streams > widths.streams_max:
            break
    return fitting
