"""Virtual time: what is to happen when, in an order that depends on nothing but the run itself."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush


class Timeline:
    """Events by time in ms; those of one moment in the order in which they were added."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.events = 0
        self._added = 0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []

    def after(self, delay_ms: float, what: Callable[[], None]) -> None:
        """Let something happen."""
        self.at(self.now_ms + delay_ms, what)

    def at(self, time_ms: float, what: Callable[[], None]) -> None:
        """Let something happen at a time, which is not before now."""
        assert time_ms >= self.now_ms
        self._added += 1
        heappush(self._heap, (time_ms, self._added, what))

    def run_until(self, time_ms: float) -> None:
        """Everything up to a moment."""
        while self._heap and self._heap[0][0] <= time_ms:
            self.now_ms, _, what = heappop(self._heap)
            self.events += 1
            what()
        self.now_ms = time_ms
