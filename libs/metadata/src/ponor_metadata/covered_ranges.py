"""Ranges of a stream whose offsets are all in stream objects, and which therefore need not be told apart.

A range says through which node offsets went, so that the read index finds that node's stream set objects. Data in stream objects is found by the stream alone, and compaction never puts
it back into a stream set object. Without this, a stream would get a range with every move and keep it until a trim.
"""

from __future__ import annotations

from typing import Final

from ponor_metadata.merged import last_at
from ponor_metadata.rows import NO_NODE, RangeRow, StreamRow
from ponor_metadata.tables import STREAM_OBJECTS_OF
from ponor_metadata.view import View

MERGED_FROM_PARTS: Final = 4
"""A stream with fewer parts is left as it is, so that compiled code can open it (`plain_records_native`)."""
LOOKS_MAX: Final = 32
"""Stream objects that are looked at in one call; ranges beyond keep their node until a later one."""


def merge_covered(view: View, stream: StreamRow) -> tuple[int, ...]:
    """The stream's writers with ranges that stream objects cover joined to one, as far as a bounded number of looks shows them."""
    looks = LOOKS_MAX
    merged: list[int] = []
    for part in stream.ranges:
        covered = part.node_id == NO_NODE
        if not covered and looks > 0:
            covered, looks = _is_covered(view, stream, part, looks)
        if covered and merged and merged[-2] == NO_NODE:
            merged[-3] = part.stream_epoch
        else:
            merged += (part.stream_epoch, NO_NODE if covered else part.node_id, part.start_offset)
    return tuple(merged)


def _is_covered(view: View, stream: StreamRow, part: RangeRow, looks: int) -> tuple[bool, int]:
    """Whether stream objects hold all live offsets of the range, and how many looks are left."""
    found = view.stream_objects.find(STREAM_OBJECTS_OF, stream.stream_id)
    at = max(part.start_offset, stream.start_offset)
    while at < part.end_offset and looks > 0:
        looks -= 1
        row = last_at(found, STREAM_OBJECTS_OF, at)
        if row is None or row.end_offset <= at:
            return False, looks
        at = row.end_offset
    return at >= part.end_offset, looks
