"""The process port: what a service knows of the process that it is, and asks of whoever ends it."""

from __future__ import annotations

from typing import Protocol

from ponor_runtime.thread_times import ThreadTimes


class Process(Protocol):
    """The process around the service."""

    def cpu_ns(self) -> int:
        """Processor time that the process used so far, over all of its threads."""
        ...

    def loop_times(self) -> ThreadTimes | None:
        """Times of the thread that the event loop runs on, asked on it; None where nothing is measured."""
        ...

    @property
    def is_hurried(self) -> bool:
        """Whether it ends in a moment, whatever is asked: whoever started it is gone. What is not closed by then, the next start recovers."""
        ...

    def postpone_end(self, seconds: float) -> None:
        """Let the process live this much longer from now on.

        A process that was told to stop is ended some seconds later, finished or not; a stop that takes longer says so before, and as often as it likes.
        Without effect on a process that was not told to stop, and on one that is hurried.
        """
        ...


class UnwatchedProcess:
    """A process that nobody ends and whose work is not measured: in the simulator, and inside of a tool."""

    __slots__ = ()

    @property
    def is_hurried(self) -> bool:
        return False

    def cpu_ns(self) -> int:
        return 0

    def loop_times(self) -> ThreadTimes | None:
        return None

    def postpone_end(self, seconds: float) -> None:  # noqa: ARG002 - nobody ends it
        return None
