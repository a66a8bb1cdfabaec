"""Broken sessions of running brokers: with the default grace period, a broker reconnects before it
is suspected; otherwise it is replaced without data loss.

Real brokers and a controller in one simulated world. `test_brokers_without_disks` covers dead
brokers.
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
    """Two brokers with object WALs and the controller's default settings, long after the election."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, brokers=2, wal=WalKind.OBJECT)

    def node(self, name: str) -> NodeRow:
        """The controller's row of a broker."""
        assert self.cluster.watch.controller is not None
        row = self.cluster.watch.controller.image[NODES].get(self.cluster.node_of(name))
        assert row is not None
        return row

    async def settle(self) -> None:
        """Wait until a broken session makes a node suspected."""
        await asyncio.sleep(ControllerSettings().session_timeout_ms / 1000 + 1)


@pytest.mark.parametrize("seed", range(3))
def test_a_broker_reconnects_before_it_is_suspected(seed: int) -> None:
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
def test_a_running_broker_that_was_suspected_registers_again_without_data_loss(seed: int) -> None:
    """Its session breaks, and it cannot reach the controller for longer than the grace period,
    while clients produce to it.
    """

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
        assert acknowledged, "it served before it detected the break"
        assert world.cluster.processes[missed].running, "not detected yet"
        await world.until(world.serves_somewhere, FAILOVER_S_MAX)
        successor = world.leader()
        found = await world.fetch(successor)
        assert (found.error_code, found.high_watermark) == (ErrorCode.NONE, acknowledged)
        hub.heal()
        await world.until(lambda: not world.cluster.processes[missed].running, FAILOVER_S_MAX)
        assert isinstance(world.cluster.processes[missed].failure, NodeFencedError)
        world.cluster.start(missed)
        await world.until(lambda: missed in world.cluster.serving, FAILOVER_S_MAX)
        assert world.node(missed).node_epoch > epoch
        assert (await world.fetch(successor)).high_watermark == acknowledged

    world = World(30 + seed)
    world.tell(lambda _: story(world))
