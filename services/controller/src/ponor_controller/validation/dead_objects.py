"""Which objects hold nothing any more once streams are trimmed or deleted.

What lives here: the search that trim, stream deletion and topic deletion share. A stream object dies when its end is passed, a stream set object
when every piece in it is dead.
"""

from __future__ import annotations

from collections.abc import Mapping

from ponor_metadata.rows import StreamSetObjectRow
from ponor_metadata.tables import STREAM_OBJECTS_OF, STREAM_SET_OBJECTS_WITH
from ponor_metadata.view import View
from ponor_runtime.identity import ObjectId, StreamId


def find_dead_objects(view: View, new_starts: Mapping[StreamId, int | None]) -> list[ObjectId]:
    """Ids of objects that hold no live offset once the streams begin at these offsets (None: are deleted), each once, in a stable order.

    Reads the rows of these streams' objects, and of other streams only as far as their stream set objects name them.
    """
    dead: list[ObjectId] = []
    candidates: dict[ObjectId, StreamSetObjectRow] = {}
    for stream_id, start in new_starts.items():
        for stream_object in view.stream_objects.find(STREAM_OBJECTS_OF, stream_id):
            if start is not None and stream_object.end_offset > start:
                break
            dead.append(stream_object.object_id)
        for row in view.stream_set_objects.find(STREAM_SET_OBJECTS_WITH, stream_id):
            end = row.ranges.decoded.end_of(stream_id)
            if start is None or (end is not None and end <= start):
                candidates[row.object_id] = row
    dead.extend(row.object_id for row in candidates.values() if _is_dead(row, view, new_starts))
    return dead


def _is_dead(row: StreamSetObjectRow, view: View, new_starts: Mapping[StreamId, int | None]) -> bool:
    for piece in row.ranges.decoded:
        stream = view.streams.get(piece.stream_id)
        if stream is None:
            continue
        start = new_starts.get(piece.stream_id, stream.start_offset)
        if start is not None and piece.end_offset > start:
            return False
    return True
