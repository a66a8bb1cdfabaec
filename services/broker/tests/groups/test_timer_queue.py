"""Timers fire once, in order, and never early."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from ponor_broker.coordination.timers import FIRED_PER_TURN, TimerQueue
from ponor_runtime.tasks import BackgroundTasks


def fail(what: str, error: BaseException) -> None:
    raise AssertionError(what) from error


class Recorder:
    """Fired timers and their times in ms since the start."""

    def __init__(self, clock: Any) -> None:
        self.clock = clock
        self.started_ns = clock.now_ns
        self.fired: list[tuple[int, str]] = []

    def note(self, name: str) -> None:
        self.fired.append(((self.clock.now_ns - self.started_ns) // 1_000_000, name))


async def test_a_timer_can_be_moved_later_and_earlier_and_cancelled(clock_type: Any) -> None:
    clock, tasks = clock_type(), BackgroundTasks(fail)
    timers, recorder = TimerQueue(clock, tasks), Recorder(clock)
    for name, delay_ms in [("a", 100), ("b", 50), ("c", 70), ("d", 60)]:
        timers.set(name, delay_ms, partial(recorder.note, name))
    await clock.pass_ms(40)
    timers.set("b", 50, partial(recorder.note, "b later"))
    timers.set("a", 5, partial(recorder.note, "a sooner"))
    timers.cancel("c")
    await clock.pass_ms(200)
    assert recorder.fired == [(45, "a sooner"), (60, "d"), (90, "b later")]
    assert not len(timers)
    await tasks.close()


async def test_a_callback_may_set_the_same_timer_again(clock_type: Any) -> None:
    clock, tasks = clock_type(), BackgroundTasks(fail)
    timers, recorder = TimerQueue(clock, tasks), Recorder(clock)

    def tick() -> None:
        recorder.note("tick")
        if len(recorder.fired) < 3:
            timers.set("tick", 10, tick)

    timers.set("tick", 10, tick)
    await clock.pass_ms(100)
    assert [at_ms for at_ms, _ in recorder.fired] == [10, 20, 30]
    await tasks.close()


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 30), st.integers(0, 20)), max_size=25))
def test_setting_a_timer_again_replaces_it(clock_type: Any, steps: list[tuple[str, int, int]]) -> None:
    async def run() -> None:
        clock, tasks = clock_type(), BackgroundTasks(fail)
        timers, recorder = TimerQueue(clock, tasks), Recorder(clock)
        deadlines: dict[str, int] = {}
        expected: list[tuple[int, str]] = []
        now_ms = 0
        for name, delay_ms, pause_ms in steps:
            timers.set(name, delay_ms, partial(recorder.note, name))
            deadlines[name] = now_ms + delay_ms
            await clock.pass_ms(pause_ms)
            now_ms += pause_ms
            due = [name for name, at_ms in deadlines.items() if at_ms <= now_ms]
            expected += [(deadlines.pop(name), name) for name in due]
        await clock.pass_ms(100)
        expected += [(at_ms, name) for name, at_ms in deadlines.items()]
        assert sorted(recorder.fired) == sorted(expected)
        assert recorder.fired == sorted(recorder.fired, key=lambda entry: entry[0])
        await tasks.close()

    asyncio.run(run())


async def test_a_pause_of_the_coordinator_does_not_expire_members(clock_type: Any) -> None:
    """Heartbeats that arrived during a pause are read before the timer fires."""
    clock, tasks = clock_type(), BackgroundTasks(fail)
    timers, recorder = TimerQueue(clock, tasks), Recorder(clock)
    timers.set("session", 10_000, partial(recorder.note, "session"))
    await clock.pass_ms(9_000)
    await clock.be_absent_ms(30_000)
    assert recorder.fired == []
    timers.set("session", 10_000, partial(recorder.note, "session"))
    await clock.pass_ms(10_000)
    assert [name for _, name in recorder.fired] == ["session"]
    await tasks.close()


async def test_cancelled_and_moved_timers_leave_few_entries(clock_type: Any) -> None:
    """A rebalance timeout may be 24 days, and a client may start rebalances in a loop."""
    clock, tasks = clock_type(), BackgroundTasks(fail)
    timers, recorder = TimerQueue(clock, tasks), Recorder(clock)
    timers.set("due", 50, partial(recorder.note, "due"))
    for number in range(10_000):
        timers.set("join", (1 << 31) - 1, partial(recorder.note, "join"))
        timers.cancel("join")
        timers.set("session", 1_800_000 - number, partial(recorder.note, "session"))
    assert len(timers) == 2
    assert len(timers._heap) < 2_000
    await clock.pass_ms(100)
    assert recorder.fired == [(50, "due")]
    await tasks.close()


async def test_timers_that_are_due_together_fire_in_several_turns(clock_type: Any) -> None:
    clock, tasks = clock_type(), BackgroundTasks(fail)
    timers = TimerQueue(clock, tasks)
    turn, fired_in = 0, []

    def next_turn() -> None:
        nonlocal turn
        turn += 1
        if turn < 200:
            asyncio.get_running_loop().call_soon(next_turn)

    for number in range(10 * FIRED_PER_TURN):
        timers.set(number, 50, lambda: fired_in.append(turn))
    await clock.settle()
    clock.now_ns += 50_000_000
    next_turn()
    await clock.pass_ms(1)
    await clock.settle()
    assert len(fired_in) == 10 * FIRED_PER_TURN
    assert max(Counter(fired_in).values()) <= FIRED_PER_TURN
    await tasks.close()
