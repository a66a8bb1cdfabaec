"""Interrupts one call of many by a failure or a cancellation, so that tests can interrupt every call in
turn.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any

from ponor_runtime.object_store import ObjectStoreUnavailableError

CALLS_MAX = 400
"""More calls than any story makes."""


class Kind(Enum):
    """What happens in the chosen call."""

    NOT_APPLIED = "fails before it did anything"
    APPLIED = "fails after it did everything"
    CANCELLED = "its caller is cancelled while it waits"
    CANCELLED_LATE = "its caller is cancelled after it did everything"


class Interruption:
    """Counts calls of all wrapped objects, and interrupts call number `at`."""

    def __init__(self, kind: Kind, at: int, error: Callable[[], Exception] | None = None) -> None:
        self.kind = kind
        self.at = at
        self.calls = 0
        self.interrupted = ""
        self._error = error or (lambda: ObjectStoreUnavailableError("503"))
        self._cancelling = asyncio.Event()
        self._over = asyncio.Event()

    def wrap(self, inner: Any) -> Any:
        """Wrap an object so that its coroutine methods count."""
        return _Wrapped(inner, self)

    async def run(self, story: Callable[[], Awaitable[object]]) -> bool:
        """Run a story until its end or the interruption; return whether it was interrupted."""
        running = asyncio.ensure_future(story())
        waiting = asyncio.ensure_future(self._cancelling.wait())
        await asyncio.wait((running, waiting), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if not running.done():
            running.cancel()
        await asyncio.wait((running,))
        self._over.set()
        if not running.cancelled() and running.exception() is not None and not self.interrupted:
            running.result()
        return bool(self.interrupted)

    async def call(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        """Make one counted call."""
        number, self.calls = self.calls, self.calls + 1
        if number != self.at:
            return await call()
        self.interrupted = name
        if self.kind in (Kind.APPLIED, Kind.CANCELLED_LATE):
            await call()
        if self.kind in (Kind.CANCELLED, Kind.CANCELLED_LATE):
            self._cancelling.set()
            await self._over.wait()  # a call in another task fails instead
        raise self._error()


class _Wrapped:
    def __init__(self, inner: Any, interruption: Interruption) -> None:
        self._inner = inner
        self._interruption = interruption

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not inspect.iscoroutinefunction(found):
            return found

        async def counted(*args: Any, **named: Any) -> Any:
            return await self._interruption.call(name, lambda: found(*args, **named))

        return counted
