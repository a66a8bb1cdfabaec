"""Requests that wait until the shard with their key is loaded.

On a new cluster, the first request creates the internal topic; then the topic's partitions open, and their
empty logs are loaded. A refused client would retry only after its back-off; a waiting request is answered
immediately after the load.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ponor_broker.coordination.timers import TimerQueue


class Readiness:
    """Waits of at most `ms_max` each; 0 disables waiting. A connection has at most one waiting
    request, so connections bound their number.
    """

    def __init__(self, timers: TimerQueue, ms_max: int) -> None:
        self._timers = timers
        self._ms_max = ms_max
        self._waiting: dict[asyncio.Future[None], None] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    async def wait(self, is_undecided: Callable[[], bool]) -> None:
        """Return when the condition no longer holds, or after `ms_max`."""
        if self._ms_max == 0 or not is_undecided():
            return
        is_over = False

        def expire() -> None:
            nonlocal is_over
            is_over = True
            self._wake(news)

        key = object()
        news = asyncio.get_running_loop().create_future()
        self._timers.set(key, self._ms_max, expire)
        try:
            while is_undecided() and not is_over:
                news = asyncio.get_running_loop().create_future()
                self._waiting[news] = None
                await news
        finally:
            self._timers.cancel(key)
            self._waiting.pop(news, None)

    def changed(self) -> None:
        """Make every waiting request check its condition again."""
        for news in list(self._waiting):
            self._wake(news)

    def _wake(self, news: asyncio.Future[None]) -> None:
        self._waiting.pop(news, None)
        if not news.done():
            news.set_result(None)
