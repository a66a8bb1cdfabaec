"""Tests of the rate limit and its burst."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st
from ponor_runtime.rate_limit import NS, RateLimit


def _pay_first(limit: RateLimit, amount: int, now_ns: int, share: float = 1.0) -> int:
    limit.charge(amount, now_ns, share)
    return limit.wait_ns(now_ns)


def test_burst_passes_and_then_the_rate_applies() -> None:
    limit = RateLimit(100.0, burst_s=1.0)
    assert _pay_first(limit, 100, 0) == 0
    assert _pay_first(limit, 50, 0) == NS // 2
    assert _pay_first(limit, 0, 0) == NS // 2
    assert _pay_first(limit, 100, 10 * NS) == 0, "an idle period fills the burst once"
    assert _pay_first(limit, 100, 10 * NS) == NS


def test_half_the_rate_takes_twice_as_long() -> None:
    assert _pay_first(RateLimit(100.0), 100, 0, 0.5) == 2 * NS


def test_an_amount_that_is_given_back_delays_nothing() -> None:
    limit = RateLimit(100.0)
    limit.charge(300, 0)
    limit.give_back(200)
    assert limit.wait_ns(0) == NS


def test_an_infinite_rate_never_waits() -> None:
    limit = RateLimit(math.inf)
    assert _pay_first(limit, 1 << 60, 0) == 0
    limit.give_back(1 << 60)
    assert limit.wait_ns(0) == 0


@given(
    st.lists(st.tuples(st.integers(0, 1_000), st.integers(0, 2 * NS)), max_size=40),
    st.integers(1, 1_000),
)
def test_no_second_exceeds_the_rate_plus_a_burst(calls: list[tuple[int, int]], per_s: int) -> None:
    limit, now_ns = RateLimit(float(per_s), burst_s=1.0), 0
    passed: list[tuple[int, int]] = []
    for amount, pause_ns in calls:
        now_ns += pause_ns
        passed.append((now_ns + _pay_first(limit, amount, now_ns), amount))
    for number, (begin_ns, _) in enumerate(passed):
        carried = 0
        for at_ns, amount in passed[number:]:
            carried += amount
            # At most one second's worth may pass ahead of the rate.
            assert carried - passed[number][1] <= per_s * ((at_ns - begin_ns) / NS + 1) + 1
