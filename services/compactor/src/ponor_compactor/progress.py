"""Progress of the current task: two gauges, and a log line every ten seconds."""

from __future__ import annotations

import logging
from typing import Final

from ponor_runtime.clock import Clock
from ponor_runtime.telemetry import Telemetry

logger = logging.getLogger("ponor.compactor")
LINE_INTERVAL_NS: Final = 10_000_000_000


class Progress:
    """Progress of one task at a time; between tasks both gauges show 0."""

    def __init__(self, clock: Clock, telemetry: Telemetry) -> None:
        self._clock = clock
        self._title = ""
        self._begun_ns = 0
        self._line_ns = 0
        self._ratio = 0.0
        self._eta_s = 0.0
        telemetry.gauge("ponor_compactor_progress_ratio", lambda: self._ratio)
        telemetry.gauge("ponor_compactor_eta_seconds", lambda: self.eta_s)

    @property
    def ratio(self) -> float:
        """Return the share of the bytes that were copied."""
        return self._ratio

    @property
    def eta_s(self) -> float:
        """Return the remaining seconds at the average rate so far."""
        return self._eta_s

    def begin(self, title: str) -> None:
        """Start a task."""
        self._title = title
        self._begun_ns = self._line_ns = self._clock.monotonic_ns()
        self._ratio = self._eta_s = 0.0

    def moved(self, bytes_done: int, bytes_total: int) -> None:
        """Record the bytes of blocks copied since the start of the task, and the total."""
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
        """End the task and return its duration in seconds."""
        self._ratio = self._eta_s = 0.0
        return (self._clock.monotonic_ns() - self._begun_ns) / 1e9
