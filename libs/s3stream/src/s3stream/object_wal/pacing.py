"""Decides when the gathering slot is put. A state machine without clock, tasks or store.

It balances three goals. A single append must not wait, so an idle log puts immediately. Every put costs the
same, so puts stay within the configured budget, and slots grow when little of the budget is left. Between
these extremes, a few puts overlap within one store latency: more would save little time, cost money, and
delay later slots, which are acknowledged in order.

Appends that were acknowledged together tend to be followed by others that arrive together: a
producer with five requests in flight sends five more when a slot is confirmed. An idle log
therefore waits until as many entries have arrived as were last acknowledged together, or until no
more arrive. These entries then share a slot again.
"""

from __future__ import annotations

from typing import Final

from s3stream.settings import PacingBounds

PUTS_PER_LATENCY: Final = 4
"""Puts that begin within one store latency. On average an append then waits an eighth of the
latency for its slot."""

GAP_MS_MIN: Final = 1
GAP_MS_MAX: Final = 250
"""Longest gap. Only very slow stores reach it."""

LATENCY_WEIGHT: Final = 0.125
"""Weight of a new measurement in the moving average, as in TCP's round-trip estimate."""

PAUSES_PER_LATENCY: Final = 8
PAUSE_MS_MAX: Final = 5
"""Longest time for which an idle log waits for the next entry."""

GATHERS_PER_LATENCY: Final = 2
GATHER_MS_MAX: Final = 50
"""Longest wait of an idle log for all expected entries. Requests of one connection are validated
one after the other, a millisecond or two each."""


class Pacing:
    """Computes when the next put is due from the appends, puts and answers that the caller reports.
    Times are monotonic nanoseconds.
    """

    def __init__(self, bounds: PacingBounds, now_ns: int) -> None:
        assert bounds.requests_per_s_max > 0
        assert bounds.puts_in_flight_max > 0
        assert 0 < bounds.slot_bytes_wanted <= bounds.slot_bytes_max
        self._bounds: Final = bounds
        self._burst: Final = max(bounds.requests_per_s_max, 1.0)
        self._tokens = self._burst
        self._counted_ns = now_ns
        self._last_put_ns = now_ns - GAP_MS_MAX * 1_000_000
        self._latency_ns = 0.0
        self._hurried = False
        self._acknowledged_together = 1
        """Number of entries that were last acknowledged together."""
        self.puts_in_flight = 0
        self.bytes_in_flight = 0

    @property
    def latency_ms(self) -> float:
        """Smoothed latency of a put; 0 before the first answer."""
        return self._latency_ns / 1e6

    def gap_ns(self) -> int:
        """Minimum time between two puts while other puts are in flight."""
        wanted_ns = self._latency_ns / PUTS_PER_LATENCY
        return int(min(max(wanted_ns, GAP_MS_MIN * 1e6), GAP_MS_MAX * 1e6))

    def hurry(self) -> None:
        """Put the gathering slot as soon as the limits on puts in flight allow it, because a caller waits for
        it.
        """
        self._hurried = True

    def due_ns(
        self,
        now_ns: int,
        gathered_bytes: int,
        *,
        entries: int,
        began_ns: int,
        came_ns: int,
        is_full: bool = False,
    ) -> int | None:
        """Return when the oldest slot should be put (possibly in the past); None while a limit is reached.

        The result may change with every append, put and answer.

        Args:
            now_ns: current time.
            gathered_bytes: bytes of the slot's records.
            entries: number of its entries.
            began_ns: when the first entry arrived.
            came_ns: when the last entry arrived.
            is_full: another slot gathers behind it, so waiting cannot add entries.
        """
        bounds = self._bounds
        if self.puts_in_flight >= bounds.puts_in_flight_max:
            return None
        if self.puts_in_flight and self.bytes_in_flight + gathered_bytes > bounds.bytes_in_flight_max:
            return None
        if self._hurried or is_full or gathered_bytes >= bounds.slot_bytes_max:
            return now_ns
        if bounds.window_ms:
            return began_ns + bounds.window_ms * 1_000_000
        due_ns = self._budget_due_ns(now_ns)
        if gathered_bytes >= bounds.slot_bytes_wanted:
            return due_ns
        if self.puts_in_flight:
            return max(due_ns, self._last_put_ns + self.gap_ns())
        if entries < self._acknowledged_together:
            return max(due_ns, self._gather_due_ns(began_ns, came_ns))
        return due_ns

    def put(self, now_ns: int, size_bytes: int) -> None:
        """Record a put."""
        self._count_tokens(now_ns)
        # Full or hurried slots do not wait and can make the count negative, down to minus one burst.
        # Later slots then wait longer.
        self._tokens = max(self._tokens - 1, -self._burst)
        self._last_put_ns = now_ns
        self._hurried = False
        self.puts_in_flight += 1
        self.bytes_in_flight += size_bytes

    def hedge(self, now_ns: int, *, only_spare: bool) -> bool:
        """Take the cost of a second copy from the budget. With `only_spare`, return False instead if
        less than half of the burst would remain, because this would delay a slot.
        """
        self._count_tokens(now_ns)
        if only_spare and self._tokens - 1 < self._burst / 2:
            return False
        self._tokens = max(self._tokens - 1, -self._burst)
        return True

    def answered(self, took_ns: int, size_bytes: int) -> None:
        """Record the confirmation of a put."""
        assert self.puts_in_flight > 0
        assert took_ns >= 0
        self.puts_in_flight -= 1
        self.bytes_in_flight -= size_bytes
        assert self.bytes_in_flight >= 0
        if self._latency_ns:
            self._latency_ns += (took_ns - self._latency_ns) * LATENCY_WEIGHT
        else:
            self._latency_ns = float(took_ns)

    def acknowledged(self, entries: int) -> None:
        """Record how many entries were acknowledged together."""
        self._acknowledged_together = entries

    def _gather_due_ns(self, began_ns: int, came_ns: int) -> int:
        """Return the end of the wait for more entries."""
        pause_ns = min(self._latency_ns / PAUSES_PER_LATENCY, PAUSE_MS_MAX * 1e6)
        gather_ns = min(self._latency_ns / GATHERS_PER_LATENCY, GATHER_MS_MAX * 1e6)
        return min(came_ns + int(pause_ns), began_ns + int(gather_ns))

    def _budget_due_ns(self, now_ns: int) -> int:
        """Return when the budget allows a put. The first half of the burst needs no wait; after
        that, the interval grows until puts match the budget's rate.
        """
        self._count_tokens(now_ns)
        period_ns = 1e9 / self._bounds.requests_per_s_max
        interval_ns = period_ns * max(1 - 2 * max(self._tokens, 0.0) / self._burst, 0.0)
        due_ns = self._last_put_ns + int(interval_ns)
        if due_ns > now_ns:
            # The interval shrinks by 2 / burst of the elapsed time, because tokens are added in the meantime.
            due_ns = now_ns + int((due_ns - now_ns) / (1 + 2 / self._burst))
        if self._tokens < 1:
            due_ns = max(due_ns, now_ns + int((1 - self._tokens) * period_ns))
        return due_ns

    def _count_tokens(self, now_ns: int) -> None:
        elapsed_ns = max(now_ns - self._counted_ns, 0)
        self._counted_ns = max(now_ns, self._counted_ns)
        self._tokens = min(self._tokens + elapsed_ns * self._bounds.requests_per_s_max / 1e9, self._burst)
