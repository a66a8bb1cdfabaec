"""How fast to delete: faster by a little with every call that the store takes, half as fast when it asks to slow down.

What lives here: the rate, in keys a second, because a store counts the keys of a bulk deletion and not the call. How many calls are in flight is
`s3stream.stores.congestion`'s business; that window alone cannot hold deletes back, since one call at a time still carries thousands of keys a second.
"""

from __future__ import annotations

from typing import Final

from ponor_runtime.clock import Clock

from ponor_gc.settings import GcSettings

KEYS_PER_S_FIRST: Final = 500
KEYS_PER_S_STEP: Final = 50
"""What one call that was taken adds."""


class DeletionPace:
    """Gives turns to delete, one after the other."""

    def __init__(self, clock: Clock, settings: GcSettings) -> None:
        self._clock = clock
        self._max: Final = float(settings.delete_keys_per_s_max)
        self._min: Final = min(float(settings.delete_keys_per_s_min), self._max)
        self._keys_per_s = max(self._min, min(float(KEYS_PER_S_FIRST), self._max))
        self._free_at_ns = clock.monotonic_ns()
        self._turns = 0
        self._slowed_at = 0
        """Turns up to this one were given when the pace was halved last: the calls in flight are told the same, once is enough."""

    @property
    def keys_per_s(self) -> float:
        """The rate now."""
        return self._keys_per_s

    async def turn(self, keys: int) -> int:
        """Wait until this many keys may go; returns the number of the turn."""
        assert keys > 0
        now_ns = self._clock.monotonic_ns()
        begin_ns = max(now_ns, self._free_at_ns)
        self._free_at_ns = begin_ns + int(keys / self._keys_per_s * 1e9)
        if begin_ns > now_ns:
            await self._clock.sleep((begin_ns - now_ns) / 1e9)
        self._turns += 1
        return self._turns

    def taken(self) -> None:
        """The store did it."""
        self._keys_per_s = min(self._keys_per_s + KEYS_PER_S_STEP, self._max)

    def slowed(self, turn: int) -> None:
        """The store asked for less."""
        if turn > self._slowed_at:
            self._keys_per_s = max(self._keys_per_s / 2, self._min)
            self._slowed_at = self._turns
