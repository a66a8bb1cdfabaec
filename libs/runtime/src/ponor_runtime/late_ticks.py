"""Detection of late ticks and their cause: a long step of the loop, a lack of CPU, or a blocked thread.

`LateTicks` samples the thread's times when a wait begins and then whenever the loop runs, at most once per
`MARK_NS`. The result is approximate: when the tick is due, the last sample is up to `MARK_NS` old on a busy
loop, and up to the whole wait on an idle one. CPU time since that sample counts as lateness, so `ran` may be
too large.
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
"""Minimum interval between samples: a loop with a thousand iterations per second takes two hundred samples.
"""
LATE_NS: Final = 12_800_000
"""The causes of a smaller lateness are not determined."""
STALL_NS: Final = 50_000_000
"""No step of a service may block its loop for longer; a later tick is logged."""
LINES_NS: Final = 5_000_000_000
"""Minimum interval between two log lines; the next line counts the stalls in between."""


class Shares(NamedTuple):
    """Parts of a tick's lateness in nanoseconds; they add up to the lateness."""

    ran_ns: int
    """The thread ran: a long step of the loop, or many short ones."""
    waited_ns: int
    """The thread was runnable, but other threads had the CPUs."""
    blocked_ns: int
    """Neither: a blocking system call, another thread holding the GIL, a page fault, or a host that took the
    CPU away."""


def shares(late_ns: int, before: ThreadTimes, after: ThreadTimes) -> Shares:
    """Divide a lateness into its causes, using the thread times sampled at or before the due time (`before`)
    and at the tick (`after`).
    """
    ran_ns = min(max(after.ran_ns - before.ran_ns, 0), late_ns)
    waited_ns = min(max(after.waited_ns - before.waited_ns, 0), late_ns - ran_ns)
    return Shares(ran_ns, waited_ns, late_ns - ran_ns - waited_ns)


class LateTicks:
    """Watch the ticks of one loop: call `due_in` before the wait, `came` after it, and `mark` on every loop
    iteration.

    Args:
        late_us: histogram of every tick's lateness.
        cause_us: histogram of the shares of ticks later than `LATE_NS`, with label `cause`. Empty if the
            process does not provide thread times.
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
        self._unreported_count = 0

    def due_in(self, seconds: float) -> None:
        """Start a wait: the next tick is due in `seconds`."""
        # Read the thread times before the clock, so that the time between the two reads is part of both. In
        # the other order a preemption between the reads would look like a blocked thread.
        if self._causes:
            self._before = self._times()
        now_ns = self._clock.monotonic_ns()
        self._due_ns, self._mark_again_ns = now_ns + int(seconds * 1e9), now_ns + MARK_NS

    def mark(self) -> None:
        """Take a new sample, unless the tick is already due: a sample after the due time would hide the
        lateness.
        """
        if not self._causes or not self._mark_again_ns <= self._clock.monotonic_ns() < self._due_ns:
            return
        times = self._times()
        # The thread may have been preempted since the check above.
        if (now_ns := self._clock.monotonic_ns()) < self._due_ns:
            self._before, self._mark_again_ns = times, now_ns + MARK_NS

    def came(self) -> None:
        """Record the lateness of a tick."""
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
            self._unreported_count += 1
            return
        LOG.warning(
            "event loop stalled: tick %.1f ms late: ran %.1f ms, waited %.1f ms for a CPU, blocked %.1f ms%s",
            late_ns / 1e6,
            *(share_ns / 1e6 for share_ns in found),
            f"; {self._unreported_count} more stalls since the last line" if self._unreported_count else "",
        )
        self._line_again_ns = now_ns + LINES_NS
        self._unreported_count = 0
