"""Virtual time, repeatable order, and processes that crash between two instructions."""

from __future__ import annotations

import asyncio
import threading

import pytest
from ponor_runtime.runtime import Runtime
from ponor_runtime.tasks import BackgroundTasks
from ponor_simulation.loop import NotSimulatableError, SimulationStuckError
from ponor_simulation.process import wait_until
from ponor_simulation.simulation import Simulation, SimulationFailedError


def test_a_virtual_year_takes_no_real_time() -> None:
    simulation = Simulation(1)

    async def run() -> float:
        await asyncio.sleep(365 * 86_400)
        return asyncio.get_running_loop().time()

    assert simulation.run(run()) == 365 * 86_400


def test_timeouts_fire_when_due() -> None:
    simulation = Simulation(1)

    async def run() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3):
                await asyncio.Event().wait()
        assert asyncio.get_running_loop().time() == 3

    simulation.run(run())


def test_timers_fire_in_order_after_many_were_cancelled() -> None:
    simulation = Simulation(1)
    came: list[int] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        timers = {
            at: loop.call_at(at, came.append, at) for at in simulation.chance.sample(range(1, 1_001), 600)
        }
        for at in simulation.chance.sample(
            sorted(timers), 450
        ):  # the majority of many timers: the heap is rebuilt
            timers.pop(at).cancel()
        await asyncio.sleep(500.5)
        assert came == sorted(at for at in timers if at <= 500)
        await asyncio.sleep(501)
        assert came == sorted(timers)

    simulation.run(run())


def wake_order(seed: int, *, shuffle: bool = True) -> list[int]:
    simulation = Simulation(seed, shuffle=shuffle)
    order: list[int] = []

    async def run() -> None:
        gate = asyncio.Event()

        async def wait(number: int) -> None:
            await gate.wait()
            order.append(number)

        async with asyncio.TaskGroup() as tasks:
            for number in range(10):
                tasks.create_task(wait(number))
            await asyncio.sleep(1)
            gate.set()

    simulation.run(run())
    return order


def test_the_order_of_waking_depends_only_on_the_seed() -> None:
    assert wake_order(1) == wake_order(1)
    assert wake_order(1) != wake_order(2)
    assert wake_order(3, shuffle=False) == list(range(10))


def test_waiting_without_a_timer_is_an_error_with_the_trace() -> None:
    simulation = Simulation(7)
    simulation.trace.record(0.0, "subject", "did", "this")
    with pytest.raises(
        SimulationFailedError, match=r"seed 7: SimulationStuckError(.|\n)*subject did this"
    ) as raised:
        simulation.run(asyncio.Event().wait())
    assert isinstance(raised.value.__cause__, SimulationStuckError)


def test_threads_and_sockets_are_refused() -> None:
    simulation = Simulation(1)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        with pytest.raises(NotSimulatableError):
            await asyncio.to_thread(print)
        with pytest.raises(NotSimulatableError):
            await loop.create_connection(asyncio.Protocol, "127.0.0.1", 1)
        with pytest.raises(NotSimulatableError):
            await asyncio.open_connection("127.0.0.1", 1)
        refused: list[bool] = []

        def call() -> None:
            try:
                loop.call_soon_threadsafe(print)
            except NotSimulatableError:
                refused.append(True)

        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        assert refused == [True]

    simulation.run(run())


def test_an_unhandled_exception_of_a_task_fails_the_run() -> None:
    simulation = Simulation(1)

    async def run() -> None:
        async def fail() -> None:
            raise ValueError("not awaited")

        task = asyncio.ensure_future(fail())
        await asyncio.sleep(1)
        del task

    with pytest.raises(SimulationFailedError, match="not awaited"):
        simulation.run(run())


def test_a_crashed_program_runs_no_further_line() -> None:
    simulation = Simulation(1)
    said: list[str] = []

    async def main(runtime: Runtime) -> None:
        async def child() -> None:
            try:
                while True:
                    said.append("tick")
                    await runtime.clock.sleep(1)
            finally:
                said.append("finally")

        asyncio.get_running_loop().call_later(7, said.append, "timer")
        task = asyncio.ensure_future(child())
        try:
            await asyncio.shield(task)
        finally:
            said.append("main finally")

    process = simulation.process("node", main)

    async def run() -> None:
        process.start()
        await asyncio.sleep(3.5)
        process.crash()
        assert not process.running
        await asyncio.sleep(100)
        assert said == ["tick"] * 4
        process.start()
        await asyncio.sleep(1.5)
        assert said == ["tick"] * 6

    simulation.run(run())


def test_a_failed_background_task_stops_its_process_and_no_other() -> None:
    simulation = Simulation(1)

    async def main(runtime: Runtime) -> None:
        tasks = BackgroundTasks(runtime.fail_stop)

        async def fail() -> None:
            await runtime.clock.sleep(2)
            raise OSError("broken")

        if runtime.randomness.below(1) == 0 and runtime.disk is first.disk:
            tasks.spawn(fail(), "uploader")
        await asyncio.Event().wait()

    first, second = simulation.process("first", main), simulation.process("second", main)

    async def run() -> None:
        first.start()
        second.start()
        await wait_until(lambda: not first.running)
        assert str(first.failure) == "broken"
        await asyncio.sleep(10)
        assert second.running

    simulation.run(run())


def test_clocks_of_processes_drift_and_jump() -> None:
    simulation = Simulation(1)

    async def main(runtime: Runtime) -> None:
        await runtime.clock.sleep(10)

    process = simulation.process("node", main)
    process.clock._rate = 2.0

    async def run() -> None:
        wall = process.clock.wall_ms()
        process.start()
        await wait_until(lambda: process.finished)
        assert simulation.loop.time() == pytest.approx(5, abs=0.1)
        assert process.clock.monotonic_ns() == pytest.approx(10e9, rel=0.02)
        process.clock.jump_wall(-60_000)
        assert process.clock.wall_ms() < wall

    simulation.run(run())
