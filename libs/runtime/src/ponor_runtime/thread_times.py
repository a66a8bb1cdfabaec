"""CPU time and CPU wait time of one thread, from the operating system.

Two samples around a slow operation tell whether the thread itself or a lack of CPU was the cause
(`late_ticks`).
"""

from __future__ import annotations

import os
import threading
import time
from typing import Final, NamedTuple

_STATISTICS_BYTES_MAX: Final = 128


class ThreadTimes(NamedTuple):
    """Totals in nanoseconds. They exclude blocking waits and CPU time that the hypervisor took away."""

    ran_ns: int
    waited_ns: int
    """Runnable time while other threads had the CPUs; 0 if the kernel does not report it (only Linux does).
    """


class OwnThreadTimes:
    """Times of the thread that created this object. Call `read` on that thread; it takes a microsecond."""

    __slots__ = ("_statistics",)

    def __init__(self) -> None:
        path = f"/proc/self/task/{threading.get_native_id()}/schedstat"
        try:
            # Open until the process exits: opening costs more than reading, and a process has only one such
            # object.
            self._statistics: int | None = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._statistics = None

    def read(self) -> ThreadTimes:
        """Take a sample."""
        return ThreadTimes(time.thread_time_ns(), self._waited_ns())

    def _waited_ns(self) -> int:
        """Second of three numbers in schedstat (https://docs.kernel.org/scheduler/sched-stats.html)."""
        if self._statistics is None:
            return 0
        return int(os.pread(self._statistics, _STATISTICS_BYTES_MAX, 0).split()[1])
