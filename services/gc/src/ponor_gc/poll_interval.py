"""How long to pause between two sweeps: short while there is garbage, longer and longer while there is none."""

from __future__ import annotations

from ponor_gc.settings import GcSettings


class PollInterval:
    """The next pause, in ms."""

    def __init__(self, settings: GcSettings) -> None:
        self._min_ms = settings.poll_interval_ms_min
        self._max_ms = max(settings.poll_interval_ms_max, settings.poll_interval_ms_min)
        self._next_ms = self._min_ms

    def after_full(self) -> int:
        """A sweep got all it could take: there is more."""
        self._next_ms = self._min_ms
        return 0

    def after_some(self) -> int:
        """A sweep got something."""
        self._next_ms = self._min_ms
        return self._min_ms

    def after_nothing(self) -> int:
        """A sweep got nothing, or could not delete what it got."""
        pause_ms = self._next_ms
        self._next_ms = min(self._next_ms * 2, self._max_ms)
        return pause_ms
