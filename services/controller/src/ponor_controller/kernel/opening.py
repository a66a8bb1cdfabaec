"""The opening entry of a term: an empty batch that proves to the new leader that all before it is committed.

What lives here: its content, and the newest stamp in the log, from which the cluster clock of the term goes on. Entries that were never committed count too: the opening
entry commits them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ponor.metadata.v1 import records_pb2
from ponor_metadata.image.image import MetadataImage
from ponor_raft.entry import Entry

from ponor_controller.kernel.cluster_clock import ClusterClock


class Opening:
    """Knows the end of the log."""

    def __init__(
        self,
        image: MetadataImage,
        clock: ClusterClock,
        newest: Entry | None,
        leaderless_ns: Callable[[], int],
    ) -> None:
        self._image = image
        self._clock = clock
        self._newest = newest
        self._leaderless_ns = leaderless_ns

    def appended(self, entries: Sequence[Entry]) -> None:
        """The log ends with these now."""
        self._newest = entries[-1]

    def restart(self) -> None:
        """The log begins anew behind the image."""
        self._newest = None

    def encode(self, index: int, term: int) -> bytes:
        """The opening entry; the cluster clock goes on from the end of the log."""
        stamp_ms = self._image.cluster_time_ms
        if self._newest is not None:
            newest = records_pb2.RecordBatch.FromString(self._newest.data)
            stamp_ms = max(stamp_ms, newest.cluster_time_ms)
        self._clock.restart(stamp_ms, self._leaderless_ns())
        batch = records_pb2.RecordBatch(index=index, term=term, cluster_time_ms=self._clock.now_ms())
        return batch.SerializeToString(deterministic=True)
