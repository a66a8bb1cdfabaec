"""How fast the cleaner goes: short slices of the event loop, a share of the processor, and so many bytes a second.

What lives here: the counting and the rests. Clients' requests share the loop with the cleaner, so it stops after a few milliseconds, and rests in proportion.
"""

from __future__ import annotations

import math
from typing import Final

from ponor_runtime.clock import Clock
from ponor_runtime.rate_limit import NS, RateLimit

SLICE_NS: Final = 2_000_000
LOOKS_PER_CLOCK: Final = 64
"""The clock is asked after so many steps, each of which takes a few microseconds."""
STEPS_PER_SLICE_MAX: Final = 8_192
"""A slice ends then at the latest: under a clock that stands still while something runs, others would never come."""


class Pace:
    """Of all passes of one cleaner. `busy_percent_max` of 100 and `bytes_per_s_max` of 0 are no bounds."""

    def __init__(self, clock: Clock, *, bytes_per_s_max: int, busy_percent_max: int) -> None:
        self._clock = clock
        self._bytes = RateLimit(bytes_per_s_max or math.inf)
        self._rest_percent = (100 - busy_percent_max) * 100 // busy_percent_max
        self._began_ns = clock.monotonic_ns()
        self._steps = 0

    def moved(self, size_bytes: int) -> None:
        """So many bytes were read or written."""
        self._bytes.charge(size_bytes, self._clock.monotonic_ns())

    def step(self) -> bool:
        """A step of work was done; whether the slice is over, and `rest` is due."""
        self._steps += 1
        if self._steps % LOOKS_PER_CLOCK:
            return False
        if self._steps >= STEPS_PER_SLICE_MAX:
            return True
        return self._clock.monotonic_ns() - self._began_ns >= SLICE_NS

    async def rest(self) -> None:
        """Let others have the loop, and wait as long as the bounds want."""
        now_ns = self._clock.monotonic_ns()
        busy_ns = now_ns - self._began_ns
        pause_ns = max(self._bytes.wait_ns(now_ns), busy_ns * self._rest_percent // 100)
        await self._clock.sleep(pause_ns / NS)
        self.begin()

    def begin(self) -> None:
        """A slice of work begins: after a wait of another kind."""
        self._began_ns = self._clock.monotonic_ns()
        self._steps = 0
