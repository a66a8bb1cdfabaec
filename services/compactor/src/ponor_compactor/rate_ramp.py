"""The share of its maximum rates that a compactor uses. It is low while the compactor keeps up, and rises
while it does not. No I/O.

The share grows exponentially while the compactor works and falls while it is idle. It settles at the value at
which the compactor works four fifths of the time. A steady load is therefore copied at about the lowest
sufficient rate instead of in bursts, which would delay the syncs of a write-ahead log on the same device
(docs/design/compaction.md#pace).
"""

from __future__ import annotations

import math
from typing import Final

from ponor_runtime.rate_limit import NS

DOUBLING_NS: Final = 120 * NS
"""Time of uninterrupted work that doubles the share. If a load needs five times the minimum share, a backlog
of about two and a half minutes accumulates before the share is sufficient.
"""
HALVING_NS: Final = DOUBLING_NS // 4
"""Idle time that halves the share. With this ratio, four fifths of work and one fifth of idle time keep the
share constant.
"""
_OCTAVES_MAX: Final = 64.0


class RateRamp:
    """The share, computed from its value at the last start or end of a task and the time since then.

    Args:
        share_min: initial and lowest share, in (0, 1].
        now_ns: current time, from the same clock as all later times.
    """

    def __init__(self, share_min: float, now_ns: int) -> None:
        assert 0 < share_min <= 1
        self._share_min: Final = share_min
        self._turned_share = share_min
        self._turned_at_ns = now_ns
        self._is_working = False

    def share(self, now_ns: int) -> float:
        """Return the share at `now_ns`, between `share_min` and 1."""
        passed_ns = now_ns - self._turned_at_ns
        octaves = passed_ns / DOUBLING_NS if self._is_working else -passed_ns / HALVING_NS
        # Limit the exponent: a year of work would overflow a float, and the share reaches its bounds long
        # before.
        grown = self._turned_share * math.exp2(max(-_OCTAVES_MAX, min(octaves, _OCTAVES_MAX)))
        return min(1.0, max(self._share_min, grown))

    def turn(self, now_ns: int, *, is_working: bool) -> None:
        """Record that a task starts (`is_working`) or ends."""
        self._turned_share = self.share(now_ns)
        self._turned_at_ns = now_ns
        self._is_working = is_working
