"""Select stream set objects that fit into one task, by their numbers of streams and ranges.

The number of streams bounds the commit of a task; the number of ranges bounds the check of its outputs.
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
"""Objects tried as the first of a task. A try decodes at most twice the ranges of a task, in some
milliseconds."""


@dataclass(frozen=True, slots=True)
class Widths:
    """Bounds of one task.

    Attributes:
        streams_max: number of streams of all objects of the task together.
        alone_streams_max: number of streams of an object that is the only one of its task; at least
            `streams_max`.
        ranges_max: number of ranges of all objects of the task, and of all objects that one try skips.
    """

    streams_max: int
    alone_streams_max: int
    ranges_max: int


@dataclass(slots=True)
class Fitting:
    """Objects for one task, in input order."""

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
    """Select as many objects as fit into one task together with the first object; skip the others.

    If fewer than `count_min` fit, try again with the next object as the first.
    """
    fitting = Fitting()
    for begin in range(min(len(objects), STARTS_MAX)):
        fitting = _fit_with_first(objects[begin:], ranges, widths)
        if len(fitting.objects) >= count_min:
            break
    return fitting


def _fit_with_first(
    objects: Sequence[SetObject], ranges: Mapping[ObjectId, StreamSetObjectRow], widths: Widths
) -> Fitting:
    fitting = Fitting()
    skipped_ranges = 0
    for each in objects:
        # `ranges.decoded` would keep the result in memory, although most of these objects are not selected.
        stream_ids, _, _ = decode_ranges(ranges[each.row.object_id].ranges.data).columns
        new = set(stream_ids).difference(fitting.streams)
        streams, pieces = len(fitting.streams) + len(new), fitting.pieces + len(stream_ids)
        is_alone = not fitting.objects and streams <= widths.alone_streams_max
        if (streams > widths.streams_max and not is_alone) or pieces > widths.ranges_max:
            skipped_ranges += len(stream_ids)
            if skipped_ranges > widths.ranges_max:
                break
            continue
        fitting.objects.append(each)
        fitting.streams |= new
        fitting.pieces = pieces
        if streams > widths.streams_max:
            break
    return fitting
