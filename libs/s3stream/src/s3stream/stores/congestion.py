"""Limits on concurrent calls to a store: halved when the store asks to slow down, raised slowly afterwards.

Callers wait here instead of in sockets and threads. The rule is additive increase, multiplicative decrease,
as in TCP: every full window of answers raises the limit by one call, and a "slow down" error halves it. Calls
in flight at that time usually get the same answer; they do not halve the limit again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, TypeVar

from ponor_runtime.object_store import ObjectStoreSlowDownError
from ponor_runtime.telemetry import Telemetry

from s3stream.stores.policy import Attempt, Operation, StorePolicy

_T = TypeVar("_T")
LIMIT_MIN: Final = 1.0
READS_IN_FLIGHT_MAX: Final = 64
WRITES_IN_FLIGHT_MAX: Final = 32
PARTS_IN_FLIGHT_MAX: Final = 16


class CongestionWindow:
    """Admits concurrent calls in the order of their requests, never more than `in_flight_max`."""

    def __init__(self, in_flight_max: int) -> None:
        assert in_flight_max >= 1
        self._max: Final = in_flight_max
        self._limit = float(in_flight_max)
        self._in_flight = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._calls = 0
        self._shrunk_at = 0
        """Number of the newest call at the last halving. A "slow down" for it or an older call does not halve
        the limit again."""

    @property
    def limit(self) -> int:
        """Current limit of concurrent calls."""
        return int(self._limit)

    @property
    def in_flight(self) -> int:
        """Calls in flight."""
        return self._in_flight

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Admit one call, and adapt the limit to its outcome."""
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
            if place.done() and not place.cancelled():  # granted and cancelled in the same turn
                self._leave()
            raise

    def _leave(self) -> None:
        assert self._in_flight > 0
        self._in_flight -= 1
        while self._waiting and self._in_flight < self.limit:
            place = self._waiting.popleft()
            if not place.done():
                self._in_flight += 1
                place.set_result(None)

    def _shrink(self, number: int) -> None:
        assert number <= self._calls
        if number > self._shrunk_at:
            self._limit = max(self._limit / 2, LIMIT_MIN)
            self._shrunk_at = self._calls


class ConcurrencyLimit(StorePolicy):
    """Limits concurrent reads and concurrent writes. Listings are long and rare, so they are not limited.

    This policy belongs inside the retries: a caller that pauses before a retry then holds no place.
    """

    def __init__(
        self,
        *,
        reads_in_flight_max: int = READS_IN_FLIGHT_MAX,
        writes_in_flight_max: int = WRITES_IN_FLIGHT_MAX,
        telemetry: Telemetry | None = None,
    ) -> None:
        self.reads: Final = CongestionWindow(reads_in_flight_max)
        self.writes: Final = CongestionWindow(writes_in_flight_max)
        if telemetry is not None:
            telemetry.gauge("ponor_object_store_concurrency", lambda: self.reads.limit, **{"class": "read"})
            telemetry.gauge("ponor_object_store_concurrency", lambda: self.writes.limit, **{"class": "write"})

    async def call(self, operation: Operation, attempt: Attempt[_T]) -> _T:
        window = self.reads if operation.name == "get" else self.writes
        async with window.place():
            return await attempt()
