"""Pacing of puts with simulated time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from s3stream.object_wal.pacing import GAP_MS_MAX, GATHER_MS_MAX, Pacing
from s3stream.settings import KIB, MIB, PacingBounds

MS = 1_000_000
BOUNDS = PacingBounds(
    requests_per_s_max=50.0,
    puts_in_flight_max=8,
    bytes_in_flight_max=16 * MIB,
    slot_bytes_wanted=1 * MIB,
    slot_bytes_max=4 * MIB,
)


def due_ms(
    pacing: Pacing, now_ms: int, size: int = 100, entries: int = 1, began_ms: int | None = None
) -> float | None:
    """Return how long a slot waits whose last entry arrived now; the first entry also arrived now
    unless given.
    """
    began_ns = (now_ms if began_ms is None else began_ms) * MS
    due_ns = pacing.due_ns(now_ms * MS, size, entries=entries, began_ns=began_ns, came_ns=now_ms * MS)
    return None if due_ns is None else max(due_ns - now_ms * MS, 0) / MS


def busy(latency_ms: int = 40) -> Pacing:
    """Pacing of a log that has completed one put of this duration and starts another at 1,000 ms."""
    pacing = Pacing(BOUNDS, 0)
    pacing.put(0, 100)
    pacing.answered(latency_ms * MS, 100)
    pacing.acknowledged(1)
    pacing.put(1_000 * MS, 100)
    return pacing


def test_an_idle_log_puts_immediately() -> None:
    assert due_ms(Pacing(BOUNDS, 0), 0) == 0


def test_during_a_put_the_next_one_waits_a_quarter_of_the_latency() -> None:
    assert due_ms(busy(), 1_000) == 10
    assert due_ms(busy(), 1_004) == 6
    assert due_ms(busy(), 1_020) == 0


def test_a_slot_of_the_wanted_size_does_not_wait_for_more() -> None:
    assert due_ms(busy(), 1_000, size=1 * MIB) == 0


def test_a_hurried_slot_does_not_wait() -> None:
    pacing = busy()
    pacing.hurry()
    assert due_ms(pacing, 1_000) == 0
    pacing.put(1_000 * MS, 100)
    assert due_ms(pacing, 1_000) == 10, "for one slot"


def test_entries_acknowledged_together_share_the_next_slot() -> None:
    pacing = Pacing(BOUNDS, 0)
    pacing.put(0, 100)
    pacing.answered(48 * MS, 100)
    pacing.acknowledged(5)
    assert due_ms(pacing, 1_000, entries=1) == 5
    assert due_ms(pacing, 1_003, entries=4, began_ms=1_000) == 5, "they keep coming"
    assert due_ms(pacing, 1_022, entries=4, began_ms=1_000) == 2, "half of a put's latency in total"
    assert due_ms(pacing, 1_024, entries=4, began_ms=1_000) == 0
    assert due_ms(pacing, 1_000, entries=5) == 0, "all of them arrived"


def test_a_hedged_put_uses_only_spare_budget() -> None:
    pacing = Pacing(BOUNDS, 0)
    granted = [pacing.hedge(0, only_spare=True) for _ in range(40)]
    assert granted == [True] * 25 + [False] * 15
    assert due_ms(pacing, 0) == 0
    assert pacing.hedge(0, only_spare=False), "a lost answer does not extend the wait"
    pacing.put(0, 10)
    pacing.answered(1, 10)
    wait_ms = due_ms(pacing, 0)
    assert wait_ms is not None
    assert wait_ms > 0, "larger slots compensate"


def test_puts_spread_when_half_of_the_budget_is_spent() -> None:
    pacing = Pacing(BOUNDS, 0)
    waits = []
    for _ in range(60):
        wait = due_ms(pacing, 0)
        waits.append(wait)
        pacing.put(0, 10)
        pacing.answered(1, 10)
    assert waits[:25] == [0] * 25
    assert waits[40] is not None
    assert 0 < waits[40] < 20
    assert waits[55] is not None
    assert waits[55] > 20


@given(
    puts=st.lists(st.integers(0, 40 * MS), max_size=80),
    rate=st.sampled_from([0.5, 1.0, 7.0, 50.0]),
    part=st.floats(0, 1),
)
def test_the_due_time_does_not_move_while_a_slot_waits(puts: list[int], rate: float, part: float) -> None:
    """The log sleeps until the due time; a due time that moved would wake it again and again."""
    pacing = Pacing(replace(BOUNDS, requests_per_s_max=rate), 0)
    now_ns = 0
    for pause_ns in puts:
        now_ns += pause_ns
        pacing.put(now_ns, 10)
        pacing.answered(1, 10)

    def due_ns(at_ns: int) -> int:
        due = pacing.due_ns(at_ns, 100, entries=1, began_ns=now_ns, came_ns=now_ns)
        assert due is not None
        return due

    first = due_ns(now_ns)
    if first > now_ns:
        later_ns = now_ns + int((first - now_ns) * part)
        assert abs(due_ns(later_ns) - first) <= 10
        assert due_ns(first + 10) <= first + 10


def test_a_fixed_window_ignores_the_load() -> None:
    pacing = Pacing(replace(BOUNDS, window_ms=250), 0)
    assert due_ms(pacing, 0) == 250
    assert due_ms(pacing, 0, size=4 * MIB) == 0


@dataclass
class World:
    """A log in simulated time: appends at given times, a store with a given latency."""

    bounds: PacingBounds
    latency_ms: int
    now_ns: int = 0
    puts_ns: list[int] = field(default_factory=list)
    waits_ns: list[int] = field(default_factory=list)

    def run(self, appends_ns: list[int], size: int) -> None:
        pacing = Pacing(self.bounds, 0)
        coming = sorted(appends_ns)
        answers: list[tuple[int, int, int]] = []
        gathered: list[int] = []
        while coming or gathered:
            due_ns = (
                pacing.due_ns(
                    self.now_ns,
                    len(gathered) * size,
                    entries=len(gathered),
                    began_ns=gathered[0],
                    came_ns=gathered[-1],
                )
                if gathered
                else None
            )
            if due_ns is not None and due_ns <= self.now_ns:
                pacing.put(self.now_ns, len(gathered) * size)
                self.puts_ns.append(self.now_ns)
                self.waits_ns += [self.now_ns - each for each in gathered]
                answers.append((self.now_ns + self.latency_ms * MS, len(gathered) * size, len(gathered)))
                gathered = []
                continue
            moments = [moment for moment in (due_ns, coming[0] if coming else None) if moment is not None]
            moments += [answers[0][0]] if answers else []
            self.now_ns = max(self.now_ns, min(moments))
            while answers and answers[0][0] <= self.now_ns:
                _, size_bytes, entries = answers.pop(0)
                pacing.answered(self.latency_ms * MS, size_bytes)
                pacing.acknowledged(entries)
            while coming and coming[0] <= self.now_ns:
                gathered.append(coming.pop(0))


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 20_000_000_000), min_size=1, max_size=400),
    st.integers(1, 400),
    st.sampled_from([2.0, 10.0, 50.0]),
    st.sampled_from([100, 50 * KIB]),
)
def test_puts_stay_within_the_budget_and_every_slot_is_put(
    appends_ns: list[int], latency_ms: int, rate: float, size: int
) -> None:
    bounds = replace(BOUNDS, requests_per_s_max=rate, slot_bytes_max=1 << 40, bytes_in_flight_max=1 << 40)
    world = World(bounds, latency_ms)
    world.run(appends_ns, size)
    assert len(world.waits_ns) == len(appends_ns)
    for number, first_ns in enumerate(world.puts_ns):
        for count, last_ns in enumerate(world.puts_ns[number:], 1):
            allowed = rate + 1 + rate * (last_ns - first_ns) / 1e9
            assert count <= allowed, "a burst of one second's budget, then the rate"
    longest_ms = max(GAP_MS_MAX, GATHER_MS_MAX, 1_000 / rate)
    slots_ahead = 1 + latency_ms * BOUNDS.puts_in_flight_max / BOUNDS.puts_in_flight_max
    assert max(world.waits_ns) / MS <= longest_ms + 1_000 / rate + slots_ahead + latency_ms


class PacingMachine(RuleBasedStateMachine):
    """Any order of calls: counters match, limits hold, and the due time is finite."""

    def __init__(self) -> None:
        super().__init__()
        self.pacing = Pacing(BOUNDS, 0)
        self.now_ns = 0
        self.in_flight: list[tuple[int, int]] = []
        self.gathered = 0
        self.began_ns = 0
        self.came_ns = 0

    @rule(ms=st.integers(0, 2_000))
    def time_passes(self, ms: int) -> None:
        self.now_ns += ms * MS

    @rule(size=st.integers(1, 3 * MIB))
    def append(self, size: int) -> None:
        if not self.gathered:
            self.began_ns = self.now_ns
        self.came_ns = self.now_ns
        self.gathered += size

    @rule()
    def hurry(self) -> None:
        self.pacing.hurry()

    @rule(only_spare=st.booleans())
    def hedge(self, only_spare: bool) -> None:
        before_ns = self.due_ns() if self.gathered else None
        if self.pacing.hedge(self.now_ns, only_spare=only_spare) and only_spare and self.gathered:
            assert self.due_ns() == before_ns, "it delays no slot"

    @precondition(lambda self: self.gathered)
    @rule()
    def put_if_due(self) -> None:
        due_ns = self.due_ns()
        if due_ns is None:
            assert self.in_flight, "an idle log always has a place"
            return
        assert due_ns <= self.now_ns + 4_000 * MS, "at 50 per second no debt lasts longer"
        self.now_ns = max(self.now_ns, due_ns)
        again_ns = self.due_ns()
        assert again_ns is not None
        assert again_ns <= self.now_ns + MS, "it is due at its due time"
        self.pacing.put(self.now_ns, self.gathered)
        self.in_flight.append((self.now_ns, self.gathered))
        self.gathered = 0

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(self.in_flight) - 1))
        put_ns, size = self.in_flight.pop(at)
        self.pacing.answered(self.now_ns - put_ns + 1, size)
        self.pacing.acknowledged(1 + at)

    def due_ns(self) -> int | None:
        return self.pacing.due_ns(
            self.now_ns, self.gathered, entries=1, began_ns=self.began_ns, came_ns=self.came_ns
        )

    @invariant()
    def counts(self) -> None:
        assert self.pacing.puts_in_flight == len(self.in_flight) <= BOUNDS.puts_in_flight_max
        assert self.pacing.bytes_in_flight == sum(size for _, size in self.in_flight)


TestPacingMachine = PacingMachine.TestCase
