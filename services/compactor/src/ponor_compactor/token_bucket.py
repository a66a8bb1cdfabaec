"""Token bucket: a rate limit with a burst. No I/O.

Like ATM's generic cell rate algorithm (GCRA), it stores one number: the time at which everything admitted so far would have passed
at the rate. Every call is admitted and advances this time, so calls larger than the burst also pass, and later calls wait longer.
"""

from __future__ import annotations

from typing import Final

NS: Final = 1_000_000_000


class TokenBucket:
    """Admits `per_s` units per second on average, and `burst_s` seconds' worth at once after an idle period."""

    def __init__(self, per_s: float, *, burst_s: float = 1.0) -> None:
        assert per_s > 0
        assert burst_s >= 0
        self._per_s: Final = per_s
        self._burst_ns: Final = int(burst_s * NS)
        self._passed_at_ns = 0

    def take(self, amount: int, now_ns: int, share: float = 1.0) -> int:
        """Admit an amount at a share of the rate; return the nanoseconds that the caller must wait."""
        assert amount >= 0
        assert 0 < share <= 1
        begin_ns = max(self._passed_at_ns, now_ns)
        self._passed_at_ns = begin_ns + int(amount / (self._per_s * share) * NS)
        return max(0, self._passed_at_ns - now_ns - self._burst_ns)
