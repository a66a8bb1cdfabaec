"""Background tasks report every exception; byte budgets keep order; ready files are replaced atomically."""

from __future__ import annotations

import asyncio
import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ponor_runtime.budgets import BudgetExceededError, ByteBudget
from ponor_runtime.ready_file import write_ready_file
from ponor_runtime.tasks import BackgroundTasks
from ponor_runtime.turns import TurnBudget


async def test_task_exception_reaches_the_fail_stop_handler() -> None:
    failures: list[tuple[str, BaseException]] = []
    tasks = BackgroundTasks(lambda what, error: failures.append((what, error)))
    error = ValueError("no")

    async def fails() -> None:
        raise error

    await asyncio.wait([tasks.spawn(fails(), "uploader")])
    await asyncio.sleep(0)
    assert failures == [("uploader", error)]
    assert len(tasks) == 0


async def test_close_cancels_tasks_and_refuses_new_ones() -> None:
    failures: list[str] = []
    tasks = BackgroundTasks(lambda what, _: failures.append(what), tasks_max=2)
    ended = []

    async def waits(number: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(number)

    tasks.spawn(waits(1), "one")
    tasks.spawn(waits(2), "two")
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match=r"'three'.*has 2 tasks"):
        tasks.spawn(waits(3), "three")
    await tasks.close()
    await tasks.close()
    assert ended == [1, 2]
    assert failures == []
    with pytest.raises(RuntimeError, match="closed"):
        tasks.spawn(waits(4), "four")


async def test_budget_grants_waiters_in_arrival_order() -> None:
    budget = ByteBudget("appends", 100, waiters_max=3)
    await budget.acquire(80)
    order = []

    async def wait(size: int) -> None:
        await budget.acquire(size)
        order.append(size)

    waiters = [asyncio.ensure_future(wait(size)) for size in (50, 10, 11)]
    await asyncio.sleep(0)
    assert not budget.try_acquire(1)  # would fit, but earlier callers wait
    with pytest.raises(BudgetExceededError, match="appends: 80 of 100 bytes"):
        await budget.acquire(1)
    waiters[0].cancel()
    await asyncio.gather(*waiters[:1], return_exceptions=True)
    await waiters[1]
    budget.release(80)
    await waiters[2]
    assert order == [10, 11]
    assert budget.held_bytes == 21
    budget.release(21)
    await budget.acquire(1000)
    assert not budget.try_acquire(0)
    budget.release(1000)
    with pytest.raises(AssertionError, match="released more bytes"):
        budget.release(1)


@given(st.lists(st.tuples(st.integers(0, 120), st.booleans()), max_size=40))
def test_budget_never_exceeds_its_limit(requests: list[tuple[int, bool]]) -> None:
    async def run() -> None:
        budget = ByteBudget("any", 100)
        held: list[int] = []

        async def take(size: int) -> None:
            await budget.acquire(size)
            held.append(size)

        tasks = []
        for size, cancel in requests:
            tasks.append(asyncio.ensure_future(take(size)))
            await asyncio.sleep(0)
            if cancel:
                tasks[len(tasks) // 2].cancel()
            assert budget.held_bytes <= 100 or len([size for size in held if size]) <= 1
            if len(held) > 2:
                budget.release(held.pop(0))
        while budget.waiting or held:
            await asyncio.sleep(0)
            if held:
                budget.release(held.pop(0))
            await asyncio.sleep(0)
        await asyncio.gather(*tasks, return_exceptions=True)
        while held:
            budget.release(held.pop())
        assert budget.held_bytes == 0

    asyncio.run(run())


async def test_charge_may_exceed_the_limit_and_blocks_later_callers() -> None:
    budget = ByteBudget("bytes", 10)
    budget.charge(15)
    assert budget.is_full
    assert not budget.try_acquire(1)
    waiting = asyncio.ensure_future(budget.acquire(4))
    await asyncio.sleep(0)
    budget.release(6)
    assert budget.is_full  # a caller waits, and 9 + 4 do not fit
    budget.release(5)
    await waiting
    assert (budget.held_bytes, budget.is_full) == (8, False)


def test_ready_file_holds_the_addresses(tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    write_ready_file(path, {"kafka": "127.0.0.1:9092"})
    write_ready_file(path, {"kafka": "127.0.0.1:9093"})
    content = json.loads(path.read_text())
    assert (content["pid"], content["addresses"]) == (os.getpid(), {"kafka": "127.0.0.1:9093"})
    assert [entry.name for entry in tmp_path.iterdir()] == ["ready.json"]


class SteppedClock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now_ns = 0

    def monotonic_ns(self) -> int:
        return self.now_ns


async def test_work_that_waits_for_a_turn_is_called_in_order() -> None:
    clock: Any = SteppedClock()
    budget = TurnBudget(clock, count_max=2, duration_ns_max=1_000)
    called: list[int] = []

    def work(number: int) -> None:
        budget.spend()
        called.append(number)
        if number == 0:
            budget.call_later(partial(work, 9))
            raise ValueError("a bug in the work of one caller")

    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    for number in range(5):
        budget.call_later(partial(work, number))
    per_turn = []
    while not budget.is_free:
        before = len(called)
        await asyncio.sleep(0)
        per_turn.append(len(called) - before)
    assert called == [0, 1, 2, 3, 4, 9]
    assert max(per_turn) <= 2
    assert len(reported) == 1


async def test_work_that_waits_again_waits_for_the_next_turn() -> None:
    clock: Any = SteppedClock()
    budget = TurnBudget(clock, count_max=10, duration_ns_max=1_000)
    called: list[int] = []

    def again() -> None:
        called.append(len(called))
        if len(called) < 5:
            budget.call_later(again)

    budget.call_later(again)
    for turn in range(1, 6):
        await asyncio.sleep(0)
        assert len(called) == turn
    assert budget.is_free


async def test_a_task_that_waits_for_a_turn_is_not_delayed_by_tasks_that_came_later() -> None:
    """A task that ran before the end of the turn was noted always found the budget spent by another one."""
    clock: Any = SteppedClock()
    budget, order = TurnBudget(clock, count_max=1, duration_ns_max=1_000), list[str]()

    async def work(name: str, count: int) -> None:
        for _ in range(count):
            await budget.wait()
            budget.spend()
            order.append(name)

    once = asyncio.ensure_future(work("once", 1))
    budget.spend()
    await asyncio.gather(once, work("often", 50))
    assert order.index("once") <= 1
    assert order.count("often") == 50


async def test_a_cancelled_wait_for_a_turn_delays_nobody() -> None:
    clock: Any = SteppedClock()
    budget = TurnBudget(clock, count_max=1, duration_ns_max=1_000)
    waits = [asyncio.ensure_future(budget.wait()) for _ in range(3)]
    budget.spend()
    await asyncio.sleep(0)
    waits[0].cancel()
    waits[1].cancel()
    await asyncio.wait_for(waits[2], 5)
    await asyncio.wait_for(budget.wait(), 5)
