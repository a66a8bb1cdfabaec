"""Supervised background tasks: an unhandled exception calls the fail-stop handler immediately.

Without supervision asyncio would log it only when the task is garbage-collected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from ponor_runtime.clock import Clock

FailStop: TypeAlias = Callable[[str, BaseException], None]
"""Called with the name of the failed task and its exception."""


def report_to_loop(what: str, error: BaseException) -> None:
    """Report a failure to the event loop's exception handler; for processes without a fail-stop handler."""
    context = {"message": f"{what} failed", "exception": error}
    asyncio.get_running_loop().call_exception_handler(context)


class BackgroundTasks:
    """Tasks of one owner. The owner cancels them when it closes.

    Reaching `tasks_max` means that the service leaks tasks; `spawn` then raises.
    """

    def __init__(self, fail_stop: FailStop, *, tasks_max: int = 10_000) -> None:
        self._fail_stop = fail_stop
        self._tasks_max = tasks_max
        # A dict, not a set: tasks are cancelled in start order, so that simulator runs are deterministic.
        self._tasks: dict[asyncio.Task[Any], str] = {}
        self._closed = False

    def __len__(self) -> int:
        return len(self._tasks)

    @property
    def is_closed(self) -> bool:
        """Whether the owner is closing or closed; `spawn` then raises."""
        return self._closed

    def spawn(self, coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Start a task. Its exception goes to the fail-stop handler, unless it was cancelled.

        Raises:
            RuntimeError: the owner is closed or has `tasks_max` tasks.
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


_SLEEP_S_MIN = 0.001
"""A shorter sleep may end before the clock has advanced, so a task that waits for a time one nanosecond ahead
would spin.
"""


class Wake:
    """One task waits; any code may wake it. A wake-up without a waiting task is kept."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._woken = asyncio.Event()

    def set(self) -> None:
        """Wake the task."""
        self._woken.set()

    async def wait(self, timeout_s: float | None) -> None:
        """Return after a wake-up, which this call consumes, or after `timeout_s`."""
        if timeout_s is None:
            await self._woken.wait()
        elif not self._woken.is_set():
            sleeper = asyncio.ensure_future(self._clock.sleep(max(timeout_s, _SLEEP_S_MIN)))
            waiter = asyncio.ensure_future(self._woken.wait())
            try:
                await asyncio.wait((sleeper, waiter), return_when=asyncio.FIRST_COMPLETED)
            finally:
                sleeper.cancel()
                waiter.cancel()
        self._woken.clear()
