"""Moves and drains with three real controllers and their brokers, in virtual time: after any
failure, each partition has one leader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from ponor.controller.v1 import session_service_pb2 as wire
from ponor_metadata.client.cluster_client import ClusterClient
from ponor_metadata.nouns.streams import STREAMS
from ponor_metadata.nouns.topics import MOVES, MOVES_FROM
from ponor_runtime.runtime import Runtime

from services.controller.tests.moving_broker import SETTINGS, MovesWorld
from services.controller.tests.quorum_world import ADDRESSES

ANNOUNCED_MS = 8_000
TIMEOUT_S = SETTINGS.reelection_timeout_ms / 1000


def tell(story: Callable[[MovesWorld], Awaitable[None]], *, partitions: int = 1, seed: int = 1) -> None:
    """Run a story in a world whose brokers have opened everything."""
    world = MovesWorld(seed)

    async def scenario() -> None:
        await world.start(partitions)
        await story(world)

    world.world.simulation.run(scenario())


def _now_s(world: MovesWorld) -> float:
    clients = world.brokers[0].clients
    assert clients is not None
    return clients.runtime.clock.monotonic_ns() / 1e9


def test_a_partition_moves_there_and_back() -> None:
    async def story(world: MovesWorld) -> None:
        source, target = world.leader(), world.others()[0]
        for epoch, broker in ((1, target), (2, source), (3, target)):
            began_s = _now_s(world)
            await world.begin(0, broker)
            await world.until(lambda epoch=epoch: world.is_open() and world.partition().leader_epoch == epoch)
            assert world.leader() is broker
            assert _now_s(world) - began_s < TIMEOUT_S, "no timeout was needed"

    tell(story)


def test_a_timeout_elects_the_target_when_the_source_requests_no_election() -> None:
    async def story(world: MovesWorld) -> None:
        source, target = world.leader(), world.others()[0]
        source.asks = False
        began_s = _now_s(world)
        await world.begin(0, target)
        await world.until(lambda: world.leader() is target and world.is_open())
        assert world.partition().leader_epoch == 1
        assert TIMEOUT_S <= _now_s(world) - began_s < 2 * TIMEOUT_S

    tell(story)


@pytest.mark.parametrize("asks", [True, False])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_controllers_fail_between_any_two_steps(seed: int, asks: bool) -> None:
    async def story(world: MovesWorld) -> None:
        source, target = world.leader(), world.others()[0]
        source.closes = source.asks = False
        await world.begin(0, target)
        await world.crash_leader()
        move = world.move()
        assert move is not None
        source.closes = True
        source.poke()
        await world.until(lambda: not world.is_open())
        await world.crash_leader()
        if asks:
            source.asks = True
            source.poke()
            await world.crash_leader()
        await world.until(lambda: world.leader() is target and world.is_open())
        assert world.partition().leader_epoch == 1, "elected exactly once"
        assert world.move() is None

    tell(story, seed=seed)


def test_a_new_leader_fences_a_source_that_was_stuck_under_the_old_one() -> None:
    """A stuck source runs, sends heartbeats, and does not close. No other process closes its streams."""

    async def story(world: MovesWorld) -> None:
        source, target = world.leader(), world.others()[0]
        source.closes = source.asks = False
        began_s = _now_s(world)
        await world.begin(0, target)
        await world.crash_leader()
        await world.until(lambda: world.is_fenced(source))
        assert _now_s(world) - began_s >= 2 * TIMEOUT_S
        partition = world.partition()
        assert (partition.leader_id, partition.leader_epoch) == (source.node_id, 0)
        assert world.is_open(), "the data in its log is not lost"
        source.closes = source.asks = True
        process = world.processes[source.number]
        if process.running:
            process.crash()
        process.start()
        await world.until(lambda: not world.is_fenced(source) and world.partition().leader_epoch == 1)
        assert world.leader() is source, "its own restart recovers it, and keeps it"

    tell(story)


@pytest.mark.parametrize("closed", [False, True])
def test_the_target_dies_before_the_election(closed: bool) -> None:
    async def story(world: MovesWorld) -> None:
        source, target = world.leader(), world.others()[0]
        source.asks, source.closes = False, closed
        await world.begin(0, target)
        if closed:
            await world.until(lambda: not world.is_open())
        began_s = _now_s(world)
        world.processes[target.number].crash()
        await world.until(lambda: world.move() is None and world.is_open())
        assert world.leader() is source
        assert world.partition().leader_epoch == (1 if closed else 0)
        assert _now_s(world) - began_s < TIMEOUT_S, "its session broke, so no timeout is needed"

    tell(story)


@pytest.mark.parametrize("fails", [False, True])
def test_a_thousand_partitions_are_drained_in_waves(fails: bool) -> None:
    async def story(world: MovesWorld) -> None:
        source = world.brokers[0]
        others = world.led()
        await source.do(set_drain=wire.SetDrain(node_id=source.node_id, draining=True))
        if fails:
            await world.until(lambda: world.led()[0] < others[0] - 100)
            await world.crash_leader()
        await world.until(lambda: world.led()[0] == 0 and not len(world.image[MOVES]), timeout_s=120)
        await world.until(lambda: all(world.is_open(number) for number in range(0, 1_000, 50)))
        after = world.led()
        assert after[1] + after[2] == 1_000
        assert abs(after[1] - after[2]) <= 2
        assert 64 <= source.in_flight_max <= SETTINGS.drain_moves_in_flight_max
        assert not world.is_fenced(source)
        loose = [row for row in world.image[STREAMS] if row.open and row.node_id == source.node_id]
        assert loose == []
        await source.do(leave_cluster=wire.LeaveCluster())
        await world.until(lambda: world.is_fenced(source))

    tell(story, partitions=1_000)


def test_a_drain_cancels_moves_to_a_lost_target() -> None:
    async def story(world: MovesWorld) -> None:
        source, lost, kept = world.brokers
        source.closes = source.asks = False
        await source.do(set_drain=wire.SetDrain(node_id=source.node_id, draining=True))
        await world.until(lambda: len(world.image[MOVES].find(MOVES_FROM, source.node_id)) == 4)
        world.processes[lost.number].crash()
        await world.until(
            lambda: (
                all(row.target_id == kept.node_id for row in world.image[MOVES])
                and len(world.image[MOVES]) == 4
            )
        )
        source.closes = source.asks = True
        source.poke()
        await world.until(lambda: world.led()[0] == 0)
        assert world.led()[2] == 8

    tell(story, partitions=12)


def test_no_broker_drains_while_the_cluster_stops() -> None:
    world = MovesWorld(4)
    led = asyncio.Event()
    announced: list[int] = []

    async def announce(runtime: Runtime) -> None:
        await led.wait()
        client = ClusterClient(runtime.network, runtime.clock, ADDRESSES)
        announced.append(await client.announce_stop(ANNOUNCED_MS, timeout_s=10))

    world.world.simulation.process("tool", announce)

    async def story() -> None:
        await world.start(6)
        led.set()
        await world.until(lambda: bool(announced) and world.image.index >= announced[0])
        source, began_s = world.brokers[0], _now_s(world)
        await source.do(set_drain=wire.SetDrain(node_id=source.node_id, draining=True))
        await world.crash_leader()
        await asyncio.sleep(1)
        assert (world.led()[0], len(world.image[MOVES])) == (2, 0), "it is about to be stopped, not drained"
        await world.until(lambda: world.led()[0] == 0)
        assert _now_s(world) - began_s >= ANNOUNCED_MS / 1000 - 0.5, "the announcement had ended"

    world.world.simulation.run(story())
