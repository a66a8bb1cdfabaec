"""A paused process runs nothing and loses nothing; all its events are pending when it resumes."""

from __future__ import annotations

import asyncio

import pytest
from ponor_runtime.network import Connection
from ponor_runtime.runtime import Runtime
from ponor_simulation.simulation import Simulation


async def _tick(runtime: Runtime, seen: list[float]) -> None:
    while True:
        await runtime.clock.sleep(0.1)
        seen.append(asyncio.get_running_loop().time())


def test_timers_wait_for_the_process() -> None:
    simulation, seen = Simulation(1), list[float]()
    process = simulation.process("p", lambda runtime: _tick(runtime, seen))

    async def scenario() -> None:
        process.start()
        await asyncio.sleep(0.55)
        process.pause()
        assert process.paused
        await asyncio.sleep(5.0)
        assert len(seen) == 5
        process.resume()
        await asyncio.sleep(0.25)

    simulation.run(scenario())
    assert seen[5] == pytest.approx(5.55)
    assert len(seen) == 8, "one late timer, and then as before"


def test_messages_wait_for_the_process() -> None:
    simulation, got = Simulation(2), list[bytes]()

    async def serve(runtime: Runtime) -> None:
        async def take(connection: Connection) -> None:
            while True:
                got.append(await connection.receive())

        await runtime.network.listen("server:1", {"m": take})
        await asyncio.Event().wait()

    async def ask(runtime: Runtime) -> None:
        connection = await runtime.network.connect("server:1", "m")
        for number in range(3):
            await connection.send(bytes([number]))
        await asyncio.Event().wait()

    server, client = simulation.process("server", serve), simulation.process("client", ask)

    async def scenario() -> None:
        server.start()
        await asyncio.sleep(0.1)
        server.pause()
        client.start()  # a kernel accepts for a process that does not run
        await asyncio.sleep(10.0)
        assert not got
        server.resume()
        await asyncio.sleep(0.1)

    simulation.run(scenario())
    assert got == [b"\0", b"\1", b"\2"]


def test_a_paused_process_can_crash() -> None:
    simulation, seen = Simulation(3), list[float]()
    process = simulation.process("p", lambda runtime: _tick(runtime, seen))

    async def scenario() -> None:
        process.start()
        await asyncio.sleep(0.15)
        process.pause()
        await asyncio.sleep(1.0)
        process.crash()
        await asyncio.sleep(1.0)
        assert not process.paused
        process.start()
        await asyncio.sleep(0.15)

    simulation.run(scenario())
    assert len(seen) == 2


def test_a_drifting_clock_does_not_jump() -> None:
    simulation = Simulation(4)
    process = simulation.process("p", lambda _: asyncio.sleep(0))

    async def scenario() -> None:
        await asyncio.sleep(10.0)
        before = process.clock.monotonic_ns()
        process.clock.drift(1.1)
        assert abs(process.clock.monotonic_ns() - before) < 1_000
        await asyncio.sleep(10.0)
        assert process.clock.monotonic_ns() - before == pytest.approx(11e9, rel=1e-6)

    simulation.run(scenario())
