"""Pace of the cleaner: short slices of the event loop, a share of the processor, and a byte rate.

Clients' requests share the event loop with the cleaner, so it pauses after a few milliseconds, in
proportion to its work.
"""

from __future__ import annotations

import math
from typing import Final

from ponor_runtime.clock import Clock
from ponor_runtime.rate_limit import NS, RateLimit

SLICE_NS: Final = 2_000_000
CHECKS_PER_CLOCK_READ: Final = 64
"""Steps between two clock calls; a step takes a few microseconds."""
STEPS_PER_SLICE_MAX: Final = 8_192
"""Upper bound of a slice. Without it, a slice would never end if the clock stands still while code runs, as
in the simulator."""


class Pace:
    """Shared by all passes of one cleaner. A `busy_percent_max` of 100 and a `bytes_per_s_max` of 0 mean no
    bound.
    """

    def __init__(self, clock: Clock, *, bytes_per_s_max: int, busy_percent_max: int) -> None:
        self._clock = clock
        self._bytes = RateLimit(bytes_per_s_max or math.inf)
        self._rest_percent = (100 - busy_percent_max) * 100 // busy_percent_max
        self._began_ns = clock.monotonic_ns()
        self._steps = 0

    def moved(self, size_bytes: int) -> None:
        """Count bytes that were read or written."""
        self._bytes.charge(size_bytes, self._clock.monotonic_ns())

    def step(self) -> bool:
        """Count a step; return whether the slice is over and `rest` is due."""
        self._steps += 1
        if self._steps % CHECKS_PER_CLOCK_READ:
            return False
        if self._steps >= STEPS_PER_SLICE_MAX:
            return True
        return self._clock.monotonic_ns() - self._began_ns >= SLICE_NS

    async def rest(self) -> None:
        """Sleep for as long as the bounds require, and start the next slice."""
        now_ns = self._clock.monotonic_ns()
        busy_ns = now_ns - self._began_ns
        pause_ns = max(self._bytes.wait_ns(now_ns), busy_ns * self._rest_percent // 100)
        await self._clock.sleep(pause_ns / NS)
        self.begin()

    def begin(self) -> None:
        """Start a slice after a wait other than `rest`."""
        self._began_ns = self._clock.monotonic_ns()
        self._steps = 0
