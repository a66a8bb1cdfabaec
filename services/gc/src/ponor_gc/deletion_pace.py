"""Adaptive rate limit of deletions: rises by a step with every successful call, halves when the store asks to slow down.

The rate counts keys per second, because stores count the keys of a bulk deletion and not the calls. `s3stream.stores.congestion`
limits the calls in flight, which is not enough here: a single call in flight can still delete thousands of keys per second.
"""

from __future__ import annotations

from typing import Final

from ponor_runtime.clock import Clock

from ponor_gc.settings import GcSettings

KEYS_PER_S_FIRST: Final = 500
KEYS_PER_S_STEP: Final = 50
"""Increase of the rate after a successful call."""


class DeletionPace:
    """Delays deletions to the current rate."""

    def __init__(self, clock: Clock, settings: GcSettings) -> None:
        self._clock = clock
        self._max: Final = float(settings.delete_keys_per_s_max)
        self._min: Final = min(float(settings.delete_keys_per_s_min), self._max)
        self._keys_per_s = max(self._min, min(float(KEYS_PER_S_FIRST), self._max))
        self._free_at_ns = clock.monotonic_ns()
        self._turns = 0
        self._slowed_at = 0
        """Last turn granted before the last halving. Calls in flight get the same error, so turns up to this one do not halve the rate again."""

    @property
    def keys_per_s(self) -> float:
        """Return the current rate."""
        return self._keys_per_s

    async def turn(self, keys: int) -> int:
        """Wait until this many keys may be deleted; return the number of the turn."""
        assert keys > 0
        now_ns = self._clock.monotonic_ns()
        begin_ns = max(now_ns, self._free_at_ns)
        self._free_at_ns = begin_ns + int(keys / self._keys_per_s * 1e9)
        if begin_ns > now_ns:
            await self._clock.sleep((begin_ns - now_ns) / 1e9)
        self._turns += 1
        return self._turns

    def taken(self) -> None:
        """Record a successful call."""
        self._keys_per_s = min(self._keys_per_s + KEYS_PER_S_STEP, self._max)

    def slowed(self, turn: int) -> None:
        """Record a "slow down" error of the call with this turn."""
        if turn > self._slowed_at:
            self._keys_per_s = max(self._keys_per_s / 2, self._min)
            self._slowed_at = self._turns
