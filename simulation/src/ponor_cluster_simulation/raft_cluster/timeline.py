"""Virtual time: a queue of events in a deterministic order."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush


class Timeline:
    """Events by time in ms; events with equal times run in the order in which they were added."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.events = 0
        self._added = 0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []

    def after(self, delay_ms: float, what: Callable[[], None]) -> None:
        """Run an event after a delay."""
        self.at(self.now_ms + delay_ms, what)

    def at(self, time_ms: float, what: Callable[[], None]) -> None:
        """Run an event at a time that is not in the past."""
        assert time_ms >= self.now_ms
        self._added += 1
        heappush(self._heap, (time_ms, self._added, what))

    def run_until(self, time_ms: float) -> None:
        """Run all events up to a time."""
        while self._heap and self._heap[0][0] <= time_ms:
            self.now_ms, _, what = heappop(self._heap)
            self.events += 1
            what()
        self.now_ms = time_ms
