"""Sessions that break although the broker lives: with the default grace it is back before it is missed; where it is missed all the same, nothing is lost.

Shipped brokers and a controller in one simulated world. Brokers that die are the business of `test_brokers_without_disks`.
"""

from __future__ import annotations

import asyncio

import pytest
from ponor_controller.settings import ControllerSettings
from ponor_kafka.errors import ErrorCode
from ponor_metadata.client.errors import NodeFencedError
from ponor_metadata.nouns.nodes import NODES, NodeRow, WalKind

from tests.scenarios.moving_world import MovingWorld

BREAKS = 40
FAILOVER_S_MAX = 30.0


class World(MovingWorld):
    """Two brokers with their logs in the store, under the controller's defaults; elections are long ago."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, brokers=2, wal=WalKind.OBJECT)

    def node(self, name: str) -> NodeRow:
        """A broker as the controller has it."""
        assert self.cluster.watch.controller is not None
        row = self.cluster.watch.controller.image[NODES].get(self.cluster.node_of(name))
        assert row is not None
        return row

    async def settle(self) -> None:
        """Until a broken session is held against a node."""
        await asyncio.sleep(ControllerSettings().session_timeout_ms / 1000 + 1)


@pytest.mark.parametrize("seed", range(3))
def test_a_broker_whose_connections_break_is_back_before_it_is_missed(seed: int) -> None:
    async def story(world: World) -> None:
        name = world.leader()
        before, leader_epoch = world.node(name), world.row().leader_epoch
        await world.settle()
        for number in range(BREAKS):
            assert world.simulation.network.reset_connections("controller", name)
            assert (await world.produce(name)).error_code == ErrorCode.NONE
            await asyncio.sleep(0.5 + 0.01 * number)
        after = world.node(name)
        assert (after.node_epoch, after.fenced) == (before.node_epoch, False)
        assert (world.leader(), world.row().leader_epoch) == (name, leader_epoch)

    world = World(20 + seed)
    world.tell(lambda _: story(world))


@pytest.mark.parametrize("seed", range(3))
def test_a_broker_that_is_missed_though_it_lives_registers_again_and_nothing_is_lost(seed: int) -> None:
    """Its session breaks, and it finds no way to the controller for longer than the grace, while clients go on producing to it."""

    async def story(world: World) -> None:
        missed = world.leader()
        epoch = world.node(missed).node_epoch
        await world.settle()
        hub = world.simulation.network
        hub.reset_connections("controller", missed)
        for source, target in (("controller", missed), (missed, "controller")):
            hub.cut(source, target)
        acknowledged = 0
        while world.leader() == missed:
            acknowledged += (await world.produce(missed)).error_code == ErrorCode.NONE
        assert acknowledged, "it served while nobody knew better"
        assert world.cluster.processes[missed].running, "it cannot know yet"
        await world.until(world.serves_somewhere, FAILOVER_S_MAX)
        heir = world.leader()
        found = await world.fetch(heir)
        assert (found.error_code, found.high_watermark) == (ErrorCode.NONE, acknowledged)
        hub.heal()
        await world.until(lambda: not world.cluster.processes[missed].running, FAILOVER_S_MAX)
        assert isinstance(world.cluster.processes[missed].failure, NodeFencedError)
        world.cluster.start(missed)
        await world.until(lambda: missed in world.cluster.serving, FAILOVER_S_MAX)
        assert world.node(missed).node_epoch > epoch
        assert (await world.fetch(heir)).high_watermark == acknowledged

    world = World(30 + seed)
    world.tell(lambda _: story(world))
