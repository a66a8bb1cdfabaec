"""Tests of the pause between sweeps."""

from __future__ import annotations

from ponor_gc.poll_interval import PollInterval
from ponor_gc.settings import GcSettings


def test_pauses_grow_while_nothing_is_found_and_reset_otherwise() -> None:
    interval = PollInterval(GcSettings(poll_interval_ms_min=100, poll_interval_ms_max=500))
    assert [interval.after_nothing() for _ in range(5)] == [100, 200, 400, 500, 500]
    assert interval.after_full() == 0
    assert interval.after_nothing() == 100
    assert interval.after_some() == 100
    assert interval.after_nothing() == 100


def test_maximum_below_the_minimum_is_ignored() -> None:
    interval = PollInterval(GcSettings(poll_interval_ms_min=1_000, poll_interval_ms_max=10))
    assert [interval.after_nothing() for _ in range(3)] == [1_000, 1_000, 1_000]
