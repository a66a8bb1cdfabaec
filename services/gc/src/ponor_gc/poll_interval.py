"""Pause between two sweeps: short while sweeps find garbage, doubling while they find none."""

from __future__ import annotations

from ponor_gc.settings import GcSettings


class PollInterval:
    """Computes the next pause in ms."""

    def __init__(self, settings: GcSettings) -> None:
        self._min_ms = settings.poll_interval_ms_min
        self._max_ms = max(settings.poll_interval_ms_max, settings.poll_interval_ms_min)
        self._next_ms = self._min_ms

    def after_full(self) -> int:
        """Return the pause after a sweep that reached its limit: more garbage is likely."""
        self._next_ms = self._min_ms
        return 0

    def after_some(self) -> int:
        """Return the pause after a sweep that deleted fewer objects than its limit."""
        self._next_ms = self._min_ms
        return self._min_ms

    def after_nothing(self) -> int:
        """Return the pause after a sweep that got no objects or failed to delete them."""
        pause_ms = self._next_ms
        self._next_ms = min(self._next_ms * 2, self._max_ms)
        return pause_ms
