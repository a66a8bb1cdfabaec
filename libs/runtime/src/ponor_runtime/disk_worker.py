"""Threads that run disk calls, one after the other, and bring the results back to the event loop.

What lives here: the hop between the loop and a thread, and the pool from which `SystemDisk` takes a thread for as long as a file is
open. A hop is one put into a C-level queue and one `call_soon_threadsafe`; nothing in between takes a Python lock, because a group
commit pays for the hop with every sync.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, TypeAlias, TypeVar

_T = TypeVar("_T")

Tell: TypeAlias = Callable[[BaseException | None, Any], None]
"""Called from the loop with the error or the result of a call."""
_Job: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...], asyncio.AbstractEventLoop, Tell]


class DiskWorker:
    """One thread that executes calls in the order given.

    The thread is a daemon: a process that stops on an error must not wait for a disk that hangs.
    """

    __slots__ = ("_jobs",)

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def submit(self, function: Callable[..., _T], *arguments: Any) -> asyncio.Future[_T]:
        """Run `function(*arguments)` after all earlier calls; must be called on a running event loop."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_T] = loop.create_future()
        self._jobs.put((function, arguments, loop, partial(settle, future)))
        return future

    def submit_then(self, tell: Tell, function: Callable[..., Any], *arguments: Any) -> None:
        """`submit`, but `tell(error, result)` is called from the loop: no future, and no further turn of the loop behind it."""
        self._jobs.put((function, arguments, asyncio.get_running_loop(), tell))

    def stop(self) -> None:
        """End the thread once everything submitted has run."""
        self._jobs.put(None)

    def _run(self) -> None:
        take = self._jobs.get
        while (job := take()) is not None:
            function, arguments, loop, tell = job
            error = result = None
            try:
                result = function(*arguments)
            except BaseException as raised:  # noqa: BLE001 - it is raised where the call is awaited
                error = raised
            # The loop may have been closed meanwhile: then nobody waits for the result.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(tell, error, result)
            # A thread that waits for its next job must not keep the buffers of the last one alive.
            del job, function, arguments, loop, tell, error, result


def settle(future: asyncio.Future[Any], error: BaseException | None, result: object) -> None:
    """`Tell` for those who wait with a future."""
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


class DiskWorkerPool:
    """Workers that are bound to one open file each, and kept for the next file afterwards.

    All methods run on the event loop's thread.
    """

    WORKERS_MAX: Final = 512
    IDLE_MAX: Final = 8

    def __init__(self) -> None:
        self._idle: list[DiskWorker] = []
        self._bound = 0

    def bind(self) -> DiskWorker:
        """A worker for one file.

        Raises:
            OSError: EMFILE, `WORKERS_MAX` files are open.
        """
        if self._bound >= self.WORKERS_MAX:
            raise OSError(
                errno.EMFILE, f"{self.WORKERS_MAX} files are open on this disk, and that is its limit"
            )
        self._bound += 1
        return self._idle.pop() if self._idle else DiskWorker("ponor-disk")

    def give_back(self, worker: DiskWorker) -> None:
        """The file of this worker is closed."""
        self._bound -= 1
        assert self._bound >= 0
        if len(self._idle) < self.IDLE_MAX:
            self._idle.append(worker)
        else:
            worker.stop()

    def stop_idle(self) -> None:
        """End the threads that no file uses."""
        while self._idle:
            self._idle.pop().stop()
