"""A survey of all committed objects, a few at a time: what waits for compaction, how much metadata there is, which streams are fragmented.

What lives here: one walk over two tables by object id, in steps of a bounded number of rows, so that a million objects cost a millisecond now and then and never a
pause. What a walk found is as old as the walk; whoever acts on it looks at the rows again.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from heapq import nlargest
from typing import Final

from ponor_metadata.image.image import MetadataImage
from ponor_metadata.nouns.nodes import NODES, NodeRole
from ponor_metadata.nouns.objects import OBJECTS, STREAM_SET_OBJECTS, ObjectRow, StreamSetObjectRow
from ponor_metadata.nouns.streams import STREAM_OBJECTS, StreamObjectRow
from ponor_metadata.tables.schema import View
from ponor_runtime.identity import NodeId, ObjectId, StreamId

from ponor_controller.domains.compaction.selection import STREAM_OBJECT_METADATA_BYTES
from ponor_controller.settings import CompactionSettings

ROWS_PER_STEP: Final = 512
FRAGMENTED_MAX: Final = 10_000
"""Streams that a survey remembers, the most fragmented ones."""
SET_OBJECT_METADATA_BYTES: Final = 100
"""Of a stream set object: its two rows in the image, without its ranges."""
INDEX_BYTES_PER_STREAM: Final = 4


@dataclass(slots=True)
class Findings:
    """What one survey found; times are cluster time.

    Attributes:
        backlog_objects: stream set objects as brokers uploaded them.
        backlog_bytes: their bytes.
        oldest_at_ms: when the oldest of them was committed; None without one.
        data_bytes: of all committed objects.
        metadata_bytes: of their rows in the image, about.
        fragmented: streams with several small objects: how many, and the start offset of the first that was met.
    """

    backlog_objects: int = 0
    backlog_bytes: int = 0
    oldest_at_ms: int | None = None
    data_bytes: int = 0
    metadata_bytes: int = 0
    fragmented: dict[StreamId, tuple[int, int]] = field(default_factory=dict)

    @property
    def metadata_bytes_per_gb(self) -> float:
        """Of the image, for each 10^9 bytes of data."""
        return self.metadata_bytes * 1e9 / self.data_bytes if self.data_bytes else 0.0


class Survey:
    """Walks over an image for ever, one survey after the other."""

    def __init__(self, image: MetadataImage, settings: CompactionSettings) -> None:
        self._image = image
        self._settings = settings
        self.findings = Findings()
        """Of the last survey that was finished."""
        self.fragmented: deque[tuple[StreamId, int]] = deque()
        """Streams to look at, the most fragmented first, and where in them; whoever looks takes them out."""
        self.restart()

    def restart(self) -> None:
        """Begin anew: what was found is of another time."""
        self._walked = Findings()
        self._last_set_object: ObjectId | None = None
        self._last_stream_object: ObjectId | None = None

    def step(self) -> bool:
        """Look at a few more rows; whether this finished a survey."""
        set_objects = self._image[STREAM_SET_OBJECTS].after(self._last_set_object, ROWS_PER_STEP)
        for several in set_objects:
            self._see_set_object(several)
            self._last_set_object = several.object_id
        left = ROWS_PER_STEP - len(set_objects)
        if left == 0:
            return False
        singles = self._image[STREAM_OBJECTS].after(self._last_stream_object, left)
        for single in singles:
            self._see_stream_object(single)
            self._last_stream_object = single.object_id
        if len(singles) == left:
            return False
        self._finish()
        return True

    def _see_set_object(self, several: StreamSetObjectRow) -> None:
        walked, row = self._walked, self._image[OBJECTS].get(several.object_id)
        assert row is not None
        walked.data_bytes += row.size_bytes
        # About three bytes and a half of packed ranges and more per stream: counted without decoding.
        streams = len(several.ranges.data) // 4
        walked.metadata_bytes += (
            SET_OBJECT_METADATA_BYTES + len(several.ranges.data) + INDEX_BYTES_PER_STREAM * streams
        )
        if is_compacted(self._image, row):
            return
        walked.backlog_objects += 1
        walked.backlog_bytes += row.size_bytes
        if walked.oldest_at_ms is None or row.committed_at_ms < walked.oldest_at_ms:
            walked.oldest_at_ms = row.committed_at_ms

    def _see_stream_object(self, single: StreamObjectRow) -> None:
        walked, row = self._walked, self._image[OBJECTS].get(single.object_id)
        assert row is not None
        walked.data_bytes += row.size_bytes
        walked.metadata_bytes += STREAM_OBJECT_METADATA_BYTES
        if row.size_bytes * 2 <= self._settings.compaction_object_bytes_max:
            count, start = walked.fragmented.get(single.stream_id, (0, single.start_offset))
            walked.fragmented[single.stream_id] = (count + 1, min(start, single.start_offset))

    def _finish(self) -> None:
        walked = self._walked
        several = [(each, found) for each, found in walked.fragmented.items() if found[0] > 1]
        most = nlargest(FRAGMENTED_MAX, several, key=lambda each: (each[1][0], -each[0]))
        walked.fragmented = dict(most)
        self.fragmented = deque((stream_id, start) for stream_id, (_, start) in most)
        self.findings = walked
        self.restart()


def is_compacted(view: View, row: ObjectRow) -> bool:
    """Whether a compactor made the object: whoever prepared it is in its row."""
    node = view[NODES].get(NodeId(row.node_id))
    return node is not None and node.role is NodeRole.COMPACTOR
