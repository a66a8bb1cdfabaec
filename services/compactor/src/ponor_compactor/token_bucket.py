"""A rate with a burst: what may pass now, and how long the rest waits. Pure.

The form is that of ATM's cell rate algorithm: one number, the time at which everything admitted so far would have passed at the rate. A caller that is let in moves it on,
however large it is; so calls larger than the burst pass too, and those behind them wait the longer.
"""

from __future__ import annotations

from typing import Final

NS: Final = 1_000_000_000


class TokenBucket:
    """Admits `per_s` units a second on average, and a burst of `burst_s` seconds' worth after a rest."""

    def __init__(self, per_s: float, *, burst_s: float = 1.0) -> None:
        assert per_s > 0
        assert burst_s >= 0
        self._per_s: Final = per_s
        self._burst_ns: Final = int(burst_s * NS)
        self._passed_at_ns = 0

    def take(self, amount: int, now_ns: int, share: float = 1.0) -> int:
        """Let an amount in, at a share of the rate; returns the nanoseconds that it has to wait."""
        assert amount >= 0
        assert 0 < share <= 1
        begin_ns = max(self._passed_at_ns, now_ns)
        self._passed_at_ns = begin_ns + int(amount / (self._per_s * share) * NS)
        return max(0, self._passed_at_ns - now_ns - self._burst_ns)
