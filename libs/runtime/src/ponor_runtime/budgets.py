"""Byte budgets: the bound on everything that a service holds in memory.

What lives here: one counter with a queue of waiters, used for backpressure wherever bytes are kept (receive buffers, in-flight
appends, parked fetches). The queue is bounded too: beyond it callers get a named error.
"""

from __future__ import annotations

import asyncio
from collections import deque


class BudgetExceededError(Exception):
    """The budget is used up and its waiting room is full. Retriable: try again once others have released."""


class ByteBudget:
    """At most `bytes_max` held at a time, first come, first served.

    A request for more than `bytes_max` is granted when nothing else is held: one oversized thing must pass, and only one at a time.
    """

    def __init__(self, name: str, bytes_max: int, *, waiters_max: int = 1024) -> None:
        assert bytes_max > 0
        self._name = name
        self._bytes_max = bytes_max
        self._waiters_max = waiters_max
        self._held = 0
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def held_bytes(self) -> int:
        """What is granted now."""
        return self._held

    @property
    def waiting(self) -> int:
        """How many callers wait."""
        return len(self._waiters)

    @property
    def is_full(self) -> bool:
        """Whether somebody waits, or nothing more fits."""
        return bool(self._waiters) or self._held >= self._bytes_max

    def try_acquire(self, size_bytes: int) -> bool:
        """Take bytes if nobody waits and they fit."""
        held = self._held + size_bytes
        if self._waiters or (held > self._bytes_max and self._held):
            return False
        self._held = held
        return True

    def charge(self, size_bytes: int) -> None:
        """Take bytes that are held already, whether they fit or not: what comes after them waits the longer."""
        self._held += size_bytes

    async def acquire(self, size_bytes: int) -> None:
        """Take bytes, waiting for them behind all earlier callers.

        Raises:
            BudgetExceededError: `waiters_max` callers wait already.
        """
        if self.try_acquire(size_bytes):
            return
        if len(self._waiters) >= self._waiters_max:
            raise BudgetExceededError(
                f"{self._name}: {self._held} of {self._bytes_max} bytes are held and {self._waiters_max} callers wait"
            )
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter = (size_bytes, granted)
        self._waiters.append(waiter)
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self.release(size_bytes)  # granted and cancelled in the same turn of the loop
            else:
                self._waiters.remove(waiter)
                self._grant()
            raise

    def release(self, size_bytes: int) -> None:
        """Give bytes back and let waiters in."""
        self._held -= size_bytes
        assert self._held >= 0, f"{self._name}: more was released than acquired"
        if self._waiters:
            self._grant()

    def _fits(self, size_bytes: int) -> bool:
        return self._held + size_bytes <= self._bytes_max or self._held == 0

    def _grant(self) -> None:
        while self._waiters:
            size_bytes, granted = self._waiters[0]
            if granted.done():  # cancelled; its `acquire` takes it out of the queue
                break
            if not self._fits(size_bytes):
                break
            self._waiters.popleft()
            self._held += size_bytes
            granted.set_result(None)
