"""Tests of the compactor's rate limits, bursts and reaction to "slow down"."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ponor_compactor.haste import DOUBLING_NS
from ponor_compactor.pace import EVEN_BURST_S, SHARE_MIN, Pace
from ponor_compactor.settings import CompactorSettings
from ponor_compactor.token_bucket import NS, TokenBucket
from ponor_runtime.telemetry import Telemetry

from libs.s3stream.tests.store_rig import InstantClock


def _pace(clock: InstantClock, **settings: int) -> Pace:
    return Pace(clock, CompactorSettings(**settings), Telemetry())


def test_burst_passes_and_then_the_rate_applies() -> None:
    bucket = TokenBucket(100.0)
    assert bucket.take(100, 0) == 0
    assert bucket.take(50, 0) == NS // 2
    assert bucket.take(0, 0) == NS // 2
    assert bucket.take(100, 10 * NS) == 0, "an idle period fills the bucket once"
    assert bucket.take(100, 10 * NS) == NS


def test_half_the_rate_takes_twice_as_long() -> None:
    bucket = TokenBucket(100.0, burst_s=0.0)
    assert bucket.take(100, 0, 0.5) == 2 * NS


@given(
    st.lists(st.tuples(st.integers(0, 1_000), st.integers(0, 2 * NS)), max_size=40),
    st.integers(1, 1_000),
)
def test_no_second_exceeds_the_rate_plus_a_burst(calls: list[tuple[int, int]], per_s: int) -> None:
    bucket, now_ns = TokenBucket(float(per_s)), 0
    passed: list[tuple[int, int]] = []
    for amount, pause_ns in calls:
        now_ns += pause_ns
        passed.append((now_ns + bucket.take(amount, now_ns), amount))
    for number, (begin_ns, _) in enumerate(passed):
        carried = 0
        for at_ns, amount in passed[number:]:
            carried += amount
            # At most one second's worth may pass ahead of the rate.
            assert carried - passed[number][1] <= per_s * ((at_ns - begin_ns) / NS + 1) + 1


async def test_bytes_and_requests_have_separate_bounds() -> None:
    clock = InstantClock()
    pace = _pace(clock, compactor_read_bytes_per_s_max=1_000, compactor_requests_per_s_max=10)
    await pace.before_read(1_000)
    await pace.before_read(500)
    assert clock.slept == [0.5]
    for _ in range(20):
        await pace.before_write(0)
    assert sum(clock.slept) == pytest.approx(1.5), "a burst of ten, and ten a second"


async def test_slow_down_halves_once_for_all_calls_in_flight_and_recovers_in_a_minute() -> None:
    clock = InstantClock()
    pace = _pace(clock, compactor_write_bytes_per_s_max=1_000)
    for _ in range(5):
        pace.slowed()
    assert pace.share == 0.5
    await pace.before_write(1_500)
    assert sum(clock.slept) > 1.5, "at half the rate"
    for _ in range(20):
        clock.now_ns += NS
        pace.slowed()
    assert SHARE_MIN <= pace.share < 0.1
    clock.now_ns += 60 * NS
    await pace.before_write(0)
    assert pace.share == 1.0


async def test_reads_and_writes_share_the_initial_rate() -> None:
    clock = InstantClock()
    pace = _pace(clock, compactor_bytes_per_s_min=1_000)
    with pace.working():
        await pace.before_read(1_000)
        await pace.before_write(1_000)
    assert sum(clock.slept) == pytest.approx(2 - EVEN_BURST_S, rel=0.02)


async def test_bounds_below_the_initial_rate_apply() -> None:
    clock = InstantClock()
    pace = _pace(clock, compactor_read_bytes_per_s_max=1_000, compactor_write_bytes_per_s_max=1_000)
    assert pace.bytes_per_s == 2_000
    await pace.before_write(1_000)
    await pace.before_write(1_000)
    assert sum(clock.slept) == pytest.approx(1.0)


async def test_slow_down_halves_a_raised_rate() -> None:
    clock = InstantClock()
    pace = _pace(clock, compactor_bytes_per_s_min=1_000)
    with pace.working():
        clock.now_ns += DOUBLING_NS
        assert pace.bytes_per_s == pytest.approx(2_000)
        pace.slowed()
        assert pace.bytes_per_s == pytest.approx(1_000)
    clock.now_ns += DOUBLING_NS
    await pace.before_read(0)
    assert pace.bytes_per_s == pytest.approx(1_000), (
        "the share has recovered, and the idle time has lowered the rate"
    )
