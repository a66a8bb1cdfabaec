"""The queue of items with the time of their next attempt."""

from __future__ import annotations

import asyncio

from ponor_broker.coordination.retries import RETRY_S_MAX, RETRY_S_MIN, Retries
from ponor_runtime.runtime import Runtime
from ponor_simulation.simulation import Simulation


def run(story: object) -> None:
    simulation = Simulation(1)
    over = asyncio.Event()

    async def main(runtime: Runtime) -> None:
        try:
            await story(runtime)  # type: ignore[operator]
        finally:
            over.set()

    async def scenario() -> None:
        process = simulation.process("here", main)
        process.start()
        await over.wait()
        assert process.failure is None, process.failure

    simulation.run(scenario())


async def drain(retries: Retries[str], count: int) -> list[str]:
    taken: list[str] = []
    while len(taken) < count:
        await retries.wait()
        taken += retries.take(2)
    return taken


def test_items_are_taken_in_the_order_of_their_times() -> None:
    async def story(runtime: Runtime) -> None:
        retries: Retries[str] = Retries(runtime)
        for item, delay_s in (("c", 0.3), ("a", 0.0), ("d", 0.3), ("b", 0.0), ("e", 0.7)):
            retries.add(item, delay_s)
        assert retries.take(10) == ["a", "b"]
        assert retries.take(10) == []
        assert await drain(retries, 3) == ["c", "d", "e"]

    run(story)


def test_an_earlier_item_wakes_the_task_that_waits() -> None:
    async def story(runtime: Runtime) -> None:
        retries: Retries[str] = Retries(runtime)
        draining = asyncio.ensure_future(drain(retries, 1))
        await runtime.clock.sleep(1)
        retries.add("late", 1_000.0)
        await runtime.clock.sleep(1)
        retries.add("early", 1.0)
        assert await draining == ["early"]
        assert retries.take(1) == []

    run(story)


def test_delayed_items_do_not_delay_those_that_are_due_immediately() -> None:
    """Delayed items may become due as fast as they are taken."""

    async def story(runtime: Runtime) -> None:
        retries: Retries[str] = Retries(runtime)
        for number in range(8):
            retries.add(f"delayed {number}", 0.0)
        for number in range(3):
            retries.add_now(f"now {number}")
        assert retries.take(4) == ["delayed 0", "delayed 1", "now 0", "now 1"]
        assert retries.take(4) == ["delayed 2", "delayed 3", "delayed 4", "now 2"]
        assert retries.take(4) == ["delayed 5", "delayed 6", "delayed 7"]
        assert retries.take(4) == []

    run(story)


def test_the_back_off_grows_to_its_maximum() -> None:
    async def story(runtime: Runtime) -> None:
        delays = []
        for attempts in (1, 2, 3, 10, 1_000):
            retries: Retries[str] = Retries(runtime)
            begun_ns = runtime.clock.monotonic_ns()
            retries.again("item", attempts)
            await drain(retries, 1)
            delays.append((runtime.clock.monotonic_ns() - begun_ns) / 1e9)
        bounds = [RETRY_S_MIN, 2 * RETRY_S_MIN, 4 * RETRY_S_MIN, RETRY_S_MAX, RETRY_S_MAX]
        # Virtual time: the clocks of simulated processes drift, but no machine load is involved.
        assert all(0.4 * bound < delay < 1.1 * bound for delay, bound in zip(delays, bounds, strict=True))

    run(story)
