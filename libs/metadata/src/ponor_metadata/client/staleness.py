"""How current a followed image is: not when something arrived, but since when it is known to have shown everything.

What lives here: probes that travel to the controller and come back with its commit index, and what follows from them. A frame alone proves nothing: after a pause
of the process, or of the network, old frames arrive like new ones. What answers a probe was written after the probe was sent.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from ponor_runtime.clock import Clock

CLAIMS_MAX: Final = 64
"""Commit indices that the image has not reached yet; beyond it the newest replaces the one before, which only makes the image look staler."""


class Staleness:
    """Staleness of one image, by this process's monotonic clock."""

    def __init__(self, clock: Clock, probe_interval_ms: int) -> None:
        self._clock = clock
        self._interval_ns = probe_interval_ms * 1_000_000
        self._probe = 0
        self._probe_sent_ns = 0
        self._answered = True
        self._claims: deque[tuple[int, int]] = deque()
        """(commit index, when it was known to be the newest), both rising."""
        self._current_at_ns: int | None = None

    @property
    def staleness_ms(self) -> int | None:
        """How long ago the image was known to show all that was committed; None: never yet."""
        if self._current_at_ns is None:
            return None
        return (self._clock.monotonic_ns() - self._current_at_ns) // 1_000_000

    def connected(self) -> None:
        """A new connection: nobody will answer the probe of the one before."""
        self._answered = True
        self._probe_sent_ns = self._clock.monotonic_ns() - self._interval_ns

    def next_probe(self) -> int:
        """The number of a probe that leaves now; 0 while one is under way, or the last one was sent a moment ago."""
        now_ns = self._clock.monotonic_ns()
        if not self._answered or now_ns - self._probe_sent_ns < self._interval_ns:
            return 0
        self._answered = False
        self._probe += 1
        self._probe_sent_ns = now_ns
        return self._probe

    def claimed(self, probe: int, commit_index: int, staleness_ms: int) -> None:
        """A controller answered: when `probe` had been sent, `commit_index` was the newest it knew, and had been known for `staleness_ms` without news."""
        if self._answered or probe != self._probe:
            return
        self._answered = True
        known_ns = self._probe_sent_ns - staleness_ms * 1_000_000
        if self._claims and len(self._claims) == CLAIMS_MAX:
            self._claims.pop()
        # A controller that is behind the one before must not take its claim back.
        while self._claims and self._claims[-1][0] >= commit_index and self._claims[-1][1] <= known_ns:
            self._claims.pop()
        self._claims.append((commit_index, known_ns))

    def reached(self, index: int) -> None:
        """The image shows everything up to `index`."""
        while self._claims and self._claims[0][0] <= index:
            _, known_ns = self._claims.popleft()
            self._current_at_ns = (
                known_ns if self._current_at_ns is None else max(self._current_at_ns, known_ns)
            )
