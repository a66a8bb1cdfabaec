"""Find the next compaction task to offer, with a bounded search for each request.

The search covers the stream set objects of each node, in windows, the streams that the survey found to be
fragmented, and objects that are mostly trimmed. A request reads a few thousand rows at most; the next request
continues where it stopped. A new leader starts from the beginning. The validators check every offer against
the view.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import chain, islice
from operator import attrgetter
from typing import Final, NamedTuple

from ponor_metadata.image.image import MetadataImage
from ponor_metadata.nouns.compactions import COMPACTIONS, COMPACTIONS_OF_SOURCE, CompactionKind, CompactionRow
from ponor_metadata.nouns.nodes import NO_NODE, NODES
from ponor_metadata.nouns.objects import (
    OBJECTS,
    STREAM_SET_OBJECTS,
    STREAM_SET_OBJECTS_AT,
    ObjectRow,
    ObjectState,
    StreamSetObjectRow,
)
from ponor_metadata.nouns.streams import NO_STREAM, STREAM_OBJECTS, STREAM_OBJECTS_OF
from ponor_metadata.tables.schema import View
from ponor_runtime.identity import NodeId, ObjectId, StreamId

from ponor_controller.domains.compaction.fitting import Widths, find_fitting
from ponor_controller.domains.compaction.garbage_ratio import PIECES_BEFORE_OFFER, GarbageRatio, trimmed_share
from ponor_controller.domains.compaction.selection import (
    STREAM_OBJECT_METADATA_BYTES,
    Bounds,
    SetObject,
    StreamObject,
    fullest_tier,
    is_old_enough,
    longest_run,
    overdue,
    score,
    score_trimmed,
)
from ponor_controller.domains.compaction.survey import Survey, is_compacted
from ponor_controller.settings import CompactionSettings


class Offer(NamedTuple):
    """Objects to replace together, in the order of their commits or offsets.

    All are stream set objects of `node_id`, or all are stream objects of `stream_id`.
    """

    kind: CompactionKind
    node_id: NodeId
    stream_id: StreamId
    sources: tuple[ObjectRow, ...]
    score: float


SET_OBJECTS_PER_SEARCH: Final = 512
"""Number of rows of stream set objects that one search reads, for all nodes together."""
WINDOW_ROWS_MIN: Final = 64
"""A search stops when it may read fewer further rows than this, because a window needs enough objects to
select from."""
STREAMS_PER_SEARCH: Final = 2
TRIMMED_PER_SEARCH: Final = 2
STREAM_OBJECTS_PER_SEARCH: Final = 256
"""Number of rows of one fragmented stream that one search reads."""
GIVEN_UP_MAX: Final = 1_000
GIVEN_UP_MS: Final = 600_000


class Offering:
    """Offers compaction tasks; holds the state of this leader's search."""

    def __init__(
        self, image: MetadataImage, survey: Survey, garbage_ratio: GarbageRatio, settings: CompactionSettings
    ) -> None:
        self._image = image
        self._survey = survey
        self._garbage_ratio = garbage_ratio
        self._settings = settings
        self._next_node: NodeId | None = None
        self._windows: dict[NodeId, int] = {}
        """Position in a node's list at which the next search begins; 0 for other nodes."""
        self._given_up: dict[ObjectId, tuple[int, int]] = {}
        """Key: the first source of a task that ended without a commit. Value: the cluster time in ms until
        which tasks that begin with this source are smaller, and their maximum number of sources.
        """

    def reset(self) -> None:
        """Leadership changed: search from the start."""
        self._next_node = None
        self._windows.clear()
        self._given_up.clear()

    def next(self, view: View, now_ms: int, source_bytes_max: int) -> Offer | None:
        """Search for the best offer, whose sources are committed and not used by a task; None if none was
        found.
        """
        settings = self._settings
        bounds = Bounds(
            now_ms,
            min(source_bytes_max, settings.compaction_source_bytes_max),
            settings.compaction_sources_max,
        )
        found = [
            *self._of_nodes(view, bounds),
            *self._of_streams(view, bounds),
            *self._of_trimmed(view, bounds),
        ]
        return max(found, key=lambda offer: offer.score, default=None)

    def given_up(self, row: CompactionRow, now_ms: int) -> None:
        """Record a task that ended without a commit: for GIVEN_UP_MS, tasks that begin with its first source
        have at most half as many sources. If that is one, the source is not offered in this time.
        """
        first = row.source_ids[0]
        self._given_up.pop(first, None)
        self._given_up[first] = (now_ms + GIVEN_UP_MS, max(1, len(row.source_ids) // 2))
        if len(self._given_up) > GIVEN_UP_MAX:
            del self._given_up[next(iter(self._given_up))]

    def _of_nodes(self, view: View, bounds: Bounds) -> list[Offer]:
        """At most one offer of each node in this search. The next search begins with the node after the last
        one.
        """
        nodes = [row.node_id for row in self._image[NODES]]
        begin = next((i for i, each in enumerate(nodes) if each == self._next_node), 0)
        found: list[Offer] = []
        rows_left = SET_OBJECTS_PER_SEARCH
        for node_id in chain(nodes[begin:], nodes[:begin]):
            rows = self._window(node_id, rows_left)
            if rows:
                rows_left -= len(rows)
                offer = self._of_node(node_id, rows, view, bounds)
                if offer is not None:
                    found.append(offer)
                else:
                    self._windows[node_id] = self._windows.get(node_id, 0) + len(rows)
            if rows_left < WINDOW_ROWS_MIN:
                self._next_node = nodes[(nodes.index(node_id) + 1) % len(nodes)]
                break
        return found

    def _window(self, node_id: NodeId, rows_max: int) -> Sequence[StreamSetObjectRow]:
        rows = self._image[STREAM_SET_OBJECTS].find(STREAM_SET_OBJECTS_AT, node_id)
        begin = self._windows.get(node_id, 0)
        if begin >= len(rows):
            begin = 0
            self._windows.pop(node_id, None)
        return rows[begin : begin + rows_max]

    def _of_node(
        self, node_id: NodeId, rows: Sequence[StreamSetObjectRow], view: View, bounds: Bounds
    ) -> Offer | None:
        objects: list[SetObject] = []
        ranges: dict[ObjectId, StreamSetObjectRow] = {}
        for several in rows:
            row = self._free(several.object_id, view, bounds)
            if row is not None:
                objects.append(SetObject(row, len(several.ranges.data), is_compacted(view, row)))
                ranges[several.object_id] = several
        settings = self._settings
        split = overdue(objects, bounds, settings)
        if split:
            offer = self._set_offer(CompactionKind.FORCE_SPLIT, node_id, split, ranges, bounds)
            if offer is not None:
                return offer
        joined = fullest_tier(objects, bounds, settings)
        return (
            self._set_offer(CompactionKind.SET_OBJECTS, node_id, joined, ranges, bounds) if joined else None
        )

    def _set_offer(
        self,
        kind: CompactionKind,
        node_id: NodeId,
        objects: Sequence[SetObject],
        ranges: dict[ObjectId, StreamSetObjectRow],
        bounds: Bounds,
    ) -> Offer | None:
        """An offer of as many objects as their streams and ranges permit.

        An object with more than `compaction_streams_max` streams is offered only for a forced split, whose
        output has fewer streams.
        """
        settings = self._settings
        split = kind is CompactionKind.FORCE_SPLIT
        joined_max, split_max = settings.compaction_streams_max, settings.compaction_split_streams_max
        widths = Widths(
            split_max if split else joined_max,
            max(split_max, joined_max) if split else joined_max,
            settings.compaction_ranges_max,
        )
        candidates = objects[: self._sources_max(objects[0].row.object_id, bounds)]
        count_min = 1 if split else 2
        fitting = find_fitting(candidates, ranges, widths, count_min=count_min)
        if len(fitting.objects) < count_min:
            return None
        rows = tuple(each.row for each in fitting.objects)
        saved_pieces = fitting.pieces - len(fitting.streams)
        metadata_bytes = sum(each.metadata_bytes for each in fitting.objects)
        saved_bytes = metadata_bytes * saved_pieces // max(1, fitting.pieces)
        worth = score(saved_bytes, saved_pieces + split, rows, bounds, settings.compaction_patience_ms)
        return Offer(kind, node_id, NO_STREAM, rows, worth)

    def _of_streams(self, view: View, bounds: Bounds) -> list[Offer]:
        """Offers for some fragmented streams. A stream for which no offer is possible is skipped until the
        next survey.
        """
        found: list[Offer] = []
        queue = self._survey.fragmented
        for stream_id, start in list(islice(queue, STREAMS_PER_SEARCH)):
            offer = self._of_stream(stream_id, start, view, bounds)
            if offer is not None:
                found.append(offer)
            else:
                queue.remove((stream_id, start))
        return found

    def _of_stream(self, stream_id: StreamId, start: int, view: View, bounds: Bounds) -> Offer | None:
        singles = self._image[STREAM_OBJECTS].find(STREAM_OBJECTS_OF, stream_id)
        begin = bisect_left(singles, start, key=attrgetter("start_offset"))
        objects: list[StreamObject] = []
        for single in singles[begin : begin + STREAM_OBJECTS_PER_SEARCH]:
            row = self._free(single.object_id, view, bounds)
            if row is not None:
                objects.append(StreamObject(row, single.start_offset, single.end_offset))
        run = longest_run(objects, bounds, self._settings)
        run = run[: self._sources_max(run[0].row.object_id, bounds)] if run else run
        if len(run) < 2:
            return None
        rows = tuple(each.row for each in run)
        saved = len(rows) - 1
        worth = score(
            STREAM_OBJECT_METADATA_BYTES * saved, saved, rows, bounds, self._settings.compaction_patience_ms
        )
        return Offer(CompactionKind.STREAM_OBJECTS, NO_NODE, stream_id, rows, worth)

    def _of_trimmed(self, view: View, bounds: Bounds) -> list[Offer]:
        """Offers for some objects that are mostly trimmed, one object per offer."""
        found: list[Offer] = []
        queue = self._garbage_ratio.mostly_trimmed
        for object_id in list(islice(queue, TRIMMED_PER_SEARCH)):
            offer = self._of_trimmed_object(object_id, view, bounds)
            if offer is not None:
                found.append(offer)
            else:
                queue.remove(object_id)
        return found

    def _of_trimmed_object(self, object_id: ObjectId, view: View, bounds: Bounds) -> Offer | None:
        several, row = view[STREAM_SET_OBJECTS].get(object_id), self._free(object_id, view, bounds)
        if several is None or row is None or row.size_bytes > bounds.source_bytes_max:
            return None
        share = trimmed_share(view, several, PIECES_BEFORE_OFFER)
        if not self._garbage_ratio.is_enough(share) or not is_old_enough(row, bounds, self._settings):
            return None
        worth = score_trimmed(row, share, len(several.ranges.data))
        return Offer(CompactionKind.SET_OBJECTS, several.node_id, NO_STREAM, (row,), worth)

    def _free(self, object_id: ObjectId, view: View, bounds: Bounds) -> ObjectRow | None:
        """The row of an object if it may be a source now, according to committed and proposed changes; else
        None.
        """
        row = view[OBJECTS].get(object_id)
        if row is None or row.state is not ObjectState.COMMITTED:
            return None
        if view[COMPACTIONS].find(COMPACTIONS_OF_SOURCE, object_id):
            return None
        until_ms, sources_max = self._given_up.get(object_id, (0, 0))
        return None if sources_max == 1 and until_ms > bounds.now_ms else row

    def _sources_max(self, first: ObjectId, bounds: Bounds) -> int:
        until_ms, sources_max = self._given_up.get(first, (0, 0))
        return sources_max if until_ms > bounds.now_ms else bounds.sources_max
