"""How long to wait before the next try of a connection: doubled each time, with full jitter, so that many nodes do not come back at once."""

from __future__ import annotations

from ponor_runtime.randomness import Randomness


class ReconnectBackoff:
    """Delays drawn from [min/2, bound), the bound doubling from `ms_min` to `ms_max` until `reset`."""

    def __init__(self, randomness: Randomness, *, ms_min: int, ms_max: int) -> None:
        assert 0 < ms_min <= ms_max
        self._randomness = randomness
        self._ms_min = ms_min
        self._ms_max = ms_max
        self._bound_ms = ms_min

    def next_seconds(self) -> float:
        """The next delay."""
        delay_ms = self._randomness.uniform(self._ms_min / 2, self._bound_ms)
        self._bound_ms = min(2 * self._bound_ms, self._ms_max)
        return delay_ms / 1000

    def reset(self) -> None:
        """The last try succeeded."""
        self._bound_ms = self._ms_min
