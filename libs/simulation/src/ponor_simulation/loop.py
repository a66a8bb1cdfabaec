"""An asyncio event loop with virtual time, in which a seed makes every choice.

Time jumps to the next timer when nothing is ready. Ready callbacks run in shuffled order, so that
no code can rely on the order in which tasks wake. Callbacks of an ended process never run. Threads,
sockets and executors raise: code must reach them through a port.

A run has millions of handles. The loop therefore has its own iteration, with asyncio's order.
"""
# ruff: noqa: SLF001 - handles have no public callback, context or state

from __future__ import annotations

import asyncio
import contextvars
import heapq
import random
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NoReturn

if TYPE_CHECKING:
    from collections import deque


DUE_WITHIN_S: Final = 1e-6
"""Tolerance when timers are compared with the current time. It is larger than the resolution of a float after
years of virtual time; otherwise a due timer might never count as due.
"""
CANCELLED_TIMERS_MAX: Final = 100
CANCELLED_SHARE_MAX: Final = 0.5
"""The loop drops cancelled timers when it has more than CANCELLED_TIMERS_MAX timers and more than this share
of them is cancelled. Both numbers are asyncio's.
"""


class SimulationStuckError(Exception):
    """Nothing is ready and no timer is set: the scenario waits for an event that cannot occur."""


class NotSimulatableError(Exception):
    """Simulated code used a thread, a socket or an executor instead of a port."""


class Incarnation:
    """One life of a simulated process. Everything started in its context ends with it.

    Attributes:
        paused: no code of the process runs. Due callbacks wait in `held`, in the order in which they became
            due.
    """

    __slots__ = ("alive", "held", "name", "paused", "tasks")

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.paused = False
        self.held: list[asyncio.Handle] = []
        self.tasks: dict[asyncio.Task[Any], None] = {}


INCARNATION: Final[contextvars.ContextVar[Incarnation | None]] = contextvars.ContextVar(
    "incarnation", default=None
)
"""Inherited by every task and callback that a process starts."""


class _Ready(asyncio.Handle):
    """A handle without debug information: most objects of a run are handles."""

    __slots__ = ()

    def __init__(
        self,
        callback: Callable[..., Any],
        args: tuple[Any, ...],
        loop: asyncio.AbstractEventLoop,
        context: contextvars.Context,
    ) -> None:
        self._callback = callback
        self._args = args
        self._loop = loop
        self._context = context
        self._cancelled = False
        self._repr = None
        self._source_traceback = None


class _Timer(asyncio.TimerHandle):
    """A timer without debug information, scheduled from the start."""

    __slots__ = ()

    def __init__(
        self,
        when: float,
        callback: Callable[..., Any],
        args: tuple[Any, ...],
        loop: asyncio.AbstractEventLoop,
        context: contextvars.Context,
    ) -> None:
        self._when = when
        self._callback = callback
        self._args = args
        self._loop = loop
        self._context = context
        self._cancelled = False
        self._scheduled = True
        self._repr = None
        self._source_traceback = None


class _Due(float):
    """The time of a timer. The heap holds these: Python compares floats in C, but timers in Python code."""

    __slots__ = ("timer",)
    timer: _Timer


