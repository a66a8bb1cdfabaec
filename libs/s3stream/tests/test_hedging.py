"""Hedged puts: when a late put is repeated, which budget pays, and which copy wins."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ponor_runtime.disk import Buffer
from ponor_runtime.object_store import ObjectAlreadyExistsError, ObjectStoreUnavailableError
from ponor_runtime.telemetry import Telemetry
from s3stream.object_wal.hedged_put import Copy, Hedge, break_off, put_hedged
from s3stream.object_wal.hedging import (
    ANSWERS_MIN,
    EARLY_MEDIANS,
    EARLY_MS_MIN,
    LATE_SHARE,
    SAVED_MAX,
    Hedging,
)
from s3stream.object_wal.pacing import Pacing
from s3stream.object_wal.slot_keys import slot_key
from s3stream.settings import KIB, MIB, PacingBounds

from libs.s3stream.tests.store_rig import InstantClock, MemoryObjectStore
from libs.s3stream.tests.test_object_wal import HeldStore, record
from libs.s3stream.tests.wal_rigs import ObjectWalRig, append, wal_settings

BOUNDS = PacingBounds(
    requests_per_s_max=50.0,
    puts_in_flight_max=24,
    bytes_in_flight_max=64 * MIB,
    slot_bytes_wanted=1 * MIB,
    slot_bytes_max=8 * MIB,
)
LATE_MS = 500


class Rule:
    """Hedging of a log with simulated time."""

    def __init__(self, early_share: float = 0.1, rate: float = 50.0) -> None:
        self.clock = InstantClock()
        self.pacing = Pacing(replace(BOUNDS, requests_per_s_max=rate), 0)
        self.hedging = Hedging(
            self.pacing,
            self.clock,
            Telemetry(),
            early_share=early_share,
            late_ms=LATE_MS,
            early_bytes_max=BOUNDS.slot_bytes_wanted,
        )

    def seen(self, *took_ms: float) -> None:
        """Record puts that took this long."""
        for each in took_ms:
            self.hedging.began()
            self.pacing.put(self.clock.now_ns, 100)
            self.pacing.answered(int(each * 1e6), 100)
            self.hedging.answered(each)

    def moments_ms(self, size_bytes: int = 100) -> list[float]:
        return [hedge.after_ms for hedge in self.hedging.hedges(size_bytes)]


def test_without_samples_only_the_late_moment_exists() -> None:
    rule = Rule()
    rule.seen(*[30.0] * (ANSWERS_MIN - 1))
    assert rule.moments_ms() == [LATE_MS]
    rule.seen(30.0)
    assert rule.moments_ms() == [EARLY_MEDIANS * 30, LATE_MS]


def test_the_early_moment_follows_the_median_and_not_the_tail() -> None:
    rule = Rule()
    rule.seen(*[30.0] * 20, *[300.0] * 10)
    assert rule.moments_ms()[0] == EARLY_MEDIANS * 30


def test_puts_to_a_fast_store_are_not_hedged_early() -> None:
    rule = Rule()
    rule.seen(*[2.0] * 40)
    assert rule.moments_ms() == [EARLY_MS_MIN, LATE_MS]


def test_a_slow_store_delays_both_moments() -> None:
    rule = Rule()
    rule.seen(*[400.0] * 40)
    assert rule.moments_ms() == [EARLY_MEDIANS * 400, 1_600]


def test_a_large_slot_is_not_hedged_early() -> None:
    rule = Rule()
    rule.seen(*[30.0] * 40)
    assert rule.moments_ms(2 * MIB) == [LATE_MS]


def test_without_a_share_only_lost_puts_are_hedged() -> None:
    rule = Rule(early_share=0)
    rule.seen(*[30.0] * 40)
    early, late = rule.hedging.hedges(100)
    assert not early.granted()
    assert late.granted()


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 0.2), st.booleans(), st.booleans()), max_size=400),
    st.sampled_from([0.0, 0.05, 0.1, 0.5]),
    st.sampled_from([2.0, 10.0, 50.0]),
)
def test_hedges_stay_within_their_shares_and_leave_half_of_the_budget(
    puts: list[tuple[float, bool, bool]], early_share: float, rate: float
) -> None:
    """Generate late puts: the time before each put, and which of its moments are reached."""
    rule = Rule(early_share, rate)
    rule.seen(*[30.0] * ANSWERS_MIN)
    early_sent = late_sent = 0
    for pause_s, is_late_early, is_late in puts:
        rule.clock.now_ns += int(pause_s * 1e9)
        rule.seen(30.0)
        early, late = rule.hedging.hedges(16 * KIB)
        due_ns = rule.pacing.due_ns(rule.clock.now_ns, 1, entries=1, began_ns=0, came_ns=0)
        if is_late_early and early.granted():
            early_sent += 1
            after_ns = rule.pacing.due_ns(rule.clock.now_ns, 1, entries=1, began_ns=0, came_ns=0)
            assert after_ns == due_ns, "no slot waits for it"
        late_sent += is_late and late.granted()
    count = ANSWERS_MIN + len(puts)
    assert early_sent <= (SAVED_MAX + early_share * count if early_share else 0)
    assert late_sent <= SAVED_MAX + LATE_SHARE * count


# --- which copy wins


class Scripted(MemoryObjectStore):
    """Each put ends as its turn prescribes: after this many seconds, with this failure or none. A
    failure does not change the key.
    """

    def __init__(self, *turns: tuple[float, Exception | None]) -> None:
        super().__init__()
        self.turns = list(turns)
        self.begun = 0

    async def put(self, key: str, buffers: Sequence[Buffer]) -> None:
        self.begun += 1
        seconds, failure = self.turns[self.begun - 1]
        await asyncio.sleep(seconds)
        if failure is not None:
            raise failure


NEVER_S = 3_600.0
BROKEN = ObjectStoreUnavailableError("503")
TAKEN = ObjectAlreadyExistsError("taken")


async def put(store: Scripted, *granted: bool) -> tuple[int, list[Copy]]:
    """Return which copy won, and the unanswered ones."""
    left: list[Copy] = []
    hedges = [Hedge(5.0 * (1 + number), lambda each=each: each) for number, each in enumerate(granted)]  # type: ignore[misc]
    try:
        return await put_hedged(store, "key", [b"x"], hedges=hedges, leave=left.extend), left
    finally:
        break_off(left)


async def test_the_first_answer_wins() -> None:
    won, left = await put(Scripted((NEVER_S, None), (0, None)), True)
    assert (won, len(left)) == (1, 1)
    won, left = await put(Scripted((0.02, None), (NEVER_S, None)), True)
    assert (won, len(left)) == (0, 1)


async def test_a_moment_that_is_not_granted_is_skipped() -> None:
    store = Scripted((NEVER_S, None), (0, None))
    assert (await put(store, False, True))[0] == 1
    assert store.begun == 2


async def test_both_moments_may_send_a_copy() -> None:
    store = Scripted((NEVER_S, None), (NEVER_S, None), (0, None))
    won, left = await put(store, True, True)
    assert (won, len(left), store.begun) == (2, 2, 3)


async def test_a_failed_copy_does_not_end_the_others() -> None:
    assert (await put(Scripted((0.02, BROKEN), (0.05, None)), True))[0] == 1
    assert (await put(Scripted((0.05, None), (0, BROKEN)), True))[0] == 0
    with pytest.raises(ObjectStoreUnavailableError):
        await put(Scripted((0.02, BROKEN), (0.03, BROKEN)), True)


async def test_a_failure_before_the_first_moment_is_raised_immediately() -> None:
    store = Scripted((0, BROKEN))
    with pytest.raises(ObjectStoreUnavailableError):
        await put(store, True)
    assert store.begun == 1


async def test_a_taken_key_is_raised_immediately() -> None:
    with pytest.raises(ObjectAlreadyExistsError):
        await put(Scripted((NEVER_S, None), (0, TAKEN)), True)
    with pytest.raises(ObjectAlreadyExistsError):
        await put(Scripted((0.02, TAKEN), (NEVER_S, None)), True)


# --- in a log


@pytest.fixture
async def rig() -> AsyncIterator[ObjectWalRig]:
    rig = ObjectWalRig(wal_settings(wal_hedge_ms=20))
    yield rig
    await rig.end()


def counted(rig: ObjectWalRig, name: str) -> float:
    return sum(value for _, value in rig.runtime.telemetry.counters(name))


async def test_a_copy_that_finds_the_key_taken_by_the_other_reads_it_back(rig: ObjectWalRig) -> None:
    """The first put was applied, and its answer is lost."""
    store = HeldStore()
    store.holds = False
    rig.store = store
    wal = await rig.opened()
    store.lost.add(slot_key(wal.name, 0))
    await append(wal, record(0))[1]
    assert counted(rig, "ponor_wal_object_hedges_total") == 1
    assert counted(rig, "ponor_wal_object_read_backs_total") == 1
    await wal.close()
    assert [each.base_offset for each in await rig.left()] == [0]


class SlowFirst(MemoryObjectStore):
    """Apply the first put of a key only when the test releases it."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: dict[str, int] = {}
        self.let_go = asyncio.Event()
        self.ended: list[str] = []

    async def put(self, key: str, buffers: Sequence[Buffer]) -> None:
        self.begun[key] = self.begun.get(key, 0) + 1
        if self.begun[key] == 1:
            await self.let_go.wait()
            try:
                await super().put(key, buffers)
            finally:
                self.ended.append(key)
        else:
            await super().put(key, buffers)


