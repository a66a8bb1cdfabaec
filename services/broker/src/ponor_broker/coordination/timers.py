"""A queue of many timers with one sleeping task: for instance for the timeouts of sessions and transactions.
It counts observed time, which excludes pauses of this process.

Every heartbeat moves a timer to a later deadline, so this must be cheap: it only overwrites a number. When
the timer's old heap entry is due, the queue pushes an entry with the new deadline. A timer that is cancelled
or moved to an earlier time leaves a stale entry in the heap. Clients choose timeouts of up to 24 days, so
stale entries could stay that long: when most entries are stale, the queue rebuilds the heap.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from ponor_runtime.clock import Clock
from ponor_runtime.observer_clock import ObserverClock
from ponor_runtime.tasks import BackgroundTasks

_NS_PER_MS = 1_000_000
_STALE_MIN = 1_000
"""The heap is not rebuilt for fewer stale entries."""
FIRED_PER_TURN = 20
"""Timers that fire in one turn of the event loop: those of sessions write records, about 0.3 ms each."""
_LOOK_S_MIN = 0.1
"""Minimum sleep while the queue is paused."""


@dataclass(slots=True)
class _Timer:
    deadline_ns: int
    queued_ns: int
    callback: Callable[[], None]


class TimerQueue:
    """Calls back once for each due timer, in order of deadlines."""

    def __init__(self, clock: Clock, tasks: BackgroundTasks) -> None:
        self._clock = ObserverClock(clock)
        self._tasks = tasks
        self._timers: dict[Hashable, _Timer] = {}
        self._heap: list[tuple[int, int, Hashable]] = []
        self._ties = 0
        self._sleeper: asyncio.Task[None] | None = None
        self._sleeps_until_ns = 0
        self._paused_since_ns: int | None = None
        self._paused_ns = 0

    def __len__(self) -> int:
        return len(self._timers)

    def pause_all(self) -> None:
        """Pause all timers until `resume_all`. Idempotent."""
        if self._paused_since_ns is None:
            self._paused_since_ns = self._now_ns()

    def resume_all(self) -> None:
        """Resume all timers. Idempotent."""
        if self._paused_since_ns is not None:
            since_ns, self._paused_since_ns = self._paused_since_ns, None
            self._paused_ns += self._now_ns() - since_ns

    def _now_ns(self) -> int:
        if self._paused_since_ns is not None:
            return self._paused_since_ns
        return self._clock.monotonic_ns() - self._paused_ns

    @property
    def now_ms(self) -> int:
        """Time that has passed for the timers: it stands still while they are paused."""
        return self._now_ns() // _NS_PER_MS

    def set(self, key: Hashable, delay_ms: int, callback: Callable[[], None]) -> None:
        """Start a timer, or move it."""
        deadline_ns = self._now_ns() + delay_ms * _NS_PER_MS
        timer = self._timers.get(key)
        if timer is not None and timer.queued_ns <= deadline_ns:
            timer.deadline_ns, timer.callback = deadline_ns, callback
            return
        self._timers[key] = timer = _Timer(deadline_ns, deadline_ns, callback)
        self._push(key, timer)
        self._wake_by(deadline_ns)

    def cancel(self, key: Hashable) -> None:
        """Cancel a timer."""
        self._timers.pop(key, None)

    def _push(self, key: Hashable, timer: _Timer) -> None:
        self._ties += 1
        timer.queued_ns = timer.deadline_ns
        heapq.heappush(self._heap, (timer.deadline_ns, self._ties, key))
        if len(self._heap) > 2 * len(self._timers) + _STALE_MIN:
            self._heap = [entry for entry in self._heap if self._is_current(entry)]
            heapq.heapify(self._heap)

    def _is_current(self, entry: tuple[int, int, Hashable]) -> bool:
        queued_ns, _, key = entry
        timer = self._timers.get(key)
        return timer is not None and timer.queued_ns == queued_ns

    def _wake_by(self, deadline_ns: int) -> None:
        if self._sleeper is not None:
            if self._sleeps_until_ns <= deadline_ns:
                return
            self._sleeper.cancel()
        self._sleeps_until_ns = deadline_ns
        self._sleeper = self._tasks.spawn(self._sleep(deadline_ns), "coordinator timers")

    async def _sleep(self, deadline_ns: int) -> None:
        while (left_ns := deadline_ns - self._now_ns()) > 0:
            least_s = 0.0 if self._paused_since_ns is None else _LOOK_S_MIN
            await self._clock.sleep_towards(max(left_ns / 1e9, least_s))
        self._sleeper = None
        try:
            self._fire_due()
        finally:
            if self._heap:
                self._wake_by(self._heap[0][0])

    def _fire_due(self) -> None:
        """Fire due timers; the others that are due follow in the next turns."""
        now_ns, fired = self._now_ns(), 0
        while fired < FIRED_PER_TURN and self._heap and self._heap[0][0] <= now_ns:
            queued_ns, _, key = heapq.heappop(self._heap)
            timer = self._timers.get(key)
            if timer is None or timer.queued_ns != queued_ns:
                continue  # cancelled, or queued again for an earlier time
            if timer.deadline_ns > now_ns:
                self._push(key, timer)
                continue
            del self._timers[key]
            fired += 1
            timer.callback()
