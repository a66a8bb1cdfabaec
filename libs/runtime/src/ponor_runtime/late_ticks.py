"""Ticks that come too late, and why: the loop's own step, a processor that others had, or something that the loop's thread was blocked by.

What lives here: the watch over one periodic wait on an event loop. The thread's times are read when a wait begins and again while the loop goes round, every few milliseconds at most, so that what is
found at a late tick is about the time in which it was late. Exact it is not: the reading before lies up to `MARK_NS` before the tick was due on a busy loop, up to the whole wait on one at rest, and
what the thread ran in that time counts as its own. So `ran` says too much rather than too little.
"""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

from ponor_runtime.clock import Clock
from ponor_runtime.process import Process
from ponor_runtime.telemetry import Telemetry
from ponor_runtime.thread_times import ThreadTimes

LOG: Final = logging.getLogger("ponor.loop")
MARK_NS: Final = 5_000_000
"""A loop that goes round a thousand times a second reads its thread's times two hundred times."""
LATE_NS: Final = 12_800_000
"""What is less is nobody's concern, and costs nothing."""
STALL_NS: Final = 50_000_000
"""No step of a service is to hold its loop for longer; such a tick is told of in a line."""
LINES_NS: Final = 5_000_000_000
"""Between two lines; the next one says how many stalls it did not tell of."""


class Shares(NamedTuple):
    """Where the lateness of a tick went, in nanoseconds; together they are the lateness."""

    ran_ns: int
    """The thread had a processor: a long step of the loop, or many short ones."""
    waited_ns: int
    """It was ready, and others had the processors."""
    blocked_ns: int
    """Neither: a call into the kernel that waits, another thread that has the interpreter, a page to be read in, a host that took the processor away."""


def shares(late_ns: int, before: ThreadTimes, after: ThreadTimes) -> Shares:
    """Divide a lateness by the times of the loop's thread, read at or before the moment when the tick was due and when it came."""
    ran_ns = min(max(after.ran_ns - before.ran_ns, 0), late_ns)
    waited_ns = min(max(after.waited_ns - before.waited_ns, 0), late_ns - ran_ns)
    return Shares(ran_ns, waited_ns, late_ns - ran_ns - waited_ns)


class LateTicks:
    """Watches the ticks of one loop: `due_in` before the wait, `came` after it, `mark` whenever the loop goes round.

    Args:
        late_us: name of the histogram of all lateness.
        cause_us: name of the histogram of the shares of ticks later than `LATE_NS`; its label is `cause`. Nothing is recorded where the process does not tell its threads' times.
    """

    def __init__(
        self, clock: Clock, process: Process, telemetry: Telemetry, *, late_us: str, cause_us: str
    ) -> None:
        self._clock = clock
        self._times = process.loop_times
        self._late_us = telemetry.histogram(late_us)
        self._before = self._times()
        self._causes = (
            [telemetry.histogram(cause_us, cause=cause) for cause in ("ran", "waited", "blocked")]
            if self._before is not None
            else []
        )
        self._due_ns = self._mark_again_ns = 0
        self._line_again_ns = 0
        self._untold_count = 0

    def due_in(self, seconds: float) -> None:
        """The next tick is due then."""
        # The times first, the clock behind them: what passes between the two is in both. The other way round a processor lost just here would look as if something had blocked the thread.
        if self._causes:
            self._before = self._times()
        now_ns = self._clock.monotonic_ns()
        self._due_ns, self._mark_again_ns = now_ns + int(seconds * 1e9), now_ns + MARK_NS

    def mark(self) -> None:
        """The loop goes round: what was before is no part of a lateness to come. Behind the moment when the tick was due it may be, so nothing is read then."""
        if not self._causes or not self._mark_again_ns <= self._clock.monotonic_ns() < self._due_ns:
            return
        times = self._times()
        # Whoever loses the processor here comes back when the tick was due long ago.
        if (now_ns := self._clock.monotonic_ns()) < self._due_ns:
            self._before, self._mark_again_ns = times, now_ns + MARK_NS

    def came(self) -> None:
        """The tick came."""
        now_ns = self._clock.monotonic_ns()
        late_ns = max(now_ns - self._due_ns, 0)
        self._late_us.record(late_ns // 1000)
        if late_ns > LATE_NS:
            self._explain(now_ns, late_ns)

    def _explain(self, now_ns: int, late_ns: int) -> None:
        before, after = self._before, self._times()
        if before is None or after is None:
            return
        found = shares(late_ns, before, after)
        for histogram, share_ns in zip(self._causes, found, strict=True):
            histogram.record(share_ns // 1000)
        if late_ns > STALL_NS:
            self._tell(now_ns, late_ns, found)

    def _tell(self, now_ns: int, late_ns: int, found: Shares) -> None:
        if now_ns < self._line_again_ns:
            self._untold_count += 1
            return
        LOG.warning(
            "the event loop stood still: a tick was %.1f ms late, of which its thread ran %.1f ms, waited %.1f ms for a processor and was blocked %.1f ms%s",
            late_ns / 1e6,
            *(share_ns / 1e6 for share_ns in found),
            f"; {self._untold_count} more since the last such line" if self._untold_count else "",
        )
        self._line_again_ns = now_ns + LINES_NS
        self._untold_count = 0
