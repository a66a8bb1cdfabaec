"""Adaptive rate limit of deletions: rises by a step with every successful call, halves when the store asks to
slow down.

The rate counts keys per second, because stores count the keys of a bulk deletion and not the calls.
`s3stream.stores.congestion` limits the calls in flight, which is not enough here: a single call in flight can
still delete thousands of keys per second.
"""

from __future__ import annotations

from typing import Final, TypeVar

from ponor_runtime.clock import Clock
from ponor_runtime.object_store import ObjectStoreSlowDownError
from ponor_runtime.rate_limit import NS, RateLimit
from ponor_runtime.telemetry import Telemetry
from s3stream.stores.policy import Attempt, Operation, StorePolicy

from ponor_gc.settings import GcSettings

_T = TypeVar("_T")
KEYS_PER_S_FIRST: Final = 500
KEYS_PER_S_STEP: Final = 50
"""Increase of the rate after a successful call."""
DELETIONS: Final = frozenset({"delete", "multipart_abort"})


class DeletionPace(StorePolicy):
    """Delays deletions to the current rate; other calls pass."""

    def __init__(self, clock: Clock, settings: GcSettings, telemetry: Telemetry) -> None:
        self._clock = clock
        self._max: Final = float(settings.delete_keys_per_s_max)
        self._min: Final = min(float(settings.delete_keys_per_s_min), self._max)
        self._limit: Final = RateLimit(self._max)
        self._keys_per_s = max(self._min, min(float(KEYS_PER_S_FIRST), self._max))
        self._calls = 0
        self._slowed_at = 0
        """Number of the last call before the last halving. Calls in flight get the same error, so calls up to
        this one do not halve the rate again.
        """
        telemetry.gauge("ponor_gc_delete_keys_per_second", lambda: self.keys_per_s)

    @property
    def keys_per_s(self) -> float:
        """Return the current rate."""
        return self._keys_per_s

    async def call(self, operation: Operation, attempt: Attempt[_T]) -> _T:
        if operation.name not in DELETIONS:
            return await attempt()
        now_ns = self._clock.monotonic_ns()
        wait_ns = self._limit.wait_ns(now_ns)
        self._limit.charge(operation.keys, now_ns, self._keys_per_s / self._max)
        if wait_ns:
            await self._clock.sleep(wait_ns / NS)
        self._calls += 1
        number = self._calls
        try:
            result = await attempt()
        except ObjectStoreSlowDownError:
            if number > self._slowed_at:
                self._keys_per_s = max(self._keys_per_s / 2, self._min)
                self._slowed_at = self._calls
            raise
        self._keys_per_s = min(self._keys_per_s + KEYS_PER_S_STEP, self._max)
        return result
