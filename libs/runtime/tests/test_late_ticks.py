"""Late ticks and their causes: thread times of a real thread, division of a lateness, histograms and log
lines."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from ponor_runtime.late_ticks import LINES_NS, MARK_NS, STALL_NS, LateTicks, Shares, shares
from ponor_runtime.process import Process, UnwatchedProcess
from ponor_runtime.system import SystemClock
from ponor_runtime.telemetry import Telemetry
from ponor_runtime.thread_times import OwnThreadTimes, ThreadTimes

LATE = "ponor_controller_tick_late_seconds"
CAUSE = "ponor_controller_tick_late_cause_seconds"
CAUSES = ("ran", "waited", "blocked")
BURN_NS = 60_000_000

needs_linux = pytest.mark.skipif(
    not Path("/proc/self/schedstat").exists(), reason="this kernel does not report CPU wait times"
)


class SetClock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now_ns = 1

    def monotonic_ns(self) -> int:
        return self.now_ns

    def wall_ms(self) -> int:
        return 0

    async def sleep(self, seconds: float) -> None:
        self.now_ns += int(seconds * 1e9)


class ScriptedProcess(UnwatchedProcess):
    """A process whose thread times the test sets; counts the reads."""

    __slots__ = ("asked", "times", "when_asked")

    def __init__(self) -> None:
        self.times = ThreadTimes(0, 0)
        self.asked = 0
        self.when_asked: Callable[[], None] | None = None

    def loop_times(self) -> ThreadTimes:
        self.asked += 1
        times, happens, self.when_asked = self.times, self.when_asked, None
        if happens is not None:
            happens()
        return times


class Measured(UnwatchedProcess):
    """The process of this test."""

    __slots__ = ("_thread",)

    def __init__(self) -> None:
        self._thread = OwnThreadTimes()

    def loop_times(self) -> ThreadTimes:
        return self._thread.read()


class Rig:
    """Create a watch on a stopped clock."""

    def __init__(self, process: Process | None = None) -> None:
        self.clock = SetClock()
        self.process = ScriptedProcess()
        self.telemetry = Telemetry()
        self.ticks = watch(self.clock, process or self.process, self.telemetry)

    def pass_time(self, ms: float, *, ran_ms: float = 0.0, waited_ms: float = 0.0) -> None:
        self.clock.now_ns += int(ms * 1e6)
        ran_ns, waited_ns = self.process.times
        self.process.times = ThreadTimes(ran_ns + int(ran_ms * 1e6), waited_ns + int(waited_ms * 1e6))

    def one_tick(self, late_ms: float, *, ran_ms: float = 0.0) -> None:
        self.ticks.due_in(0.05)
        self.pass_time(50)
        self.pass_time(late_ms, ran_ms=ran_ms)
        self.ticks.came()


def watch(clock: SetClock | SystemClock, process: Process, telemetry: Telemetry) -> LateTicks:
    return LateTicks(clock, process, telemetry, late_us=LATE, cause_us=CAUSE)


def totals_us(telemetry: Telemetry) -> dict[str, int]:
    return {values[0]: histogram.total for values, histogram in telemetry.histograms(CAUSE)}


def during(work: Callable[[], object]) -> tuple[int, ThreadTimes, ThreadTimes]:
    """Run `work` in a new thread; return its duration (ns) and the thread's times before and after."""
    found: list[tuple[int, ThreadTimes, ThreadTimes]] = []

    def run() -> None:
        times = OwnThreadTimes()
        began_ns, before = time.monotonic_ns(), times.read()
        work()
        after = times.read()
        found.append((time.monotonic_ns() - began_ns, before, after))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


def burn() -> None:
    """Use the given CPU time, however long that takes."""
    until_ns = time.thread_time_ns() + BURN_NS
    while time.thread_time_ns() < until_ns:
        pass


def test_busy_thread_ran() -> None:
    _, before, after = during(burn)
    assert after.ran_ns - before.ran_ns >= BURN_NS


def test_sleeping_thread_was_blocked() -> None:
    took_ns, before, after = during(lambda: time.sleep(0.2))
    found = shares(took_ns, before, after)
    assert found.ran_ns < STALL_NS, "a sleep needs a thousandth of that, plus the noise of a slow machine"
    assert found.blocked_ns + found.waited_ns >= 150_000_000