async def test_an_unneeded_copy_continues_to_its_end(rig: ObjectWalRig) -> None:
    """Ending it would close its connection."""
    store = SlowFirst()
    rig.store = store
    wal = await rig.opened()
    await append(wal, record(0))[1]
    assert counted(rig, "ponor_wal_object_hedges_won_total") == 1
    store.let_go.set()
    while not store.ended:
        await asyncio.sleep(0.001)
    await wal.close()
    assert counted(rig, "ponor_wal_object_read_backs_total") == 0


async def test_a_log_closed_without_further_need_waits_for_its_copies_before_it_deletes(
    rig: ObjectWalRig,
) -> None:
    """A copy that arrives after the deletion would never be deleted."""
    store = SlowFirst()
    rig.store = store
    wal = await rig.opened()
    await append(wal, record(0))[1]
    closing = asyncio.ensure_future(wal.close(unneeded=True))
    await asyncio.sleep(0.01)
    assert store.objects, "not deleted yet"
    store.let_go.set()
    await closing
    assert store.ended
    assert not store.objects


async def test_an_unneeded_copy_does_not_delay_the_end_of_the_process(rig: ObjectWalRig) -> None:
    store = SlowFirst()
    rig.store = store
    wal = await rig.opened()
    await append(wal, record(0))[1]
    await wal.close()
    await rig.tasks.close()
    assert not store.ended
