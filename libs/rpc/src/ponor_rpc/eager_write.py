"""A write that the sender's task starts and the writer task finishes."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any, Self


class EagerWrite(Generator[Any, None, None]):
    """An awaitable that runs a coroutine's first step immediately, like an eager task (Python 3.12).

    After the first step gRPC has the frame, and usually the socket too. Without it a frame would wait until
    the writer task runs, and one operation takes four frames
    (docs/design/sessions-and-subscriptions.md#cost-of-an-operation).

    Await it once, in a task: this runs the rest of the coroutine and raises its exception. The coroutine must
    not use `current_task` before it first waits, because another task runs the first step.
    """

    __slots__ = ("_coroutine", "_ended", "_waits_for")

    def __init__(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self._coroutine = coroutine
        self._waits_for: Any = None
        self._ended: BaseException | None = None
        try:
            self._waits_for = coroutine.send(None)
        # StopIteration means that the coroutine has ended. `send` raises the exception again.
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
        """Pass an exception of the awaited future, or the cancellation of the task, to the coroutine."""
        return self._coroutine.throw(*error)

    def close(self) -> None:
        """Abandon the coroutine. Idempotent."""
        self._coroutine.close()
