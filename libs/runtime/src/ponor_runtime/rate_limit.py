"""Rate limit with a burst. No I/O.

Like ATM's generic cell rate algorithm (GCRA), it stores one number: the time at which all amounts charged so
far have passed at the given rate. `charge` accepts any amount, even one larger than the burst; later callers
then wait longer.
"""

from __future__ import annotations

from typing import Final

NS: Final = 1_000_000_000


class RateLimit:
    """Passes `per_s` units per second on average, and `burst_s` seconds' worth at once after an idle period.

    A caller either charges its amount and then waits for `wait_ns`, or waits for `wait_ns` and charges
    afterwards. A rate of `math.inf` means no limit.
    """

    def __init__(self, per_s: float, *, burst_s: float = 0.0) -> None:
        assert per_s > 0
        assert burst_s >= 0
        self._per_s: Final = per_s
        self._burst_ns: Final = int(burst_s * NS)
        self._passed_at_ns = 0

    def charge(self, amount: int, now_ns: int, share: float = 1.0) -> None:
        """Charge an amount. With `share`, the amount takes as long as it would at that share of the rate."""
        assert amount >= 0
        assert 0 < share <= 1
        self._passed_at_ns = max(self._passed_at_ns, now_ns) + int(amount / (self._per_s * share) * NS)

    def give_back(self, amount: int) -> None:
        """Undo the charge of an amount that was not used."""
        assert amount >= 0
        self._passed_at_ns -= int(amount / self._per_s * NS)

    def wait_ns(self, now_ns: int) -> int:
        """Return how many nanoseconds to wait until the charged amounts that have not passed yet are at most
        one burst.
        """
        return max(0, self._passed_at_ns - now_ns - self._burst_ns)
