"""The cluster clock: the time that leases, claims and delays are measured with.

What lives here: the stamp of the leader. It continues from the newest stamp in the log, advances with the monotonic clock and never goes
back, so a restart or a change of leader can only lengthen a lease, never shorten it. Wall clocks play no part: they jump.
"""

from __future__ import annotations

from ponor_runtime.clock import Clock

FIRST_STAMP_MS = 1
"""Cluster time begins here; 0 means "never" in rows."""


class ClusterClock:
    """Stamps of one controller, in milliseconds since the cluster was formatted (minus the time without a leader)."""

    def __init__(self, clock: Clock, last_stamp_ms: int) -> None:
        self._clock = clock
        self._base_ms = max(last_stamp_ms, FIRST_STAMP_MS)
        self._base_ns = clock.monotonic_ns()
        self._seen_ms, self._seen_ns = self._base_ms, self._base_ns

    def stamped(self, stamp_ms: int) -> None:
        """A batch with this stamp is committed."""
        if stamp_ms > self._seen_ms:
            self._seen_ms, self._seen_ns = stamp_ms, self._clock.monotonic_ns()

    def restart(self, last_stamp_ms: int, leaderless_ns: int = 0) -> None:
        """Begin a term of leadership.

        Time continues from the newest stamp in the log, committed or not: what is not will be, before anything of this term. The leader before told nodes a later time if the
        log was quiet for a while. So the time for which it was heard since the newest committed stamp is added.

        Args:
            last_stamp_ms: the newest stamp in the log.
            leaderless_ns: how long ago a leader was last heard; that time does not count.
        """
        now_ns = self._clock.monotonic_ns()
        heard_ms = self._seen_ms + max(now_ns - leaderless_ns - self._seen_ns, 0) // 1_000_000
        self._base_ms = max(last_stamp_ms, heard_ms, FIRST_STAMP_MS)
        self._base_ns = now_ns

    def now_ms(self) -> int:
        """The present stamp; at least as high as every one before in the log. Of meaning at a leader only."""
        elapsed_ns = self._clock.monotonic_ns() - self._base_ns
        assert elapsed_ns >= 0, "the monotonic clock went backwards"
        return self._base_ms + elapsed_ns // 1_000_000
