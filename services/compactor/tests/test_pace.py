"""Tests of the compactor's rate limits, bursts and reaction to "slow down"."""

from __future__ import annotations

import pytest
from ponor_compactor.pace import EVEN_BURST_S, SHARE_MIN, Pace
from ponor_compactor.rate_ramp import DOUBLING_NS
from ponor_compactor.settings import CompactorSettings
from ponor_runtime.rate_limit import NS
from ponor_runtime.telemetry import Telemetry

from libs.s3stream.tests.store_rig import InstantClock


def _pace(clock: InstantClock, **settings: int) -> Pace:
    return Pace(clock, CompactorSettings(**settings), Telemetry())


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
