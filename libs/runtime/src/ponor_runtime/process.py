"""The process port: CPU usage and shutdown deadline of the service's own process."""

from __future__ import annotations

from typing import Protocol

from ponor_runtime.thread_times import ThreadTimes


class Process(Protocol):
    """The process in which the service runs."""

    def cpu_ns(self) -> int:
        """CPU time of all threads of the process so far."""
        ...

    def loop_times(self) -> ThreadTimes | None:
        """Times of the event loop's thread; call on that thread. None if not measured."""
        ...

    @property
    def is_forced(self) -> bool:
        """Whether the process exits within a second because its parent exited.

        If so, the service leaves unfinished work to the recovery at the next start.
        """
        ...

    def postpone_end(self, seconds: float) -> None:
        """Extend the shutdown deadline to `seconds` from now.

        A process exits some seconds after a stop request, even if the service is still closing. A service
        that needs longer calls this first, as often as needed. It has no effect before a stop request, or if
        `is_forced`.
        """
        ...


class UnwatchedProcess:
    """A process without shutdown deadline and without measurements, for the simulator and tools."""

    __slots__ = ()

    @property
    def is_forced(self) -> bool:
        return False

    def cpu_ns(self) -> int:
        return 0

    def loop_times(self) -> ThreadTimes | None:
        return None

    def postpone_end(self, seconds: float) -> None:  # noqa: ARG002 - there is no deadline
        return None
