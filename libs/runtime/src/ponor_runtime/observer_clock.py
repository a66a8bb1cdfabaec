"""A clock that counts only the time in which the process ran: silence of others is measured with it.

A process that did not run (SIGSTOP, a frozen virtual machine, a step that held the event loop) heard nobody in that time, although everybody may have spoken. Time that passes between two
ticks of the observer beyond `absence_s` is therefore left out. Frames that arrived meanwhile are read before the observed time goes on.

Use it where the silence of somebody else has a consequence for them: session timeouts, suspicion, leases, deadlines of moves. Do not use it for rights of the process itself: a broker that
did not run must assume that it was replaced, and counts all time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Final

from ponor_runtime.clock import Clock

ABSENCE_S: Final = 1.0
"""A gap between two ticks counts up to this. Longer than delays of a loaded machine, shorter than a third of every session timeout."""
TICKS_PER_ABSENCE: Final = 4
RECHECK_S_MIN: Final = 0.001


class ObserverClock:
    """Fulfils `ponor_runtime.clock.Clock`. Its owner runs `run()` as a task for as long as the clock is used, or has one task that waits with `sleep_towards`.

    `wall_ms` and `sleep` are those of the clock underneath: whoever sleeps until an observed time reads the clock again afterwards.
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
        """Call back with the length of each absence in nanoseconds, as soon as it is noticed."""
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
        """Sleep for a part of `left_s`, at most for all of it; to be repeated by the one task that waits for a time.

        It is one sleep until shortly before that time, and ticks from then on. An absence that ends before the ticks counts: what arrived in it is read in time.
        """
        absence_s = self._absence_ns / 1e9
        step_s = left_s - absence_s if left_s > 2 * absence_s else min(left_s, self._tick_s)
        self._gap_ns_max = int((step_s + self._tick_s) * 1e9)
        await self._clock.sleep(step_s)

    def timeout(self, seconds: float) -> ObservedTimeout:
        """An `asyncio.timeout` of observed time: `async with clock.timeout(9.0): ...` raises TimeoutError."""
        return ObservedTimeout(self, seconds)


class ObservedTimeout:
    """See `ObserverClock.timeout`."""

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
