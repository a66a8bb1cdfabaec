"""Supervised background tasks: no exception of a task is ever lost.

What lives here: the owner of a service's long-running coroutines. An exception that a task does not handle reaches the process's
fail-stop handler at once, instead of a log line at garbage collection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

FailStop: TypeAlias = Callable[[str, BaseException], None]
"""Called with the name of what failed, and why."""


def report_to_loop(what: str, error: BaseException) -> None:
    """Hand the failure to the event loop's exception handler: what a process without a fail-stop handler does."""
    context = {"message": f"{what} failed", "exception": error}
    asyncio.get_running_loop().call_exception_handler(context)


class BackgroundTasks:
    """A set of tasks that live as long as their owner.

    Bound: `tasks_max`; a service that reaches it leaks tasks, which is a bug, and says so.
    """

    def __init__(self, fail_stop: FailStop, *, tasks_max: int = 10_000) -> None:
        self._fail_stop = fail_stop
        self._tasks_max = tasks_max
        # A dict, not a set: tasks are cancelled in the order they were started, on every run alike.
        self._tasks: dict[asyncio.Task[Any], str] = {}
        self._closed = False

    def __len__(self) -> int:
        return len(self._tasks)

    @property
    def is_closed(self) -> bool:
        """Whether the owner is closing or closed, so that nothing can be started any more."""
        return self._closed

    def spawn(self, coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Start a task. Its exception, unless it was cancelled, goes to the fail-stop handler.

        Raises:
            RuntimeError: the owner was closed, or has `tasks_max` tasks.
        """
        if self._closed or len(self._tasks) >= self._tasks_max:
            coroutine.close()
            raise RuntimeError(
                f"cannot start task {name!r}: its owner "
                + ("was closed" if self._closed else f"has {self._tasks_max} tasks already")
            )
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._tasks[task] = name
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        name = self._tasks.pop(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail_stop(name, error)

    async def close(self) -> None:
        """Cancel every task and wait until all have ended. Idempotent."""
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
