"""A simulated process: a program on a machine with a disk, a clock and a network address.

A crash is a SIGKILL or a power loss: the program stops between two instructions, its connections break, and
the disk keeps the synced data. After a SIGKILL it also keeps the unsynced data.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NoReturn

from ponor_runtime.runtime import Runtime
from ponor_runtime.telemetry import Telemetry

from ponor_simulation.chance import SimClock, SimRandomness
from ponor_simulation.disk import SimDisk
from ponor_simulation.loop import INCARNATION, Incarnation, VirtualTimeLoop
from ponor_simulation.network import NetworkHub, SimNetwork
from ponor_simulation.trace import Trace


class ProcessGoneError(BaseException):
    """Raised in code that stopped its own process, to unwind the stack; no code catches it."""


class SimProcess:
    """One machine with one program.

    Attributes:
        failure: the exception or fail-stop that ended the program.
        finished: the program returned.
    """

    def __init__(
        self,
        loop: VirtualTimeLoop,
        hub: NetworkHub,
        trace: Trace,
        seed: str,
        name: str,
        main: Callable[[Runtime], Awaitable[None]],
    ) -> None:
        self._loop = loop
        self._hub = hub
        self._trace = trace
        self._seed = seed
        self._main = main
        self._starts = 0
        self._incarnation: Incarnation | None = None
        self.name = name
        self.disk = SimDisk(loop, f"{seed} {name}", trace, f"{name}.disk")
        self.clock = SimClock(loop)
        self.runtime: Runtime | None = None
        self.on_end: Callable[[Runtime], None] | None = None
        """Called when a life of the process has ended for any reason."""
        self.when_ended: Callable[[], None] | None = None
        """Called once, after the next end of the process, when no process uses the disk."""
        self.failure: BaseException | None = None
        self.finished = False
        self.changed_at_s = 0.0
        """The time of the last start, end, pause or resume."""
        self.started_at_s = 0.0
        """The time of the last start."""

    @property
    def running(self) -> bool:
        """Whether the program runs."""
        return self._incarnation is not None

    @property
    def paused(self) -> bool:
        """Whether the program is paused."""
        return self._incarnation is not None and self._incarnation.paused

    def pause(self) -> None:
        """Stop running the program, as SIGSTOP or a machine that is not scheduled does."""
        assert self._incarnation is not None, f"{self.name} is not running"
        self._record("pause")
        self._loop.pause(self._incarnation)

    def resume(self) -> None:
        """Continue the program. All events of the pause are pending at once."""
        assert self._incarnation is not None, f"{self.name} is not running"
        self._record("resume")
        self._loop.resume(self._incarnation)

    def start(self) -> None:
        """Start the program with the current contents of the disk."""
        assert self._incarnation is None, f"{self.name} is already running"
        self._starts += 1
        self.failure = None
        self.finished = False
        incarnation = self._incarnation = Incarnation(f"{self.name}#{self._starts}")
        network = SimNetwork(self._hub, incarnation)
        randomness = SimRandomness(f"{self._seed} {incarnation.name}")
        self.runtime = Runtime(self.clock, randomness, self.disk, network, Telemetry(), self._fail_stop)
        self._record("start", self._starts)
        self.started_at_s = self.changed_at_s
        context = self._loop.outside.copy()
        context.run(INCARNATION.set, incarnation)
        self._loop.create_task(
            self._live(self._main(self.runtime), incarnation), name=incarnation.name, context=context
        )

    def crash(self, *, power_loss: bool = False) -> None:
        """End the program at once. A power loss also drops a random part of the disk's unsynced data."""
        self._record("crash", str(power_loss))
        self._end(power_loss=power_loss)

    async def _live(self, program: Awaitable[None], incarnation: Incarnation) -> None:
        try:
            await program
        except Exception as error:  # noqa: BLE001 - the scenario checks `failure`
            self._record("failed", type(error).__name__, error)
            self.failure = error
        else:
            self._record("finished")
            self.finished = True
        if self._incarnation is incarnation:
            self._end(power_loss=False)

    def _fail_stop(self, what: str, error: BaseException) -> NoReturn:
        self._record("fail-stop", what, type(error).__name__, error)
        self.failure = error
        if self._incarnation is not None:
            self._end(power_loss=False)
        raise ProcessGoneError

    def _end(self, *, power_loss: bool) -> None:
        assert self._incarnation is not None, f"{self.name} is not running"
        incarnation, self._incarnation = self._incarnation, None
        if self.on_end is not None and self.runtime is not None:
            self.on_end(self.runtime)
        self._loop.kill(incarnation)
        self._hub.process_died(incarnation)
        self.disk.crash(power_loss=power_loss)
        if self.when_ended is not None:
            when_ended, self.when_ended = self.when_ended, None
            when_ended()

    def _record(self, what: str, *details: object) -> None:
        self.changed_at_s = self._loop.time()
        self._trace.record(self._loop.time(), self.name, what, *details)


async def wait_until(condition: Callable[[], bool], *, poll_s: float = 0.01, timeout_s: float = 60.0) -> None:
    """Let virtual time pass until a condition holds.

    Raises:
        TimeoutError: the condition did not hold within `timeout_s` of virtual time.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while not condition():
        if loop.time() > deadline:
            raise TimeoutError(f"the condition did not hold within {timeout_s} s")
        await asyncio.sleep(poll_s)
