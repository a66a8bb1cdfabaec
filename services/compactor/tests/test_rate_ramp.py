"""Tests of the rate share as a function of work and idle time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ponor_compactor.rate_ramp import DOUBLING_NS, HALVING_NS, RateRamp
from ponor_runtime.rate_limit import NS

YEAR_NS = 365 * 86_400 * NS


def test_two_minutes_of_work_double_the_share_and_half_an_idle_minute_halves_it() -> None:
    ramp = RateRamp(0.1, 0)
    ramp.turn(0, is_working=True)
    assert ramp.share(0) == 0.1
    assert ramp.share(DOUBLING_NS) == pytest.approx(0.2)
    ramp.turn(2 * DOUBLING_NS, is_working=False)
    assert ramp.share(2 * DOUBLING_NS) == pytest.approx(0.4)
    assert ramp.share(2 * DOUBLING_NS + HALVING_NS) == pytest.approx(0.2)


def test_a_year_of_work_or_idleness_reaches_the_bounds() -> None:
    ramp = RateRamp(0.1, 0)
    ramp.turn(0, is_working=True)
    assert ramp.share(YEAR_NS) == 1.0
    ramp.turn(YEAR_NS, is_working=False)
    assert ramp.share(2 * YEAR_NS) == 0.1


def test_four_fifths_of_work_keep_the_share_constant() -> None:
    ramp, now_ns = RateRamp(0.1, 0), DOUBLING_NS
    ramp.turn(0, is_working=True)
    for _ in range(100):
        ramp.turn(now_ns, is_working=False)
        now_ns += 5 * NS
        ramp.turn(now_ns, is_working=True)
        now_ns += 20 * NS
    assert ramp.share(now_ns) == pytest.approx(0.2, rel=0.15)


@given(
    st.floats(0.001, 1.0),
    st.lists(st.tuples(st.booleans(), st.integers(0, 1_000 * NS)), max_size=30),
)
def test_share_is_continuous_and_within_bounds(share_min: float, turns: list[tuple[bool, int]]) -> None:
    ramp, now_ns = RateRamp(share_min, 0), 0
    for is_working, passed_ns in turns:
        before = ramp.share(now_ns)
        ramp.turn(now_ns, is_working=is_working)
        assert ramp.share(now_ns) == before
        now_ns += passed_ns
        after = ramp.share(now_ns)
        assert share_min <= after <= 1.0
        assert after >= before if is_working else after <= before
