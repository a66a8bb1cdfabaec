"""Rate limits of a compactor's store access: a `s3stream.compaction.movement.Throttle` that is also the
policy of the stores, so that it lowers the limits when a store returns a "slow down" error.

Limits apply to bytes read, bytes written and requests per second. Compaction can wait, while uploads and
reads cannot. A "slow down" error therefore halves the share, which is the part of each limit that the
compactor may use. Without further errors the share recovers within a minute. `s3stream.stores.congestion`
limits the calls in flight.

A store that never returns "slow down" errors may share a disk with the write-ahead log. Bytes therefore also
pass through one token bucket for reads and writes together, at the rate that `rate_ramp` sets: a compactor
alternates reads and writes, and the device sees the sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from ponor_runtime.clock import Clock
from ponor_runtime.object_store import ObjectStoreSlowDownError
from ponor_runtime.rate_limit import NS, RateLimit
from ponor_runtime.telemetry import Telemetry
from s3stream.stores.policy import Attempt, Operation, StorePolicy

from ponor_compactor.rate_ramp import RateRamp
from ponor_compactor.settings import CompactorSettings

_T = TypeVar("_T")
SHARE_MIN: Final = 1 / 64
RECOVERY_NS: Final = 60 * NS
"""Time in which the share recovers from 0 to 1."""
UNRESPONSIVE_NS: Final = NS
"""Time after a halving in which further "slow down" errors, usually of calls in flight, are ignored."""
BURST_S: Final = 1.0
EVEN_BURST_S: Final = 0.125
"""Burst of the token bucket. A small task fits into it and runs without a pause; each part of a large task
waits for the time that its bytes take at the rate."""


class Pace(StorePolicy):
    """Delays store calls to the current rates. The caller reports the start and end of each task with
    `working`.
    """

    def __init__(self, clock: Clock, settings: CompactorSettings, telemetry: Telemetry) -> None:
        self._clock = clock
        self._read = RateLimit(settings.compactor_read_bytes_per_s_max, burst_s=BURST_S)
        self._written = RateLimit(settings.compactor_write_bytes_per_s_max, burst_s=BURST_S)
        self._requests = RateLimit(settings.compactor_requests_per_s_max, burst_s=BURST_S)
        self._even_per_s = settings.compactor_read_bytes_per_s_max + settings.compactor_write_bytes_per_s_max
        self._even = RateLimit(self._even_per_s, burst_s=EVEN_BURST_S)
        self._share = 1.0
        self._share_at_ns = clock.monotonic_ns()
        self._ramp = RateRamp(
            min(1.0, settings.compactor_bytes_per_s_min / self._even_per_s), self._share_at_ns
        )
        self._slowed_at_ns: int | None = None
        self._read_bytes = telemetry.counter("ponor_compactor_read_bytes_total")
        self._written_bytes = telemetry.counter("ponor_compactor_written_bytes_total")
        self._waited_ms = telemetry.counter("ponor_compactor_throttled_seconds_total")
        telemetry.gauge("ponor_compactor_pace_ratio", lambda: self._share)
        telemetry.gauge("ponor_compactor_pace_bytes_per_second", lambda: self.bytes_per_s)

    @property
    def share(self) -> float:
        """Return the part of each limit that the compactor may use, as of the last call."""
        return self._share

    @property
    def bytes_per_s(self) -> float:
        """Return the current rate of reads and writes together."""
        return self._even_per_s * self._share * self._ramp.share(self._clock.monotonic_ns())

    @contextmanager
    def working(self) -> Iterator[None]:
        """Mark a task in progress; uninterrupted work raises the rate."""
        self._ramp.turn(self._clock.monotonic_ns(), is_working=True)
        try:
            yield
        finally:
            self._ramp.turn(self._clock.monotonic_ns(), is_working=False)

    async def before_read(self, size_bytes: int) -> None:
        await self._pass(self._read, size_bytes)
        self._read_bytes.add(size_bytes)

    async def before_write(self, size_bytes: int) -> None:
        await self._pass(self._written, size_bytes)
        self._written_bytes.add(size_bytes)

    async def call(self, operation: Operation, attempt: Attempt[_T]) -> _T:
        del operation
        try:
            return await attempt()
        except ObjectStoreSlowDownError:
            self.slowed()
            raise

    def slowed(self) -> None:
        """Record a "slow down" error of the store."""
        now_ns = self._clock.monotonic_ns()
        if self._slowed_at_ns is None or now_ns - self._slowed_at_ns >= UNRESPONSIVE_NS:
            self._recover(now_ns)
            self._share = max(self._share / 2, SHARE_MIN)
            self._slowed_at_ns = now_ns

    async def _pass(self, limit: RateLimit, size_bytes: int) -> None:
        now_ns = self._clock.monotonic_ns()
        self._recover(now_ns)
        limit.charge(size_bytes, now_ns, self._share)
        self._even.charge(size_bytes, now_ns, self._share * self._ramp.share(now_ns))
        self._requests.charge(1, now_ns, self._share)
        wait_ns = max(each.wait_ns(now_ns) for each in (limit, self._even, self._requests))
        if wait_ns:
            self._waited_ms.add(wait_ns // 1_000_000)
            await self._clock.sleep(wait_ns / NS)

    def _recover(self, now_ns: int) -> None:
        self._share = min(1.0, self._share + (now_ns - self._share_at_ns) / RECOVERY_NS)
        self._share_at_ns = now_ns
