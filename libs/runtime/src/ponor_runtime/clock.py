"""The clock port: the only source of time for service logic."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Time as seen by one process.

    In the simulator every process has its own clock, with drift and pauses.
    """

    def monotonic_ns(self) -> int:
        """Nanoseconds since an arbitrary start; never goes backwards."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since 1970; may jump. Only for displays and Kafka records, never for leases."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait; cancellable."""
        ...
