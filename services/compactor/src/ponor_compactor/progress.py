"""How far the present task is and how long the rest will take: two gauges, and a line in the log from time to time."""

from __future__ import annotations

import logging
from typing import Final

from ponor_runtime.clock import Clock
from ponor_runtime.telemetry import Telemetry

logger = logging.getLogger("ponor.compactor")
LINE_INTERVAL_NS: Final = 10_000_000_000


class Progress:
    """Of one task at a time; between two tasks both gauges show 0."""

    def __init__(self, clock: Clock, telemetry: Telemetry) -> None:
        self._clock = clock
        self._title = ""
        self._begun_ns = 0
        self._line_ns = 0
        self._ratio = 0.0
        self._eta_s = 0.0
        telemetry.gauge("ponor_compactor_progress_ratio", lambda: self._ratio)
        telemetry.gauge("ponor_compactor_eta_seconds", lambda: self._eta_s)

    @property
    def ratio(self) -> float:
        """Share of the bytes that were moved."""
        return self._ratio

    @property
    def eta_s(self) -> float:
        """Seconds that are left, if it goes on as it went so far."""
        return self._eta_s

    def begin(self, title: str) -> None:
        """A task begins."""
        self._title = title
        self._begun_ns = self._line_ns = self._clock.monotonic_ns()
        self._ratio = self._eta_s = 0.0

    def moved(self, bytes_done: int, bytes_total: int) -> None:
        """Bytes of blocks that were moved since the task began, and how many there are."""
        now_ns = self._clock.monotonic_ns()
        self._ratio = bytes_done / bytes_total if bytes_total else 1.0
        elapsed_s = (now_ns - self._begun_ns) / 1e9
        self._eta_s = elapsed_s * (1 - self._ratio) / self._ratio if self._ratio else 0.0
        if now_ns - self._line_ns >= LINE_INTERVAL_NS:
            self._line_ns = now_ns
            logger.info(
                "%s: %d of %d bytes (%.0f%%), about %.0f s left",
                self._title,
                bytes_done,
                bytes_total,
                100 * self._ratio,
                self._eta_s,
            )

    def end(self) -> float:
        """The task is over; returns the seconds that it took."""
        self._ratio = self._eta_s = 0.0
        return (self._clock.monotonic_ns() - self._begun_ns) / 1e9
