"""A wake-up call with a timeout on the clock port, for tasks that sleep until an event or a point in time."""

from __future__ import annotations

import asyncio

from ponor_runtime.clock import Clock

_SLEEP_S_MIN = 0.001
"""Shorter sleeps may end before the clock has moved: a task that waits for a moment a nanosecond away would spin."""


class Wake:
    """One task waits; any code may wake it. A wake-up without a waiting task is kept."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._news = asyncio.Event()

    def set(self) -> None:
        """There is news."""
        self._news.set()

    async def wait(self, timeout_s: float | None) -> None:
        """Return when there is news, or after the time; takes the news."""
        if timeout_s is None:
            await self._news.wait()
        elif not self._news.is_set():
            sleeper = asyncio.ensure_future(self._clock.sleep(max(timeout_s, _SLEEP_S_MIN)))
            waiter = asyncio.ensure_future(self._news.wait())
            try:
                await asyncio.wait((sleeper, waiter), return_when=asyncio.FIRST_COMPLETED)
            finally:
                sleeper.cancel()
                waiter.cancel()
        self._news.clear()
