"""An event loop whose time is virtual and whose every choice comes from a seed.

What lives here: time that jumps to the next timer when nothing is ready; a shuffle of what is ready, so that no code can rely on the
order in which tasks wake; and the end of a simulated process, whose callbacks simply never run again. Threads, sockets and executors
raise: whatever needs one is not simulatable and has to go through a port.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import random
import threading
from collections.abc import Callable
from typing import Any, Final, NoReturn


class SimulationStuckError(Exception):
    """Nothing is ready and no timer is set: the scenario waits for something that cannot happen."""


class NotSimulatableError(Exception):
    """Code under simulation reached for a thread, a socket or an executor instead of a port."""


class Incarnation:
    """One life of a simulated process: everything started in its context dies with it.

    Attributes:
        paused: nothing of it runs; what becomes due waits in `held`, in the order in which it did.
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


class _VirtualSelector:
    """Where a real loop would wait for the kernel, this one moves the time."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None or timeout > 0:
            self._loop.jump()
        self._loop.hold_due_timers()
        return []


class VirtualTimeLoop(asyncio.BaseEventLoop):
    """An asyncio loop without the outside world.

    Args:
        seed: of the shuffle.
        shuffle: run what is ready in random order (first in, first out otherwise).
    """

    _ready: Any
    _scheduled: list[asyncio.TimerHandle]

    def __init__(self, seed: int, *, shuffle: bool = True) -> None:
        super().__init__()
        self._now = 0.0
        self._thread = threading.get_ident()
        self._selector = _VirtualSelector(self)
        # Coarser than a float is after years of virtual seconds: else a due timer would never count as due.
        self._clock_resolution = 1e-6
        self._shuffle = random.Random(f"loop {seed}").shuffle if shuffle else None
        self._paused: dict[Incarnation, None] = {}
        self.graveyard: list[asyncio.Task[Any]] = []
        """Tasks of dead processes; kept, because collecting a suspended coroutine would run its `finally` blocks."""
        self.outside = contextvars.Context()
        """A context of no process: what is scheduled in it outlives every crash."""

    def time(self) -> float:
        return self._now

    def jump(self) -> None:
        """Move the time to the next timer."""
        if not self._scheduled:
            raise SimulationStuckError("nothing is ready and no timer is set")
        self._now = max(self._now, self._scheduled[0].when())

    def kill(self, incarnation: Incarnation) -> None:
        """Stop everything of a process where it stands: no callback and no `finally` block of it runs any more."""
        incarnation.alive = False
        self._paused.pop(incarnation, None)
        for handle in [*self._ready, *self._scheduled, *incarnation.held]:
            if handle._context.get(INCARNATION) is incarnation:  # noqa: SLF001 - a handle has no public context
                handle.cancel()
        for task in incarnation.tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001 - it is meant to stay pending
        self.graveyard.extend(incarnation.tasks)
        incarnation.tasks.clear()
        incarnation.held.clear()

    def pause(self, incarnation: Incarnation) -> None:
        """Nothing of a process runs until `resume`, as after SIGSTOP: messages arrive, timers run out, and nobody looks."""
        assert incarnation.alive
        incarnation.paused = True
        self._paused[incarnation] = None

    def resume(self, incarnation: Incarnation) -> None:
        """The process goes on; all that waited is ready at once."""
        incarnation.paused = False
        del self._paused[incarnation]
        self._ready.extend(incarnation.held)
        incarnation.held.clear()

    def hold_due_timers(self) -> None:
        """Take the timers of paused processes away before the base class finds them due."""
        if not self._paused:
            return
        limit = self._now + self._clock_resolution
        due: list[asyncio.TimerHandle] = []
        while self._scheduled and self._scheduled[0].when() < limit:
            due.append(heapq.heappop(self._scheduled))
        for handle in due:
            incarnation = _paused_owner(handle)
            if incarnation is None or handle.cancelled():
                heapq.heappush(self._scheduled, handle)
            else:
                handle._scheduled = False  # type: ignore[attr-defined]  # noqa: SLF001 - it left the heap
                incarnation.held.append(handle)

    def create_task(  # type: ignore[override]
        self, coro: Any, *, name: str | None = None, context: contextvars.Context | None = None
    ) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = super().create_task(coro, name=name, context=context)
        incarnation = INCARNATION.get() if context is None else context.get(INCARNATION)
        if incarnation is not None:
            incarnation.tasks[task] = None
            task.add_done_callback(lambda done: incarnation.tasks.pop(done, None), context=self.outside)
        return task

    # Typeshed ties the arguments to the callback by a variadic type; here they are passed on as they come.
    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = super().call_soon(callback, *args, context=context)
        _cancel_if_dead(handle)
        return handle

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = super().call_at(when, callback, *args, context=context)
        _cancel_if_dead(handle)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        # Python itself calls this when an asynchronous generator is collected; that happens on the loop's own thread.
        if threading.get_ident() != self._thread:
            raise NotSimulatableError("a callback from another thread")
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
        ready = self._ready
        if self._paused:
            self._hold_ready()
        if self._shuffle is not None and len(ready) > 1:
            shuffled = list(ready)
            self._shuffle(shuffled)
            ready.clear()
            ready.extend(shuffled)
        super()._run_once()  # type: ignore[misc]

    def _hold_ready(self) -> None:
        waiting = list(self._ready)
        self._ready.clear()
        for handle in waiting:
            incarnation = _paused_owner(handle)
            (self._ready if incarnation is None else incarnation.held).append(handle)

    def _process_events(self, event_list: list[Any]) -> None:
        assert not event_list

    def _write_to_self(self) -> None:
        """Nobody waits in the kernel, so nobody has to be woken."""


def _cancel_if_dead(handle: asyncio.Handle) -> None:
    incarnation = handle._context.get(INCARNATION)  # type: ignore[attr-defined]  # noqa: SLF001
    if incarnation is not None and not incarnation.alive:
        handle.cancel()


def _paused_owner(handle: asyncio.Handle) -> Incarnation | None:
    incarnation: Incarnation | None = handle._context.get(INCARNATION)  # type: ignore[attr-defined]  # noqa: SLF001
    return incarnation if incarnation is not None and incarnation.paused else None
