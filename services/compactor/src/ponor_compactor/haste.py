"""How much of its rates a compactor makes use of: little while it keeps up, more the longer it does not. Pure.

What lives here: one share, which grows while there is work and falls while there is none. It comes to rest where four fifths of the time are work, so that a steady load is copied
about as slowly as it may be, instead of in a burst behind which everybody else's syncs wait (docs/design/compaction.md#pace).
"""

from __future__ import annotations

import math
from typing import Final

from ponor_compactor.token_bucket import NS

DOUBLING_NS: Final = 120 * NS
"""Of work without a pause. Until the share is what a load needs, two and a half minutes' worth of it gather where that is five times the least."""
HALVING_NS: Final = DOUBLING_NS // 4
"""Of having nothing to do: by this ratio four fifths of work and one of rest leave the share as it is."""
_OCTAVES_MAX: Final = 64.0


class Haste:
    """The share at any moment, as a function of when the last task began or ended.

    Args:
        share_min: where it begins, and what it does not fall below.
        now_ns: by the same clock as every later moment.
    """

    def __init__(self, share_min: float, now_ns: int) -> None:
        assert 0 < share_min <= 1
        self._share_min: Final = share_min
        self._turned_share = share_min
        self._turned_at_ns = now_ns
        self._is_working = False

    def share(self, now_ns: int) -> float:
        """Between the least and 1."""
        passed_ns = now_ns - self._turned_at_ns
        octaves = passed_ns / DOUBLING_NS if self._is_working else -passed_ns / HALVING_NS
        # A float has no room for the powers of a year; all bounds are reached long before.
        grown = self._turned_share * math.exp2(max(-_OCTAVES_MAX, min(octaves, _OCTAVES_MAX)))
        return min(1.0, max(self._share_min, grown))

    def turn(self, now_ns: int, *, is_working: bool) -> None:
        """A task begins or is over."""
        self._turned_share = self.share(now_ns)
        self._turned_at_ns = now_ns
        self._is_working = is_working
