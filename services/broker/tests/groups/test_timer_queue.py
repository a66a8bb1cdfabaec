"""Timers fire once, in order, and not before their time."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ponor_broker.groups.timers import TimerQueue
from ponor_runtime.tasks import BackgroundTasks


def fail(what: str, error: BaseException) -> None:
    raise AssertionError(what) from error


@pytest.fixture
def clock(world_type: Any) -> Any:
    from ponor_broker.groups.settings import GroupSettings

    return world_type(GroupSettings(offsets_topic_partitions=1)).clock


async def test_a_timer_can_be_moved_later_and_earlier_and_cancelled(clock: Any) -> None:
    tasks = BackgroundTasks(fail)
    timers, fired = TimerQueue(clock, tasks), []
    for name, delay_ms in [("a", 100), ("b", 50), ("c", 70), ("d", 60)]:
        timers.set(name, delay_ms, lambda name=name: fired.append((name, clock.now_ns // 1_000_000 - 5_000)))
    await clock.pass_ms(40)
    timers.set("b", 50, lambda: fired.append(("b later", clock.now_ns // 1_000_000 - 5_000)))
    timers.set("a", 5, lambda: fired.append(("a sooner", clock.now_ns // 1_000_000 - 5_000)))
    timers.cancel("c")
    await clock.pass_ms(200)
    assert fired == [("a sooner", 45), ("d", 60), ("b later", 90)]
    assert not len(timers)
    await tasks.close()


async def test_a_callback_may_set_the_same_timer_again(clock: Any) -> None:
    tasks = BackgroundTasks(fail)
    timers, fired = TimerQueue(clock, tasks), []

    def tick() -> None:
        fired.append(clock.now_ns)
        if len(fired) < 3:
            timers.set("tick", 10, tick)

    timers.set("tick", 10, tick)
    await clock.pass_ms(100)
    assert [ns // 1_000_000 for ns in fired] == [5_010, 5_020, 5_030]
    await tasks.close()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 30), st.integers(0, 20)), max_size=25))
def test_only_the_newest_setting_of_a_timer_counts(steps: list[tuple[str, int, int]]) -> None:
    import asyncio

    from ponor_broker.groups.settings import GroupSettings

    async def run() -> None:
        clock = make_world(GroupSettings(offsets_topic_partitions=1)).clock
        tasks = BackgroundTasks(fail)
        timers, fired, model, expected = TimerQueue(clock, tasks), [], {}, []
        now_ms = 0
        for key, delay_ms, pause_ms in steps:
            timers.set(key, delay_ms, lambda key=key: fired.append((clock.now_ns // 1_000_000 - 5_000, key)))
            model[key] = now_ms + delay_ms
            await clock.pass_ms(pause_ms)
            now_ms += pause_ms
            expected += [(model.pop(due), due) for due in list(model) if model[due] <= now_ms]
        await clock.pass_ms(100)
        expected += [(at, key) for key, at in model.items()]
        assert sorted(fired) == sorted(expected)
        assert fired == sorted(fired, key=lambda entry: entry[0])
        await tasks.close()

    asyncio.run(run())


make_world: Any = None


@pytest.fixture(autouse=True)
def _world(world_type: Any) -> None:
    global make_world
    make_world = world_type
