"""Clock that stops while the process does not run; services measure the silence of peers with it.

A process that was suspended (SIGSTOP, a frozen virtual machine, a blocked event loop) received no messages,
although its peers may have sent some. The clock therefore counts at most `absence_s` between two ticks, so
that the process reads the frames that arrived in the meantime before timeouts expire.

Use it for timeouts of peers: session timeouts, suspicion, leases, deadlines of moves. Do not use it for the
process's own rights: a broker that was suspended must count all time and assume that it was replaced.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Final

from ponor_runtime.clock import Clock

ABSENCE_S: Final = 1.0
"""Maximum counted gap between two ticks. Longer than delays of a loaded machine, shorter than a third of
every session timeout."""
TICKS_PER_ABSENCE: Final = 4
RECHECK_S_MIN: Final = 0.001


class ObserverClock:
    """A `Clock` of observed time.

    While the clock is in use, run `run()` as a task, or let one task wait with `sleep_towards`.

    `wall_ms` and `sleep` use the underlying clock: after sleeping until an observed time, read the clock
    again.
    """

    def __init__(self, clock: Clock, absence_s: float = ABSENCE_S) -> None:
        assert absence_s > 0
        self._clock = clock
        self._absence_ns = int(absence_s * 1e9)
        self._tick_s = absence_s / TICKS_PER_ABSENCE
        self._gap_ns_max = self._absence_ns
        self._read_ns = clock.monotonic_ns()
        self._observed_ns = self._read_ns
        self._listeners: list[Callable[[int], None]] = []

    def on_return(self, listener: Callable[[int], None]) -> None:
        """Call `listener` with the length of each absence in nanoseconds when it is detected."""
        self._listeners.append(listener)

    def monotonic_ns(self) -> int:
        """Observed time; never goes backwards."""
        now_ns = self._clock.monotonic_ns()
        gap_ns = now_ns - self._read_ns
        assert gap_ns >= 0, "the monotonic clock went backwards"
        self._read_ns = now_ns
        if gap_ns <= self._gap_ns_max:
            self._observed_ns += gap_ns
            return self._observed_ns
        self._observed_ns += self._gap_ns_max
        for listener in self._listeners:
            listener(gap_ns)
        return self._observed_ns

    def wall_ms(self) -> int:
        return self._clock.wall_ms()

    async def sleep(self, seconds: float) -> None:
        await self._clock.sleep(seconds)

    async def run(self) -> None:
        """Tick until cancelled."""
        while True:
            self.monotonic_ns()
            await self._clock.sleep(self._tick_s)

    async def sleep_towards(self, left_s: float) -> None:
        """Sleep for at most `left_s`; call it in a loop from the one task that waits for a deadline.

        It sleeps once until `absence_s` before the deadline, and then in ticks. An absence during the first
        sleep counts as observed time up to the end of that sleep: enough time remains to read the frames that
        arrived.
        """
        absence_s = self._absence_ns / 1e9
        step_s = left_s - absence_s if left_s > 2 * absence_s else min(left_s, self._tick_s)
        self._gap_ns_max = int((step_s + self._tick_s) * 1e9)
        await self._clock.sleep(step_s)

    def timeout(self, seconds: float) -> ObservedTimeout:
        """Return an `asyncio.timeout` of observed time: `async with clock.timeout(9.0): ...` raises
        TimeoutError.
        """
        return ObservedTimeout(self, seconds)


class ObservedTimeout:
    """Async context manager that raises TimeoutError after some observed time."""

    def __init__(self, clock: ObserverClock, seconds: float) -> None:
        self._clock = clock
        self._limit_ns = int(seconds * 1e9)
        self._timeout = asyncio.timeout(None)
        self._loop = asyncio.get_running_loop()
        self._check: asyncio.TimerHandle | None = None
        self._began_ns = 0

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()
        self._began_ns = self._clock.monotonic_ns()
        self._check = self._loop.call_later(self._limit_ns / 1e9, self._look)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._check is not None:
            self._check.cancel()
        await self._timeout.__aexit__(kind, error, traceback)

    def _look(self) -> None:
        left_ns = self._began_ns + self._limit_ns - self._clock.monotonic_ns()
        if left_ns > 0:
            self._check = self._loop.call_later(max(left_ns / 1e9, RECHECK_S_MIN), self._look)
        else:
            self._check = None
            self._timeout.reschedule(self._loop.time())
