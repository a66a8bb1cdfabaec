"""Decides when a late put of a log is repeated, and how often.

Slots are acknowledged in order, so one late put delays all later ones. A second request is sent at one of two
times. *Early*, at a little more than twice the median latency: this shortens the tail of the store's
latencies and uses the half of the request budget that pacing keeps free. *Late*, at four times the usual
latency and not before `late_ms`: the answer is then probably lost, and nothing else would end the wait. Early
and late copies have separate allowances, so that many early copies to a slow store cannot use up the
allowance of late ones.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from statistics import median
from typing import Final

from ponor_runtime.clock import Clock
from ponor_runtime.telemetry import Telemetry

from s3stream.object_wal.hedged_put import Hedge
from s3stream.object_wal.pacing import Pacing

EARLY_MEDIANS: Final = 2.25
"""Multiple of the median. With lognormal latencies and a p99 of four medians, one put in eleven takes longer
(docs/design/object-wal.md#hedged-puts)."""

EARLY_MS_MIN: Final = 40
"""A put is not hedged earlier than this: shorter delays come from a pause of this process or of the
server's disk, which would delay a second request too. Puts to stores that answer in a few milliseconds are
never hedged early."""

ANSWERS_KEPT: Final = 64
ANSWERS_MIN: Final = 16
"""Minimum number of answers before lateness is estimated."""

LATE_LATENCIES: Final = 4
LATE_SHARE: Final = 0.05
SAVED_MAX: Final = 4.0
"""Largest unused allowance, in copies."""


class Allowance:
    """Limits second copies to a share of all puts: each put adds the share, and each second copy takes 1."""

    def __init__(self, share: float) -> None:
        assert 0 <= share <= 1
        self._share: Final = share
        self._saved = SAVED_MAX if share else 0.0

    def began(self) -> None:
        """Add the share of one put."""
        self._saved = min(self._saved + self._share, SAVED_MAX)

    @property
    def is_available(self) -> bool:
        """Whether a copy is allowed."""
        return self._saved >= 1

    def take(self) -> None:
        """Take the cost of one copy."""
        assert self.is_available
        self._saved -= 1
        assert self._saved >= 0


class Hedging:
    """Hedging of one log.

    Args:
        pacing: keeps the request budget.
        clock: of this process.
        telemetry: receives the counts of second copies.
        early_share: share of puts that may be hedged early; 0: none.
        late_ms: minimum age of a put that is hedged late.
        early_bytes_max: larger slots are not hedged early, because their size explains the delay.
    """

    def __init__(
        self,
        pacing: Pacing,
        clock: Clock,
        telemetry: Telemetry,
        *,
        early_share: float,
        late_ms: int,
        early_bytes_max: int,
    ) -> None:
        self._pacing = pacing
        self._clock = clock
        self._early = Allowance(early_share)
        self._late = Allowance(LATE_SHARE)
        self._late_ms: Final = late_ms
        self._early_bytes_max: Final = early_bytes_max
        self._took_ms: deque[float] = deque(maxlen=ANSWERS_KEPT)
        self._hedges = telemetry.counter("ponor_wal_object_hedges_total")
        telemetry.gauge("ponor_wal_object_hedge_seconds", lambda: self.early_ms / 1000)

    @property
    def early_ms(self) -> float:
        """When to hedge the next put early, in ms after its start; 0 while there are too few samples.

        Uses the median and not the mean, because hedging shortens only the longest samples, which do
        not affect the median.
        """
        if len(self._took_ms) < ANSWERS_MIN:
            return 0.0
        return max(EARLY_MS_MIN, EARLY_MEDIANS * median(self._took_ms))

    @property
    def late_ms(self) -> float:
        """When to hedge the next put late, in ms after its start."""
        return max(self._late_ms, LATE_LATENCIES * self._pacing.latency_ms)

    def began(self) -> None:
        """Record the start of a slot's put."""
        self._early.began()
        self._late.began()

    def answered(self, took_ms: float) -> None:
        """Record the confirmation of a slot's put, by any of its copies."""
        assert took_ms >= 0
        self._took_ms.append(took_ms)

    def hedges(self, size_bytes: int) -> list[Hedge]:
        """Return the times at which to hedge a put of this many bytes, in order."""
        late = Hedge(self.late_ms, partial(self._granted, self._late, is_early=False))
        early_ms = self.early_ms
        if not 0 < early_ms < late.after_ms or size_bytes > self._early_bytes_max:
            return [late]
        return [Hedge(early_ms, partial(self._granted, self._early, is_early=True)), late]

    def _granted(self, allowance: Allowance, *, is_early: bool) -> bool:
        if not allowance.is_available:
            return False
        if not self._pacing.hedge(self._clock.monotonic_ns(), only_spare=is_early):
            return False
        allowance.take()
        self._hedges.add(1)
        return True
