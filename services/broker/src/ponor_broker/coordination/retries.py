"""A queue of items with the time of their next attempt."""

from __future__ import annotations

import heapq
from collections import deque
from typing import Final, Generic, TypeVar

from ponor_runtime.runtime import Runtime
from ponor_runtime.tasks import Wake

T = TypeVar("T")
RETRY_S_MIN: Final = 0.05
"""Delay before the second attempt; doubles up to `RETRY_S_MAX`."""
RETRY_S_MAX: Final = 1.0
_DOUBLINGS_MAX: Final = 10


class Retries(Generic[T]):
    """One task calls `wait` and `take`; any code may add items. Items with equal delays keep their order."""

    def __init__(self, runtime: Runtime) -> None:
        self._clock = runtime.clock
        self._randomness = runtime.randomness
        self._wake = Wake(runtime.clock)
        # Nearly all items are due immediately; a heap would cost them 3 % of the CPU of a transaction.
        self._ready: deque[T] = deque()
        self._items: list[tuple[int, int, T]] = []
        self._ties = 0

    def add_now(self, item: T) -> None:
        """Add an item that is due immediately."""
        if not self._ready:
            self._wake.set()
        self._ready.append(item)

    def add(self, item: T, delay_s: float) -> None:
        """Add an item that is due after a delay."""
        due_ns = self._clock.monotonic_ns() + int(delay_s * 1e9)
        if not self._items or due_ns < self._items[0][0]:
            self._wake.set()
        self._ties += 1
        heapq.heappush(self._items, (due_ns, self._ties, item))

    def again(self, item: T, attempts: int) -> None:
        """Add an item that is due after the back-off for `attempts` failed attempts."""
        delay_s = min(RETRY_S_MIN * 2 ** min(attempts - 1, _DOUBLINGS_MAX), RETRY_S_MAX)
        self.add(item, self._randomness.uniform(delay_s / 2, delay_s))

    async def wait(self) -> None:
        """Return when an item may be due."""
        if self._ready:
            return
        if not self._items:
            await self._wake.wait(None)
            return
        left_ns = self._items[0][0] - self._clock.monotonic_ns()
        if left_ns > 0:
            await self._wake.wait(left_ns / 1e9)

    def take(self, items_max: int) -> list[T]:
        """Remove and return due items: delayed ones in the order of their times, then the others. Half of
        `items_max` is for each kind, so that neither waits for all items of the other.
        """
        due: list[T] = []
        delayed_max = items_max - min(len(self._ready), items_max // 2)
        if self._items:
            now_ns = self._clock.monotonic_ns()
            while self._items and self._items[0][0] <= now_ns and len(due) < delayed_max:
                due.append(heapq.heappop(self._items)[2])
        if len(due) + len(self._ready) <= items_max:
            due += self._ready
            self._ready.clear()
        else:
            due += [self._ready.popleft() for _ in range(items_max - len(due))]
        return due
