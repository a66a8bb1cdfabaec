"""Staleness of a followed image: the time since it was last known to contain all committed batches.

The client sends numbered probes, and the controller answers with its commit index. The arrival of another
frame does not prove that the image is current, because after a pause of the process or the network old frames
arrive. The answer to a probe was written after the probe was sent.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from ponor_runtime.clock import Clock

CLAIMS_MAX: Final = 64
"""Limit of the reported commit indices that the image has not reached yet.

At the limit a new index replaces the last one, so the reported staleness may be too high but never too low.
"""


class Staleness:
    """Staleness of one image, measured with the process's monotonic clock."""

    def __init__(self, clock: Clock, probe_interval_ms: int) -> None:
        self._clock = clock
        self._interval_ns = probe_interval_ms * 1_000_000
        self._probe = 0
        self._probe_sent_ns = 0
        self._answered = True
        self._claims: deque[tuple[int, int]] = deque()
        """(commit index, time at which it was the newest), both rising."""
        self._current_at_ns: int | None = None

    @property
    def staleness_ms(self) -> int | None:
        """Time since the image was last known to contain all committed batches; None if it never was."""
        if self._current_at_ns is None:
            return None
        return (self._clock.monotonic_ns() - self._current_at_ns) // 1_000_000

    def connected(self) -> None:
        """Begin a new connection; a probe on the previous connection gets no answer."""
        self._answered = True
        self._probe_sent_ns = self._clock.monotonic_ns() - self._interval_ns

    def next_probe(self) -> int:
        """Return the number of a probe to send now; 0 while one is unanswered or the interval has not
        passed.
        """
        now_ns = self._clock.monotonic_ns()
        if not self._answered or now_ns - self._probe_sent_ns < self._interval_ns:
            return 0
        self._answered = False
        self._probe += 1
        self._probe_sent_ns = now_ns
        return self._probe

    def claimed(self, probe: int, commit_index: int, staleness_ms: int) -> None:
        """Handle the answer to `probe`.

        When the controller received the probe, its commit index was `commit_index`. `staleness_ms` before
        that, this index was known to be the newest of the cluster.
        """
        if self._answered or probe != self._probe:
            return
        self._answered = True
        known_ns = self._probe_sent_ns - staleness_ms * 1_000_000
        if self._claims and len(self._claims) == CLAIMS_MAX:
            self._claims.pop()
        # A claim from another controller that lags behind must not remove the earlier claims.
        while self._claims and self._claims[-1][0] >= commit_index and self._claims[-1][1] <= known_ns:
            self._claims.pop()
        self._claims.append((commit_index, known_ns))

    def reached(self, index: int) -> None:
        """Record that the image contains all batches up to `index`."""
        while self._claims and self._claims[0][0] <= index:
            _, known_ns = self._claims.popleft()
            self._current_at_ns = (
                known_ns if self._current_at_ns is None else max(self._current_at_ns, known_ns)
            )
