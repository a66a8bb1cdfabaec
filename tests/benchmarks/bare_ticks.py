"""Tick delays of a process that only waits, as a baseline for tick delays of controllers on the same machine.

Run as a program, it ticks until its stdin ends and then prints the counts, one `CAUSE BOUND COUNT`
per line (us). If the host takes a CPU away for a second, the ticks of all processes on it are late.
"""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from ponor_runtime.late_ticks import LateTicks
from ponor_runtime.process import UnwatchedProcess
from ponor_runtime.system import SystemClock
from ponor_runtime.telemetry import Histogram, Telemetry
from ponor_runtime.thread_times import OwnThreadTimes, ThreadTimes

TICK_SECONDS: Final = 0.05
LATE_METRIC: Final = "ponor_controller_tick_late_seconds"
CAUSE_METRIC: Final = "ponor_controller_tick_late_cause_seconds"


class BareTicks:
    """The running program."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", __name__]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def end(self) -> dict[str, dict[int, int]]:
        """By cause: number of ticks that it delayed by more than each bound."""
        printed, _ = self._process.communicate(timeout=30)
        found: defaultdict[str, dict[int, int]] = defaultdict(dict)
        for cause, bound, count in (line.split() for line in printed.splitlines()):
            found[cause][int(bound)] = int(count)
        return dict(found)


class _MeasuredProcess(UnwatchedProcess):
    """Run the program in this process."""

    __slots__ = ("_thread",)

    def __init__(self) -> None:
        self._thread = OwnThreadTimes()

    def loop_times(self) -> ThreadTimes:
        return self._thread.read()


async def _tick(telemetry: Telemetry, ended: threading.Event) -> None:
    clock = SystemClock()
    ticks = LateTicks(clock, _MeasuredProcess(), telemetry, late_us=LATE_METRIC, cause_us=CAUSE_METRIC)
    while not ended.is_set():
        ticks.due_in(TICK_SECONDS)
        await clock.sleep(TICK_SECONDS)
        ticks.came()


def _above(histogram: Histogram) -> Iterator[tuple[int, int]]:
    """Each bound, and the number of values above it."""
    left = sum(histogram.counts)
    for bound, count in zip(histogram.bounds, histogram.counts, strict=False):
        left -= count
        yield bound, left


def main() -> None:
    """Tick and print the counts."""
    ended = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    logging.basicConfig(format="a process that only ticks: %(message)s")
    telemetry = Telemetry()
    asyncio.run(_tick(telemetry, ended))
    for (cause,), histogram in telemetry.histograms(CAUSE_METRIC):
        for bound, count in _above(histogram):
            print(cause, bound, count)


if __name__ == "__main__":
    main()
