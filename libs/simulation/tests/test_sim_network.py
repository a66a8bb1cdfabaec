"""The simulated network: the conformance suite of networks, and failures between processes."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from ponor_runtime.network import Connection, ConnectionClosedError
from ponor_runtime.runtime import Runtime
from ponor_simulation.loop import INCARNATION, Incarnation
from ponor_simulation.network import SimNetwork
from ponor_simulation.process import wait_until
from ponor_simulation.simulation import Simulation

from libs.rpc.tests import network_conformance as conformance

ADDRESS = "controller:7000"
METHOD = "/ponor.test.v1.TestService/Test"


@pytest.mark.parametrize("seed", range(5))
def test_conformance(seed: int) -> None:
    simulation = Simulation(seed)

    async def network() -> SimNetwork:
        return SimNetwork(simulation.network, Incarnation("node#1"))

    async def run() -> None:
        await conformance.run_network_conformance(network)

    simulation.run(run())


class Echo:
    """A server that answers, and a client that counts answers and closed connections."""

    def __init__(self, seed: int) -> None:
        self.simulation = Simulation(seed)
        self.server = self.simulation.process("server", self._serve)
        self.client = self.simulation.process("client", self._call)
        self.answers = 0
        self.closed = 0

    def answered_more_than(self, number: int) -> bool:
        return self.answers > number

    def closed_at_least(self, number: int) -> bool:
        return self.closed >= number

    async def _serve(self, runtime: Runtime) -> None:
        async def handle(connection: Connection) -> None:
            incarnation = INCARNATION.get()
            assert incarnation is not None
            assert incarnation.name.startswith("server#")
            while True:
                await connection.send(await connection.receive())

        await runtime.network.listen(ADDRESS, {METHOD: handle})
        await asyncio.Event().wait()

    async def _call(self, runtime: Runtime) -> None:
        while True:
            try:
                connection = await runtime.network.connect(ADDRESS, METHOD)
                for number in range(1_000_000):
                    await connection.send(b"%d" % number)
                    assert await connection.receive() == b"%d" % number
                    self.answers += 1
            except ConnectionClosedError:
                self.closed += 1
                await runtime.clock.sleep(0.1)


def test_peers_detect_a_crash_and_reach_the_restarted_process() -> None:
    echo = Echo(1)

    async def run() -> None:
        echo.server.start()
        echo.client.start()
        for round_number in range(1, 6):
            answers = echo.answers
            await wait_until(partial(echo.answered_more_than, answers + 10))
            echo.server.crash()
            await wait_until(partial(echo.closed_at_least, round_number))
            echo.server.start()
        echo.simulation.network.reset_connections("client", "server")

    echo.simulation.run(run())


def test_a_cut_link_stalls_frames_until_it_heals() -> None:
    echo = Echo(2)

    async def run() -> None:
        echo.server.start()
        echo.client.start()
        await wait_until(lambda: echo.answers > 10)
        echo.simulation.network.cut("server", "client")
        await asyncio.sleep(5)
        stalled = echo.answers
        await asyncio.sleep(60)
        assert echo.answers == stalled
        echo.simulation.network.heal()
        await wait_until(lambda: echo.answers > stalled + 10)
        assert echo.closed == 0

    echo.simulation.run(run())


def test_the_same_seed_delivers_the_same() -> None:
    def digest(seed: int) -> str:
        echo = Echo(seed)

        async def run() -> None:
            echo.server.start()
            echo.client.start()
            await asyncio.sleep(1)

        echo.simulation.run(run())
        return echo.simulation.trace.digest

    assert digest(1) == digest(1) != digest(2)
