"""A simulated world: a loop, a network, processes, and the scenario that drives them."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

from ponor_runtime.runtime import Runtime

from ponor_simulation.disk import SimDisk
from ponor_simulation.loop import VirtualTimeLoop
from ponor_simulation.network import NetworkHub
from ponor_simulation.object_store import SimBucket, SimObjectStore
from ponor_simulation.process import ProcessGoneError, SimProcess
from ponor_simulation.trace import Trace

_T = TypeVar("_T")
FINALLY_BLOCKS_MAX: Final = 20
"""Maximum number of `finally` blocks with an await in one abandoned coroutine."""


class SimulationFailedError(AssertionError):
    """A run failed; the message has the seed and the last events."""


class Simulation:
    """A world from a seed. Use it once: create processes, then `run` a scenario.

    Attributes:
        chance: random generator for choices of the scenario.
    """

    def __init__(self, seed: int, *, shuffle: bool = True) -> None:
        self.seed = seed
        self.trace = Trace()
        self.loop = VirtualTimeLoop(seed, shuffle=shuffle)
        self.network = NetworkHub(self.loop, str(seed), self.trace)
        self.chance = random.Random(f"scenario {seed}")
        self.processes: dict[str, SimProcess] = {}
        self._errors: list[tuple[str, BaseException | None]] = []
        self._is_over = False
        self.loop.set_exception_handler(self._loop_error)

    def process(self, name: str, main: Callable[[Runtime], Awaitable[None]]) -> SimProcess:
        """Create a machine with a program; it is not started."""
        assert name not in self.processes
        assert "#" not in name
        process = SimProcess(self.loop, self.network, self.trace, str(self.seed), name, main)
        self.processes[name] = process
        return process

    def disk(self, name: str) -> SimDisk:
        """Create a disk without a process, for scenarios that use the disk themselves."""
        return SimDisk(self.loop, f"{self.seed} {name}", self.trace, name)

    def object_store(self, name: str = "store", bucket: SimBucket | None = None) -> SimObjectStore:
        """Create a store, on its own bucket unless `bucket` is given."""
        return SimObjectStore(self.loop, f"{self.seed} {name}", self.trace, bucket)

    def run(self, scenario: Coroutine[Any, Any, _T]) -> _T:
        """Run a scenario to its end and close the world.

        Raises:
            SimulationFailedError: the scenario raised, or a task failed and no code awaited it.
        """
        collects = gc.isenabled()
        # A garbage collection runs finalizers, and its time depends on earlier work of this interpreter. Runs
        # with the same seed would therefore differ.
        gc.disable()
        try:
            result = self.loop.run_until_complete(scenario)
        except Exception as raised:
            if self._errors:  # the first cause; the error of the scenario may be its consequence
                message, error = self._errors[0]
                raise SimulationFailedError(self._story(f"{message}: {error!r}")) from error or raised
            raise SimulationFailedError(self._story(f"{type(raised).__name__}: {raised}")) from raised
        finally:
            self._take_down()
            if collects:
                gc.enable()
        if self._errors:
            message, error = self._errors[0]
            raise SimulationFailedError(self._story(f"{message}: {error!r}")) from error
        return result

    def _take_down(self) -> None:
        self._is_over = True
        for process in self.processes.values():
            if process.running:
                process.crash()
        left = [task for task in asyncio.all_tasks(self.loop) if not task.done()]
        self.loop.close()
        self.trace.end()
        _close_crashed([*left, *self.loop.crashed_tasks])

    def _loop_error(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        # Errors that abandoned coroutines raise while they are closed are not failures.
        if not self._is_over and not isinstance(error, ProcessGoneError):
            self._errors.append((str(context.get("message")), error))

    def _story(self, what: str) -> str:
        lines = "\n".join(f"  {line}" for line in self.trace.tail()[-40:])
        return f"seed {self.seed}: {what}\nthe last events of {self.trace.events}:\n{lines}"


def _close_crashed(tasks: list[asyncio.Task[Any]]) -> None:
    """Close coroutines that never ended. Their `finally` blocks run now, on a closed loop, without effect."""
    for task in tasks:
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001 - the loop is closed
        coroutine = task.get_coro()
        for _ in range(FINALLY_BLOCKS_MAX):
            try:
                assert coroutine is not None
                coroutine.close()
            except BaseException:  # noqa: BLE001, S112 - an ended program may raise anything
                continue
            break
