"""Survey all committed objects step by step, for the backlog, the size of the metadata, and fragmented
streams.

Each step reads a bounded number of rows of two tables in the order of object ids. Rows may change after the
survey has read them, so the users of the result read the rows again.
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
"""Bound of the fragmented streams in the result; the most fragmented ones are kept."""
SET_OBJECT_METADATA_BYTES: Final = 100
"""Size of the two rows of a stream set object in the image, without its ranges."""
INDEX_BYTES_PER_STREAM: Final = 4


@dataclass(slots=True)
class Findings:
    """The result of one survey; times are cluster time.

    Attributes:
        backlog_objects: number of uploaded stream set objects that are not compacted.
        backlog_bytes: bytes of these objects.
        oldest_at_ms: commit time of the oldest of these objects; None without one.
        data_bytes: bytes of all committed objects.
        metadata_bytes: approximate size of their rows in the image.
        fragmented: for each stream with several small objects, their number and lowest start offset.
    """

    backlog_objects: int = 0
    backlog_bytes: int = 0
    oldest_at_ms: int | None = None
    data_bytes: int = 0
    metadata_bytes: int = 0
    fragmented: dict[StreamId, tuple[int, int]] = field(default_factory=dict)

    @property
    def metadata_bytes_per_gb(self) -> float:
        """Bytes of metadata in the image for 10^9 bytes of data."""
        return self.metadata_bytes * 1e9 / self.data_bytes if self.data_bytes else 0.0


class Survey:
    """Surveys the image repeatedly."""

    def __init__(self, image: MetadataImage, settings: CompactionSettings) -> None:
        self._image = image
        self._settings = settings
        self.findings = Findings()
        """The result of the last complete survey."""
        self.fragmented: deque[tuple[StreamId, int]] = deque()
        """Queue of (stream, start offset), the most fragmented first, which `Offering` consumes."""
        self.restart()

    def restart(self) -> None:
        """Start a new survey."""
        self._partial = Findings()
        self._last_set_object: ObjectId | None = None
        self._last_stream_object: ObjectId | None = None

    def step(self) -> bool:
        """Read some more rows. Returns True if a survey is complete."""
        set_objects = self._image[STREAM_SET_OBJECTS].after(self._last_set_object, ROWS_PER_STEP)
        for set_object in set_objects:
            self._count_set_object(set_object)
            self._last_set_object = set_object.object_id
        left = ROWS_PER_STEP - len(set_objects)
        if left == 0:
            return False
        singles = self._image[STREAM_OBJECTS].after(self._last_stream_object, left)
        for single in singles:
            self._count_stream_object(single)
            self._last_stream_object = single.object_id
        if len(singles) == left:
            return False
        self._finish()
        return True

    def _count_set_object(self, set_object: StreamSetObjectRow) -> None:
        partial, row = self._partial, self._image[OBJECTS].get(set_object.object_id)
        assert row is not None
        partial.data_bytes += row.size_bytes
        # The number of streams is estimated at 4 bytes of packed ranges each, because decoding takes longer.
        streams = len(set_object.ranges.data) // 4
        partial.metadata_bytes += (
            SET_OBJECT_METADATA_BYTES + len(set_object.ranges.data) + INDEX_BYTES_PER_STREAM * streams
        )
        if is_compacted(self._image, row):
            return
        partial.backlog_objects += 1
        partial.backlog_bytes += row.size_bytes
        if partial.oldest_at_ms is None or row.committed_at_ms < partial.oldest_at_ms:
            partial.oldest_at_ms = row.committed_at_ms

    def _count_stream_object(self, single: StreamObjectRow) -> None:
        partial, row = self._partial, self._image[OBJECTS].get(single.object_id)
        assert row is not None
        partial.data_bytes += row.size_bytes
        partial.metadata_bytes += STREAM_OBJECT_METADATA_BYTES
        if row.size_bytes * 2 <= self._settings.compaction_object_bytes_max:
            count, start = partial.fragmented.get(single.stream_id, (0, single.start_offset))
            partial.fragmented[single.stream_id] = (count + 1, min(start, single.start_offset))

    def _finish(self) -> None:
        partial = self._partial
        several = [(each, found) for each, found in partial.fragmented.items() if found[0] > 1]
        most = nlargest(FRAGMENTED_MAX, several, key=lambda each: (each[1][0], -each[0]))
        partial.fragmented = dict(most)
        self.fragmented = deque((stream_id, start) for stream_id, (_, start) in most)
        self.findings = partial
        self.restart()


def is_compacted(view: View, row: ObjectRow) -> bool:
    """Whether a compactor wrote the object: the node in the object's row has this role."""
    node = view[NODES].get(NodeId(row.node_id))
    return node is not None and node.role is NodeRole.COMPACTOR
