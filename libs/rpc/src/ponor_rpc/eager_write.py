"""A write that starts in the sender's task and finishes in the writer's task."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any, Self


class EagerWrite(Generator[Any, None, None]):
    """Awaitable that runs a coroutine's first step immediately, like an eager task (Python 3.12).

    After the first step gRPC, and usually the socket, has the frame. Without it a frame waits for the writer
    task to be scheduled; a single operation crosses four frames
    (docs/design/sessions-and-subscriptions.md#cost-of-an-operation).

    Await it once, in a task, for the rest of the coroutine and its exception. The coroutine must not use the
    current task before its first wait: there is none.
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
        """Return what the task must wait for next."""
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
