"""A write that the sender's task starts and the writer's task finishes."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any, Self


class EagerWrite(Generator[Any, None, None]):
    """Awaitable that runs a coroutine's first step immediately, like an eager task (Python 3.12).

    After the first step gRPC, and usually the socket, has the frame. Otherwise a frame waits until the writer
    task is scheduled, and one operation takes four frames
    (docs/design/sessions-and-subscriptions.md#cost-of-an-operation).

    Await it once, in a task, for the rest of the coroutine and its exception. The coroutine must not use
    `current_task` before its first wait, because that step does not run in its own task.
    """

    __slots__ = ("_coroutine", "_ended", "_waits_for")

    def __init__(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self._coroutine = coroutine
        self._waits_for: Any = None
        self._ended: BaseException | None = None
        try:
            self._waits_for = coroutine.send(None)
        # StopIteration means completion; `send` re-raises everything else.
        except (Exception, asyncio.CancelledError) as ended:  # noqa: BLE001
            self._ended = ended

    def __await__(self) -> Self:
        return self

    def send(self, _: None) -> Any:
        """Continue the coroutine; return the future that the task must wait for next."""
        if self._ended is not None:
            raise self._ended
        waits_for, self._waits_for = self._waits_for, None
        return self._coroutine.send(None) if waits_for is None else waits_for

    def throw(self, *error: Any) -> Any:
        """Forward a failure of the awaited object, or the task's cancellation, to the coroutine."""
        return self._coroutine.throw(*error)

    def close(self) -> None:
        """Abandon the coroutine. Idempotent."""
        self._coroutine.close()
