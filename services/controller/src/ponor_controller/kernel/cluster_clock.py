"""The cluster clock (time base of leases, claims and timeouts), and the opening entry that sets the clock.

The leader stamps every batch. The clock continues from the newest stamp in the log and advances
with the leader's monotonic clock. It never goes back, so a restart or a new leader can only
lengthen a lease. Wall clocks are not used, because they jump.

The opening entry of a term is an empty batch. It also commits all earlier entries of the log, so their stamps
count, whether or not an earlier leader committed them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ponor.metadata.v1 import records_pb2
from ponor_metadata.image.image import MetadataImage
from ponor_raft.entry import Entry
from ponor_runtime.clock import Clock

FIRST_STAMP_MS = 1
"""The first cluster time; 0 means "never" in rows."""


class ClusterClock:
    """The cluster clock at one controller: ms since the cluster was formatted. It stands still without a
    leader.
    """

    def __init__(self, clock: Clock, last_stamp_ms: int) -> None:
        self._clock = clock
        self._base_ms = max(last_stamp_ms, FIRST_STAMP_MS)
        self._base_ns = clock.monotonic_ns()
        self._seen_ms, self._seen_ns = self._base_ms, self._base_ns

    def stamped(self, stamp_ms: int) -> None:
        """Record that a batch with this stamp is committed."""
        if stamp_ms > self._seen_ms:
            self._seen_ms, self._seen_ns = stamp_ms, self._clock.monotonic_ns()

    def restart(self, last_stamp_ms: int, leaderless_ns: int = 0) -> None:
        """Begin a term of leadership.

        Time continues from the newest stamp in the log, committed or not, because the opening entry commits
        all of them. While the log was idle the former leader may have reported a later time to nodes. So the
        time from the newest committed stamp until that leader was last heard is added.

        Args:
            last_stamp_ms: the newest stamp in the log.
            leaderless_ns: how long ago a leader was last heard; the clock stood still since then.
        """
        now_ns = self._clock.monotonic_ns()
        heard_ms = self._seen_ms + max(now_ns - leaderless_ns - self._seen_ns, 0) // 1_000_000
        self._base_ms = max(last_stamp_ms, heard_ms, FIRST_STAMP_MS)
        self._base_ns = now_ns

    def now_ms(self) -> int:
        """The present stamp, not lower than any stamp in the log. Valid at a leader only."""
        elapsed_ns = self._clock.monotonic_ns() - self._base_ns
        assert elapsed_ns >= 0, "the monotonic clock went backwards"
        return self._base_ms + elapsed_ns // 1_000_000


class Opening:
    """Encodes opening entries. Tracks the last entry of the log, from whose stamp the clock continues."""

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
        """Record that these entries were appended to the log."""
        self._newest = entries[-1]

    def restart(self) -> None:
        """A received snapshot replaced the image: the log restarts after the image's index."""
        self._newest = None

    def encode(self, index: int, term: int) -> bytes:
        """The opening entry. The cluster clock continues from the end of the log."""
        stamp_ms = self._image.cluster_time_ms
        if self._newest is not None:
            newest = records_pb2.RecordBatch.FromString(self._newest.data)
            stamp_ms = max(stamp_ms, newest.cluster_time_ms)
        self._clock.restart(stamp_ms, self._leaderless_ns())
        batch = records_pb2.RecordBatch(index=index, term=term, cluster_time_ms=self._clock.now_ms())
        return batch.SerializeToString(deterministic=True)
