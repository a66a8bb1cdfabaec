"""Connections to several brokers: sharing, brokers that come, go and move, bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from ponor_broker.peers import connection_pool
from ponor_broker.peers.connection_pool import PeerConnections, PeerUnavailableError
from ponor_kafka.message import Message
from ponor_kafka.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ponor_runtime.network import ConnectionClosedError
from ponor_runtime.runtime import Runtime
from ponor_simulation.process import SimProcess
from ponor_simulation.simulation import Simulation

from services.broker.tests.peers.peer_kit import KAFKA, Directory, listening


class World:
    """Brokers 1 and 2, which answer with their number, and the pool of another one."""

    def __init__(self, seed: int) -> None:
        self.simulation = Simulation(seed)
        self.directory = Directory({1: "b1", 2: "b2"})
        self.brokers = {node_id: self._broker(node_id) for node_id in (1, 2)}
        self.connects = 0
        self.connect_s = 0.0
        self.pool: PeerConnections

    def _broker(self, node_id: int) -> SimProcess:
        async def answer(*_: object) -> Message:
            return ApiVersionsResponse(node_id)

        return self.simulation.process(f"b{node_id}", listening(f"b{node_id}", answer))

    async def ask(self, node_id: int) -> int:
        connection = await self.pool.connection(node_id)
        answer = await connection.ask(ApiVersionsRequest(), 3, ApiVersionsResponse, timeout_s=2.0)
        return answer.error_code


def run(story: Callable[[World], Awaitable[None]], seed: int = 1, *, start: tuple[int, ...] = (1, 2)) -> None:
    world = World(seed)
    over = asyncio.Event()

    async def main(runtime: Runtime) -> None:
        async def connect(address: str) -> object:
            world.connects += 1
            await asyncio.sleep(world.connect_s)
            return await runtime.network.connect(address, KAFKA)

        world.pool = PeerConnections(connect, world.directory, runtime, client_id=str)  # type: ignore[arg-type]
        try:
            await story(world)
        finally:
            await world.pool.close()
            over.set()

    async def scenario() -> None:
        for node_id in start:
            world.brokers[node_id].start()
        await asyncio.sleep(0.1)
        here = world.simulation.process("here", main)
        here.start()
        await over.wait()
        assert here.failure is None, here.failure
        assert not world.simulation.network.forgotten()

    world.simulation.run(scenario())


def test_all_callers_share_one_connection_per_broker() -> None:
    async def story(world: World) -> None:
        answers = await asyncio.gather(*(world.ask(1 + number % 2) for number in range(20)))
        assert answers == [1, 2] * 10
        assert world.connects == 2

    run(story)


def test_an_unknown_broker_is_refused_at_once() -> None:
    async def story(world: World) -> None:
        with pytest.raises(PeerUnavailableError):
            await world.pool.connection(3)
        assert world.connects == 0

    run(story)


def test_a_broker_that_is_down_is_refused_and_found_when_it_starts() -> None:
    async def story(world: World) -> None:
        for _ in range(5):
            with pytest.raises(PeerUnavailableError):
                await world.pool.connection(1)
        world.brokers[1].start()
        while True:
            try:
                assert await world.ask(1) == 1
                break
            except PeerUnavailableError:
                continue
        # Attempts without a pause would be thousands in this time.
        assert world.connects < 20

    run(story, start=())


def test_a_broker_that_does_not_accept_the_connection_in_time_is_refused_with_the_reason() -> None:
    async def story(world: World) -> None:
        world.connect_s = 60.0
        with pytest.raises(PeerUnavailableError, match=r"b1:9092 .*: not connected after \d+ s"):
            await world.pool.connection(1)

    run(story)


@pytest.mark.parametrize("seed", range(5))
def test_a_broker_that_crashes_is_connected_again(seed: int) -> None:
    async def story(world: World) -> None:
        assert await world.ask(1) == 1
        world.brokers[1].crash()
        await asyncio.sleep(world.simulation.chance.uniform(0, 0.01))
        world.brokers[1].start()
        for _ in range(100):
            try:
                assert await world.ask(1) == 1
                return
            except (PeerUnavailableError, ConnectionClosedError):
                await asyncio.sleep(0.05)
        raise AssertionError("the broker was not reached again")

    run(story, seed)


def test_requests_to_a_fenced_broker_fail_when_the_image_shows_it() -> None:
    async def story(world: World) -> None:
        connection = await world.pool.connection(1)
        world.simulation.network.cut("here", "b1")
        asking = asyncio.ensure_future(
            connection.ask(ApiVersionsRequest(), 3, ApiVersionsResponse, timeout_s=1_000.0)
        )
        await asyncio.sleep(0.5)
        assert not asking.done()
        del world.directory.hosts[1]
        world.pool.image_changed()
        with pytest.raises(ConnectionClosedError):
            await asking

    run(story)


def test_callers_that_wait_for_a_fenced_broker_are_refused_when_the_image_shows_it() -> None:
    async def story(world: World) -> None:
        waiting = asyncio.ensure_future(world.pool.connection(1))
        await asyncio.sleep(0.000_001)  # less than any connection attempt takes
        del world.directory.hosts[1]
        world.pool.image_changed()
        with pytest.raises(PeerUnavailableError):
            await waiting

    run(story)


def test_a_broker_with_another_address_gets_a_new_connection() -> None:
    async def story(world: World) -> None:
        old = await world.pool.connection(1)
        world.directory.hosts[1] = "b2"
        assert await world.ask(1) == 2
        await old.wait_closed()
        assert world.connects == 2

    run(story)


def test_the_callers_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_pool, "WAITING_MAX", 3)

    async def story(world: World) -> None:
        waiting = [asyncio.ensure_future(world.ask(1)) for _ in range(3)]
        await asyncio.sleep(0.000_001)  # less than any connection attempt takes
        with pytest.raises(PeerUnavailableError, match="3 requests already wait"):
            await world.pool.connection(1)
        assert await asyncio.gather(*waiting) == [1, 1, 1]

    run(story)