class VirtualTimeLoop(asyncio.BaseEventLoop):
    """An asyncio loop without real time, threads and sockets.

    Args:
        seed: determines the order of the shuffle.
        shuffle: run ready callbacks in random order; otherwise first in, first out.
    """

    _ready: deque[asyncio.Handle]
    _scheduled: list[_Due]
    _closed: bool
    _stopping: bool
    _timer_cancelled_count: int

    def __init__(self, seed: int, *, shuffle: bool = True) -> None:
        super().__init__()
        self._now = 0.0
        self._thread = threading.get_ident()
        self._turn: list[asyncio.Handle] = []
        """Callbacks that this iteration still has to run, in reverse order."""
        self._shuffle = random.Random(f"loop {seed}").shuffle if shuffle else None
        self._paused: dict[Incarnation, None] = {}
        self.crashed_tasks: list[asyncio.Task[Any]] = []
        """Tasks of ended processes. They are kept because collecting a suspended coroutine would
        run its `finally` blocks.
        """
        self.outside = contextvars.Context()
        """A context without a process: callbacks that are scheduled in it survive every crash."""

    def time(self) -> float:
        return self._now

    def kill(self, incarnation: Incarnation) -> None:
        """End a process immediately: none of its callbacks and `finally` blocks runs again."""
        incarnation.alive = False
        self._paused.pop(incarnation, None)
        timers = [due.timer for due in self._scheduled]
        for handle in [*self._turn, *self._ready, *timers, *incarnation.held]:
            if handle._context.get(INCARNATION) is incarnation:  # type: ignore[attr-defined]
                handle.cancel()
        for task in incarnation.tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # it stays pending on purpose
        self.crashed_tasks.extend(incarnation.tasks)
        incarnation.tasks.clear()
        incarnation.held.clear()

    def pause(self, incarnation: Incarnation) -> None:
        """Stop running a process until `resume`, as SIGSTOP does. Messages and timers wait."""
        assert incarnation.alive
        incarnation.paused = True
        self._paused[incarnation] = None

    def resume(self, incarnation: Incarnation) -> None:
        """Continue a process; everything that waited is ready at once."""
        incarnation.paused = False
        del self._paused[incarnation]
        self._ready.extend(incarnation.held)
        incarnation.held.clear()

    def create_task(  # type: ignore[override]
        self, coro: Any, *, name: str | None = None, context: contextvars.Context | None = None
    ) -> asyncio.Task[Any]:
        if self.is_closed():
            # a `finally` block of an ended program created this task; it never runs, and Python must not warn
            # about it
            coro.close()
        task: asyncio.Task[Any] = super().create_task(coro, name=name, context=context)
        incarnation = INCARNATION.get() if context is None else context.get(INCARNATION)
        if incarnation is not None:
            incarnation.tasks[task] = None
            task.add_done_callback(lambda done: incarnation.tasks.pop(done, None), context=self.outside)
        return task

    # Typeshed's signature checks the arguments against the callback; this method passes them on unchecked.
    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        if self._closed:
            raise RuntimeError("Event loop is closed")
        if context is None:
            context = contextvars.copy_context()
        handle = _Ready(callback, args, self, context)
        self._ready.append(handle)
        incarnation = context.get(INCARNATION)
        if incarnation is not None and not incarnation.alive:
            handle.cancel()
        return handle

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        if self._closed:
            raise RuntimeError("Event loop is closed")
        if context is None:
            context = contextvars.copy_context()
        timer = _Timer(when, callback, args, self, context)
        due = _Due(when)
        due.timer = timer
        heapq.heappush(self._scheduled, due)
        incarnation = context.get(INCARNATION)
        if incarnation is not None and not incarnation.alive:
            timer.cancel()
        return timer

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        # Python calls this when it collects an asynchronous generator, on the loop's own thread.
        if threading.get_ident() != self._thread:
            raise NotSimulatableError("another thread scheduled a callback")
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(self, executor: object, func: Callable[..., Any], *args: object) -> NoReturn:
        raise NotSimulatableError(f"run_in_executor({executor}, {func!r}, {args}): use a port")

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> NoReturn:
        raise NotSimulatableError(f"getaddrinfo({host!r}, {port!r}, {options}): use the network port")

    async def create_connection(self, *args: Any, **options: Any) -> NoReturn:
        raise NotSimulatableError(f"create_connection({args}, {options}): use the network port")

    async def create_server(self, *args: Any, **options: Any) -> NoReturn:
        raise NotSimulatableError(f"create_server({args}, {options}): use the network port")

    def _run_once(self) -> None:
        """Run iterations until the loop is stopped. (`BaseEventLoop` runs one per call and polls the kernel.)

        An iteration runs the ready callbacks in random order, then due timers. Callbacks that
        become ready in the meantime belong to the next iteration.
        """
        ready, scheduled, shuffle, turn = self._ready, self._scheduled, self._shuffle, self._turn
        while True:
            if self._paused:
                self._hold_ready()
            turn.extend(ready)
            ready.clear()
            if shuffle is not None and len(turn) > 1:
                shuffle(turn)
            if scheduled and (scheduled[0].timer._cancelled or len(scheduled) > CANCELLED_TIMERS_MAX):
                self._drop_cancelled_timers()
            if not turn:
                self._jump()
            if scheduled and scheduled[0] < self._now + DUE_WITHIN_S:
                self._take_due_timers(self._now + DUE_WITHIN_S)
            turn.reverse()
            while turn:
                handle: Any = turn.pop()
                if not handle._cancelled:
                    try:
                        handle._context.run(handle._callback, *handle._args)
                    except (SystemExit, KeyboardInterrupt):
                        raise
                    except BaseException as error:  # noqa: BLE001 - the loop's handler receives it
                        self._callback_failed(handle, error)
            handle = None  # release the objects of the callback now
            if self._stopping:
                return

    def _callback_failed(self, handle: asyncio.Handle, error: BaseException) -> None:
        message = f"Exception in callback {handle!r}"
        self.call_exception_handler({"message": message, "exception": error, "handle": handle})

    def _jump(self) -> None:
        """Advance the time to the next timer."""
        if not self._scheduled:
            raise SimulationStuckError("the simulation is stuck: no callback is ready and no timer is set")
        self._now = max(self._now, self._scheduled[0].timer.when())

    def _take_due_timers(self, limit: float) -> None:
        """Move due timers to this iteration, or to `held` if their process is paused."""
        scheduled, turn = self._scheduled, self._turn
        if self._paused:
            self._hold_due_timers(limit)
        while scheduled and scheduled[0] < limit:
            timer: Any = heapq.heappop(scheduled).timer
            timer._scheduled = False
            turn.append(timer)

    def _drop_cancelled_timers(self) -> None:
        """Drop the cancelled timers at the head of the heap. If there are many timers and most of them are
        cancelled, drop all cancelled timers.
        """
        scheduled = self._scheduled
        if (
            len(scheduled) > CANCELLED_TIMERS_MAX
            and self._timer_cancelled_count / len(scheduled) > CANCELLED_SHARE_MAX
        ):
            kept = []
            for due in scheduled:
                if due.timer._cancelled:
                    due.timer._scheduled = False
                else:
                    kept.append(due)
            heapq.heapify(kept)
            scheduled[:] = kept
            self._timer_cancelled_count = 0
            return
        while scheduled and scheduled[0].timer._cancelled:
            self._timer_cancelled_count -= 1
            heapq.heappop(scheduled).timer._scheduled = False

    def _hold_due_timers(self, limit: float) -> None:
        """Remove the timers of paused processes before they count as due."""
        scheduled = self._scheduled
        found: list[_Due] = []
        while scheduled and scheduled[0] < limit:
            found.append(heapq.heappop(scheduled))
        for due in found:
            incarnation = _paused_owner(due.timer)
            if incarnation is None or due.timer.cancelled():
                heapq.heappush(scheduled, due)
            else:
                due.timer._scheduled = False
                incarnation.held.append(due.timer)

    def _hold_ready(self) -> None:
        waiting = list(self._ready)
        self._ready.clear()
        for handle in waiting:
            incarnation = _paused_owner(handle)
            (self._ready if incarnation is None else incarnation.held).append(handle)

    def _process_events(self, event_list: list[Any]) -> None:
        assert not event_list

    def _write_to_self(self) -> None:
        """Nothing to wake: no thread waits in the kernel."""


def _paused_owner(handle: asyncio.Handle) -> Incarnation | None:
    incarnation: Incarnation | None = handle._context.get(INCARNATION)  # type: ignore[attr-defined]
    return incarnation if incarnation is not None and incarnation.paused else None
