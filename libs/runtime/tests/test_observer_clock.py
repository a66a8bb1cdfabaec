"""Observed time excludes the time in which the process did not run."""

from __future__ import annotations

import asyncio

import pytest
from ponor_runtime.observer_clock import ObserverClock
from ponor_runtime.system import SystemClock


class HandClock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic_ns(self) -> int:
        return int(self.now_s * 1e9)

    def wall_ms(self) -> int:
        return 7

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def test_time_between_ticks_counts_up_to_the_limit() -> None:
    clock = HandClock()
    observed = ObserverClock(clock, absence_s=1.0)
    began_ns = observed.monotonic_ns()
    clock.now_s += 1.0
    assert observed.monotonic_ns() - began_ns == 1_000_000_000
    clock.now_s += 30.0
    assert observed.monotonic_ns() - began_ns == 2_000_000_000
    clock.now_s += 0.5
    assert observed.monotonic_ns() - began_ns == 2_500_000_000
    assert observed.wall_ms() == 7


def test_absence_is_reported_once_with_its_length() -> None:
    clock, absences = HandClock(), list[int]()
    observed = ObserverClock(clock, absence_s=1.0)
    observed.on_return(absences.append)
    clock.now_s += 1.0
    observed.monotonic_ns()
    clock.now_s += 12.5
    observed.monotonic_ns()
    observed.monotonic_ns()
    assert absences == [12_500_000_000]


async def test_timeout_waits_for_observed_time() -> None:
    clock = HandClock()
    observed = ObserverClock(clock, absence_s=0.02)
    looks = 0

    async def runs_at_times() -> None:
        nonlocal looks
        while True:
            clock.now_s += 5.0  # each look finds that the process did not run for 5 s
            looks += 1
            await asyncio.sleep(0.001)

    running = asyncio.create_task(runs_at_times())
    with pytest.raises(TimeoutError):
        async with observed.timeout(0.1):
            await asyncio.Event().wait()
    running.cancel()
    assert looks >= 5, "five absences of 5 s count as 20 ms each"


async def test_timeout_does_not_affect_work_that_finishes_in_time() -> None:
    observed = ObserverClock(SystemClock())
    ticking = asyncio.create_task(observed.run())
    async with observed.timeout(3_600.0):
        await asyncio.sleep(0)
    before_ns = observed.monotonic_ns()
    await observed.sleep(0)
    assert observed.monotonic_ns() >= before_ns
    ticking.cancel()


async def test_distant_deadline_needs_few_sleeps() -> None:
    class Sleeper(HandClock):
        sleeps = 0

        async def sleep(self, seconds: float) -> None:
            self.sleeps += 1
            self.now_s += seconds + (40_000.0 if self.sleeps == 1 else 0.0)

    clock = Sleeper()
    observed = ObserverClock(clock)
    until_ns = observed.monotonic_ns() + 600_000 * 1_000_000_000
    while (left_ns := until_ns - observed.monotonic_ns()) > 0:
        await observed.sleep_towards(left_ns / 1e9)
    assert clock.sleeps < 10
    assert clock.now_s >= 100 + 600_000 + 39_998