@needs_linux
def test_thread_that_shares_its_cpu_waited() -> None:
    """A busy process is pinned to the same CPU, so neither has it all the time."""
    allowed = os.sched_getaffinity(0)
    ended = threading.Event()

    def work() -> None:
        os.sched_setaffinity(threading.get_native_id(), {min(allowed)})
        # The other process inherits the CPU affinity of this thread.
        pid = os.posix_spawn(sys.executable, [sys.executable, "-c", "while True: pass"], os.environ)
        try:
            times = OwnThreadTimes()
            # The other process may start late; there is no CPU wait before.
            while times.read().waited_ns < STALL_NS and not ended.is_set():
                burn()
        finally:
            os.kill(pid, 9)
            os.waitpid(pid, 0)

    guard = threading.Timer(120, ended.set)
    guard.start()
    took_ns, before, after = during(work)
    guard.cancel()
    found = shares(took_ns, before, after)
    assert found.waited_ns >= STALL_NS - before.waited_ns
    assert sum(found) == took_ns


def test_shares_add_up_to_the_lateness_with_run_time_first() -> None:
    nothing = ThreadTimes(0, 0)
    assert shares(100, nothing, nothing) == Shares(0, 0, 100)
    assert shares(100, nothing, ThreadTimes(30, 20)) == Shares(30, 20, 50)
    assert shares(100, nothing, ThreadTimes(70, 60)) == Shares(70, 30, 0)
    assert shares(100, nothing, ThreadTimes(170, 60)) == Shares(100, 0, 0)


def test_time_before_the_last_mark_is_not_part_of_a_lateness() -> None:
    rig = Rig()
    rig.ticks.due_in(0.05)
    rig.pass_time(40, ran_ms=40)
    rig.ticks.mark()
    rig.pass_time(70, waited_ms=70)
    rig.ticks.came()
    assert totals_us(rig.telemetry) == {"ran": 0, "waited": 60_000, "blocked": 0}


def test_mark_after_the_due_time_takes_no_sample() -> None:
    rig = Rig()
    rig.ticks.due_in(0.05)
    rig.pass_time(49)
    rig.ticks.mark()
    rig.pass_time(41, ran_ms=41)
    rig.ticks.mark()
    rig.pass_time(20, ran_ms=5, waited_ms=5)
    rig.ticks.came()
    assert totals_us(rig.telemetry) == {"ran": 46_000, "waited": 5_000, "blocked": 9_000}


def test_preemption_while_sampling_is_counted() -> None:
    rig = Rig()
    rig.process.when_asked = lambda: rig.pass_time(30, waited_ms=30)
    rig.ticks.due_in(0.05)
    rig.pass_time(49)
    rig.process.when_asked = lambda: rig.pass_time(81, waited_ms=81)
    rig.ticks.mark()
    rig.ticks.came()
    assert totals_us(rig.telemetry) == {"ran": 0, "waited": 80_000, "blocked": 0}


def test_busy_loop_is_sampled_at_intervals_and_a_punctual_tick_is_not() -> None:
    rig = Rig()
    rig.ticks.due_in(0.05)
    asked = rig.process.asked
    for _ in range(1000):
        rig.pass_time(0.05)
        rig.ticks.mark()
    assert rig.process.asked - asked <= 50_000_000 // MARK_NS
    asked = rig.process.asked
    rig.ticks.came()
    assert rig.process.asked == asked
    assert totals_us(rig.telemetry) == dict.fromkeys(CAUSES, 0)


def test_only_lateness_is_recorded_without_thread_times(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(UnwatchedProcess())
    rig.one_tick(300)
    assert [histogram.total for _, histogram in rig.telemetry.histograms(LATE)] == [300_000]
    assert totals_us(rig.telemetry) == {}
    assert not caplog.records


def test_stalls_are_logged_with_their_shares_and_rate_limited(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    with caplog.at_level(logging.WARNING):
        rig.one_tick(49)
        assert not caplog.messages
        for _ in range(4):
            rig.one_tick(80, ran_ms=60)
        rig.pass_time(LINES_NS / 1e6)
        rig.one_tick(90)
    first, second = caplog.messages
    assert "80.0 ms late" in first
    assert "ran 60.0 ms" in first
    assert "blocked 20.0 ms" in first
    assert "90.0 ms late" in second
    assert "3 more" in second


async def test_long_step_of_a_real_loop_counts_as_run_time() -> None:
    telemetry = Telemetry()
    ticks = watch(SystemClock(), Measured(), telemetry)
    ticks.due_in(0.0)
    burn()
    await asyncio.sleep(0)
    ticks.came()
    assert totals_us(telemetry)["ran"] >= BURN_NS // 1000 - 1
