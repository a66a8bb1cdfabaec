"""What the operating system says about the time of one thread: how long it ran, and how long it waited for a processor.

What lives here: the two readings. A processor that a thread could not have is the machine's, one that it had is its own; who reads both before and after something took too long
knows whose fault it was (`late_ticks`).
"""

from __future__ import annotations

import os
import threading
import time
from typing import Final, NamedTuple

_STATISTICS_BYTES_MAX: Final = 128


class ThreadTimes(NamedTuple):
    """So far, in nanoseconds. In neither: what the thread waited for anything else, and what a host took away while it ran."""

    ran_ns: int
    waited_ns: int
    """Ready to run, while others had the processors; 0 where the kernel does not tell (only Linux does)."""


class OwnThreadTimes:
    """Reads the times of the thread that makes it, on that thread: a microsecond a reading."""

    __slots__ = ("_statistics",)

    def __init__(self) -> None:
        path = f"/proc/self/task/{threading.get_native_id()}/schedstat"
        try:
            # Open for as long as the process lives: opening costs more than reading, and there is one such thread.
            self._statistics: int | None = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._statistics = None

    def read(self) -> ThreadTimes:
        """Now."""
        return ThreadTimes(time.thread_time_ns(), self._waited_ns())

    def _waited_ns(self) -> int:
        """The second number of three (https://docs.kernel.org/scheduler/sched-stats.html)."""
        if self._statistics is None:
            return 0
        return int(os.pread(self._statistics, _STATISTICS_BYTES_MAX, 0).split()[1])
