"""A write that begins in whoever sends, and ends in the task that writes.

What lives here: a coroutine whose first step is taken at once, as an eager task would (Python has them from 3.12 on). With that step gRPC has the frame and, as a rule, the socket
too; the task that waits for the rest wakes a turn of the loop later, behind all that was ready before it. A lone operation crosses four frames, and each of them waited for
that turn (docs/design/sessions-and-subscriptions.md#cost-of-an-operation).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any, Self


class BegunWrite(Generator[Any, None, None]):
    """Await it once, in a task: for the rest of the coroutine, and for what it raised.

    The coroutine must not look at the task it runs in before it waits for the first time: there is none.
    """

    __slots__ = ("_coroutine", "_ended", "_waits_for")

    def __init__(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self._coroutine = coroutine
        self._waits_for: Any = None
        self._ended: BaseException | None = None
        try:
            self._waits_for = coroutine.send(None)
        except (Exception, asyncio.CancelledError) as ended:  # noqa: BLE001 -- StopIteration is its end; all else is raised where it is awaited
            self._ended = ended

    def __await__(self) -> Self:
        return self

    def send(self, _: None) -> Any:
        """What the task shall wait for next."""
        if self._ended is not None:
            raise self._ended
        waits_for, self._waits_for = self._waits_for, None
        return self._coroutine.send(None) if waits_for is None else waits_for

    def throw(self, *error: Any) -> Any:
        """What the task waited for failed, or the task was cancelled."""
        return self._coroutine.throw(*error)

    def close(self) -> None:
        """Nobody will await it, or not to its end. Idempotent."""
        self._coroutine.close()
