"""Byte budgets: a counter with a bounded queue of waiters.

Services use them for backpressure wherever they hold bytes in memory (receive buffers, in-flight appends,
parked fetches).
"""

from __future__ import annotations

import asyncio
from collections import deque


class BudgetExceededError(Exception):
    """The budget is used up and its queue of waiters is full. Retriable after other callers release bytes."""


class ByteBudget:
    """Grant at most `bytes_max` at a time, first come, first served.

    A request larger than `bytes_max` is granted only when nothing else is held, so oversized requests pass
    one at a time.
    """

    def __init__(self, name: str, bytes_max: int, *, waiters_max: int = 1024) -> None:
        assert bytes_max > 0
        self._name = name
        self._bytes_max = bytes_max
        self._waiters_max = waiters_max
        self._held = 0
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def bytes_max(self) -> int:
        """The bound."""
        return self._bytes_max

    @property
    def waiters_max(self) -> int:
        """Callers that may wait at a time."""
        return self._waiters_max

    @property
    def held_bytes(self) -> int:
        """Bytes granted now."""
        return self._held

    @property
    def waiting(self) -> int:
        """Number of waiting callers."""
        return len(self._waiters)

    @property
    def is_full(self) -> bool:
        """Whether a caller waits or all bytes are held."""
        return bool(self._waiters) or self._held >= self._bytes_max

    def try_acquire(self, size_bytes: int) -> bool:
        """Acquire bytes if no caller waits and they fit."""
        held = self._held + size_bytes
        if self._waiters or (held > self._bytes_max and self._held):
            return False
        self._held = held
        return True

    def charge(self, size_bytes: int) -> None:
        """Count bytes that the caller already holds, even above the limit; later requests wait longer."""
        self._held += size_bytes

    async def acquire(self, size_bytes: int) -> None:
        """Acquire bytes; wait behind all earlier callers.

        Raises:
            BudgetExceededError: `waiters_max` callers already wait.
        """
        if self.try_acquire(size_bytes):
            return
        if len(self._waiters) >= self._waiters_max:
            raise BudgetExceededError(
                f"{self._name}: {self._held} of {self._bytes_max} bytes are in use, and"
                f" {self._waiters_max} callers wait (the limit)"
            )
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter = (size_bytes, granted)
        self._waiters.append(waiter)
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self.release(size_bytes)  # the request was granted, then cancelled before this task ran
            else:
                self._waiters.remove(waiter)
                self._grant()
            raise

    def release(self, size_bytes: int) -> None:
        """Release bytes and grant waiting requests that now fit."""
        self._held -= size_bytes
        assert self._held >= 0, f"{self._name}: released more bytes than were acquired"
        if self._waiters:
            self._grant()

    def _fits(self, size_bytes: int) -> bool:
        return self._held + size_bytes <= self._bytes_max or self._held == 0

    def _grant(self) -> None:
        while self._waiters:
            size_bytes, granted = self._waiters[0]
            if granted.done():  # cancelled: `acquire` removes the request from the queue itself
                break
            if not self._fits(size_bytes):
                break
            self._waiters.popleft()
            self._held += size_bytes
            granted.set_result(None)
