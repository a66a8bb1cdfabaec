"""How many calls may be in flight to a store: fewer when it asks to slow down, slowly more again when it answers.

Additive increase, multiplicative decrease, as TCP does: every full window of answers adds one, "slow down" halves. The calls that were in
flight at that moment will be told the same; they halve nothing more. One window for all writes of a process, so that log and uploads share what the store takes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from ponor_runtime.object_store import ObjectStoreSlowDownError

LIMIT_MIN: Final = 1.0


class CongestionWindow:
    """Places for calls in flight, given in the order of the calls. Never more than `in_flight_max`."""

    def __init__(self, in_flight_max: int) -> None:
        assert in_flight_max >= 1
        self._max: Final = in_flight_max
        self._limit = float(in_flight_max)
        self._in_flight = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._calls = 0
        self._shrunk_at = 0
        """Calls that began up to this one were in flight when the window was halved last."""

    @property
    def limit(self) -> int:
        """Calls that may be in flight now."""
        return int(self._limit)

    @property
    def in_flight(self) -> int:
        """Calls that are."""
        return self._in_flight

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Hold a place for one call, and learn from how it ends."""
        await self._enter()
        self._calls += 1
        number = self._calls
        try:
            yield
        except ObjectStoreSlowDownError:
            self._shrink(number)
            raise
        else:
            self._limit = min(self._limit + 1 / self._limit, float(self._max))
        finally:
            self._leave()

    async def _enter(self) -> None:
        if self._in_flight < self.limit and not self._waiting:
            self._in_flight += 1
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():  # given and cancelled in the same turn
                self._leave()
            raise

    def _leave(self) -> None:
        self._in_flight -= 1
        while self._waiting and self._in_flight < self.limit:
            place = self._waiting.popleft()
            if not place.done():
                self._in_flight += 1
                place.set_result(None)

    def _shrink(self, number: int) -> None:
        if number > self._shrunk_at:
            self._limit = max(self._limit / 2, LIMIT_MIN)
            self._shrunk_at = self._calls
