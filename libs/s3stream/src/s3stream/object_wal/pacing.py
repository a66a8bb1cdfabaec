"""Decides when the gathering slot is put: a state machine without clock, tasks or store.

Three goals compete. A lone append must not wait, so an idle log puts at once. Each put costs the same, so puts do not
exceed the declared budget, and near its end the slots grow wider instead. In between, a few puts share one store
latency: more would save little time, cost money, and delay later slots, which are acknowledged in order.

Appends that were acknowledged together are followed by others together: a producer with five requests in flight sends
five when a slot is confirmed. An idle log therefore waits for as many as came together before, while they keep coming,
so that they share a slot again.
"""

from __future__ import annotations

from typing import Final

from s3stream.settings import PacingBounds

PUTS_PER_LATENCY: Final = 4
"""Puts that are begun while one is under way: an append waits an eighth of the store's latency for its slot on average."""

GAP_MS_MIN: Final = 1
GAP_MS_MAX: Final = 250
"""What others wait always; here only a very slow store is treated so."""

LATENCY_WEIGHT: Final = 0.125
"""Of a new measurement, as TCP weighs round trips."""

PAUSES_PER_LATENCY: Final = 8
PAUSE_MS_MAX: Final = 5
"""How long an idle log waits for the next of as many entries as it acknowledged together last: later ones are not waited for."""

COMPANIES_PER_LATENCY: Final = 2
COMPANY_MS_MAX: Final = 50
"""How long it waits for all of them, while they keep coming. Requests of one connection are read and checked one after the other, a millisecond or two each."""


class Pacing:
    """Told of gathering, puts and answers; says when the next put is due. Times are monotonic nanoseconds."""

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
        self._told_together = 1
        """Entries that were acknowledged in one go, the last time."""
        self.puts_in_flight = 0
        self.bytes_in_flight = 0

    @property
    def latency_ms(self) -> float:
        """What a put takes, smoothed; 0 before the first answer."""
        return self._latency_ns / 1e6

    def gap_ns(self) -> int:
        """The least time between two puts while others are under way."""
        wanted_ns = self._latency_ns / PUTS_PER_LATENCY
        return int(min(max(wanted_ns, GAP_MS_MIN * 1e6), GAP_MS_MAX * 1e6))

    def hurry(self) -> None:
        """Somebody waits for the slot that gathers: it goes as soon as there is a place."""
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
        """When the oldest slot should be put: now or earlier, later, or None: not before an answer has come.

        The answer may change with every append, put and answer; ask again after each.

        Args:
            now_ns: the present.
            gathered_bytes: of its records.
            entries: that it has.
            began_ns: when the first of them came.
            came_ns: when the last one did.
            is_full: another slot gathers behind it already, so that waiting cannot make it wider.
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
        if entries < self._told_together:
            return max(due_ns, self._company_due_ns(began_ns, came_ns))
        return due_ns

    def put(self, now_ns: int, size_bytes: int) -> None:
        """The slot was put."""
        self._count_tokens(now_ns)
        # Below zero if full or hurried slots did not wait; later ones wait longer. The debt is one burst at most.
        self._tokens = max(self._tokens - 1, -self._burst)
        self._last_put_ns = now_ns
        self._hurried = False
        self.puts_in_flight += 1
        self.bytes_in_flight += size_bytes

    def hedge(self, now_ns: int, *, only_spare: bool) -> bool:
        """Take a second copy of a put from the budget; False if only what delays no slot is asked for and there is none."""
        self._count_tokens(now_ns)
        if only_spare and self._tokens - 1 < self._burst / 2:
            return False
        self._tokens = max(self._tokens - 1, -self._burst)
        return True

    def answered(self, took_ns: int, size_bytes: int) -> None:
        """A put is confirmed."""
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
        """So many entries were told in one go that they are durable."""
        self._told_together = entries

    def _company_due_ns(self, began_ns: int, came_ns: int) -> int:
        """Until when to wait for more."""
        pause_ns = min(self._latency_ns / PAUSES_PER_LATENCY, PAUSE_MS_MAX * 1e6)
        company_ns = min(self._latency_ns / COMPANIES_PER_LATENCY, COMPANY_MS_MAX * 1e6)
        return min(came_ns + int(pause_ns), began_ns + int(company_ns))

    def _budget_due_ns(self, now_ns: int) -> int:
        """While half of the budget's burst is there it asks for nothing; from there on puts spread, to its rate at the end."""
        self._count_tokens(now_ns)
        period_ns = 1e9 / self._bounds.requests_per_s_max
        used = min(max(1 - self._tokens / self._burst, 0.0), 1.0)
        due_ns = self._last_put_ns + int(period_ns * max(2 * used - 1, 0.0))
        if self._tokens < 1:
            due_ns = max(due_ns, now_ns + int((1 - self._tokens) * period_ns))
        return due_ns

    def _count_tokens(self, now_ns: int) -> None:
        elapsed_ns = max(now_ns - self._counted_ns, 0)
        self._counted_ns = max(now_ns, self._counted_ns)
        self._tokens = min(self._tokens + elapsed_ns * self._bounds.requests_per_s_max / 1e9, self._burst)
