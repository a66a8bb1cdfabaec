"""The read index: finds the objects that contain a range of a stream, from a view, without I/O.

The search follows the stream objects in offset order (docs/architecture.md). Where they end, the stream's
ranges name the node that wrote the offset, and the search continues in that node's stream set objects. Then
it continues with the stream objects, until the request is covered or the metadata ends.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from ponor_runtime.identity import NodeId, ObjectId, StreamId

from ponor_metadata.nouns.objects import (
    OBJECTS,
    STREAM_SET_OBJECTS,
    STREAM_SET_OBJECTS_WITH,
    StreamSetObjectRow,
)
from ponor_metadata.nouns.streams import STREAM_OBJECTS, STREAM_OBJECTS_OF, STREAMS, StreamObjectRow
from ponor_metadata.tables.schema import View

PIECES_MAX: Final = 64
"""Maximum pieces in one answer: enough for the largest read-ahead, and few enough that the search takes only
a short event-loop turn."""


@dataclass(frozen=True, slots=True)
class Piece:
    """An object that contains [start_offset, end_offset) of the requested stream."""

    object_id: ObjectId
    namespace: str
    bucket_index: int
    size_bytes: int
    start_offset: int
    end_offset: int


def find_pieces(
    view: View, stream_id: StreamId, start_offset: int, end_offset: int, *, limit: int = PIECES_MAX
) -> list[Piece]:
    """Return at most `limit` contiguous pieces from `start_offset` on, clipped to the request, in offset
    order.

    The answer covers less than the request if the limit is reached or the metadata ends (it may lag: retry
    later). It is empty if the stream is unknown, or the offset is below the stream's start or not committed.
    """
    stream = view[STREAMS].get(stream_id)
    if stream is None or start_offset < stream.start_offset:
        return []
    walk = _Walk(view, stream_id, start_offset, min(end_offset, stream.end_offset), limit)
    while walk.unfinished:
        if walk.follow_stream_objects():
            continue
        written = stream.range_at(walk.offset)
        if written is None or not walk.find_in_stream_set_objects(written.node_id):
            break
    return walk.pieces


class _Walk:
    """The state of one search: the next offset, and where to search next."""

    def __init__(self, view: View, stream_id: StreamId, offset: int, end: int, limit: int) -> None:
        self.pieces: list[Piece] = []
        self.offset = offset
        self._view = view
        self._stream_id = stream_id
        self._end = end
        self._limit = limit
        self._stream_objects: Sequence[StreamObjectRow] = view[STREAM_OBJECTS].find(
            STREAM_OBJECTS_OF, stream_id
        )
        self._set_objects: Sequence[StreamSetObjectRow] = view[STREAM_SET_OBJECTS].find(
            STREAM_SET_OBJECTS_WITH, stream_id
        )
        # Position of the stream set object to search first; None before the first search.
        self._likely: int | None = None

    @property
    def unfinished(self) -> bool:
        return self.offset < self._end and len(self.pieces) < self._limit

    def follow_stream_objects(self) -> bool:
        """Take stream objects as long as they are contiguous. Return whether at least one was found."""
        i = bisect_right(self._stream_objects, self.offset, key=attrgetter("start_offset")) - 1
        found = False
        while self.unfinished and 0 <= i < len(self._stream_objects):
            row = self._stream_objects[i]
            if not row.start_offset <= self.offset < row.end_offset:
                break
            self._take(row.object_id, row.end_offset)
            found = True
            i += 1
        return found

    def find_in_stream_set_objects(self, node_id: NodeId) -> bool:
        """Search the node's stream set objects that contain the stream. Return whether one contains the
        offset.

        Offsets rise with the commit order, except after compactions. So a binary search finds the likely
        object: the last one that starts at or below the offset. From there the search goes backwards and
        wraps around. The next search begins at the object after the found one and usually reads only that
        object.
        """
        count = len(self._set_objects)
        if self._likely is None:
            self._likely = bisect_right(range(count), self.offset, key=self._start_in) - 1
        for step in range(count):
            i = (self._likely - step) % count
            row = self._set_objects[i]
            if row.node_id != node_id:
                continue
            piece = row.ranges.decoded.find(self._stream_id, self.offset)
            if piece is not None:
                self._take(row.object_id, piece.end_offset)
                self._likely = i + 1
                return True
        return False

    def _start_in(self, i: int) -> int:
        return next(self._set_objects[i].ranges.decoded.of_stream(self._stream_id)).start_offset

    def _take(self, object_id: ObjectId, end_offset: int) -> None:
        row = self._view[OBJECTS].get(object_id)
        assert row is not None, f"object {object_id} is referenced but has no row"
        end = min(end_offset, self._end)
        self.pieces.append(
            Piece(object_id, row.namespace, row.bucket_index, row.size_bytes, self.offset, end)
        )
        self.offset = end
