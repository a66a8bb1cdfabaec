"""Worker threads that run disk calls in order and deliver the results to the event loop.

`SystemDisk` binds a worker from the pool to each open file. Each group commit needs at least one call. A call
is therefore kept cheap: one put into a C-level queue and one `call_soon_threadsafe`, without a Python lock.
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
"""Completion callback, called from the loop with the error or the result of a call."""
_Job: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...], asyncio.AbstractEventLoop, Tell]


class DiskWorker:
    """One thread that executes calls in submission order.

    The thread is a daemon: a process that stops on an error must not wait for a hung disk.
    """

    __slots__ = ("_jobs",)

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def submit(self, function: Callable[..., _T], *arguments: Any) -> asyncio.Future[_T]:
        """Run `function(*arguments)` after all earlier calls. Requires a running event loop."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_T] = loop.create_future()
        self._jobs.put((function, arguments, loop, partial(settle, future)))
        return future

    def submit_then(self, tell: Tell, function: Callable[..., Any], *arguments: Any) -> None:
        """Like `submit`, but call `tell(error, result)` from the loop: no future and no further iteration of
        the loop.
        """
        self._jobs.put((function, arguments, asyncio.get_running_loop(), tell))

    def stop(self) -> None:
        """End the thread after all submitted calls."""
        self._jobs.put(None)

    def _run(self) -> None:
        take = self._jobs.get
        while (job := take()) is not None:
            function, arguments, loop, tell = job
            error = result = None
            try:
                result = function(*arguments)
            except BaseException as raised:  # noqa: BLE001 - re-raised where the call is awaited
                error = raised
            # RuntimeError: the loop is closed, so no caller waits for the result.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(tell, error, result)
            # Do not keep the buffers of the last job alive while waiting for the next one.
            del job, function, arguments, loop, tell, error, result


def settle(future: asyncio.Future[Any], error: BaseException | None, result: object) -> None:
    """Complete a future from a `Tell` callback."""
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


class DiskWorkerPool:
    """Pool of workers. Each is bound to one open file; after that file is closed, it serves another one.

    Not thread-safe: call all methods on the event loop's thread.
    """

    WORKERS_MAX: Final = 512
    IDLE_MAX: Final = 8

    def __init__(self) -> None:
        self._idle: list[DiskWorker] = []
        self._bound = 0

    def bind(self) -> DiskWorker:
        """Return a worker for one file.

        Raises:
            OSError: EMFILE, `WORKERS_MAX` files are already open.
        """
        if self._bound >= self.WORKERS_MAX:
            raise OSError(errno.EMFILE, f"{self.WORKERS_MAX} files are open on this disk; that is the limit")
        self._bound += 1
        return self._idle.pop() if self._idle else DiskWorker("ponor-disk")

    def give_back(self, worker: DiskWorker) -> None:
        """Return the worker of a closed file to the pool."""
        self._bound -= 1
        assert self._bound >= 0
        if len(self._idle) < self.IDLE_MAX:
            self._idle.append(worker)
        else:
            worker.stop()

    def stop_idle(self) -> None:
        """End the threads that are not bound to a file."""
        while self._idle:
            self._idle.pop().stop()
