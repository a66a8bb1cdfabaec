"""A paused process fences no node: silence counts only while the observer runs."""

from __future__ import annotations

import asyncio

import pytest
from ponor_cluster_simulation.cluster.sim_cluster import SimCluster
from ponor_controller.settings import ControllerSettings
from ponor_kafka.errors import ErrorCode
from ponor_metadata.nouns.nodes import NODES, NodeRole, WalKind

from tests.scenarios.moving_world import MovingWorld

LIVES_S = 60.0
"""Longer than the first session timeouts of a term."""


def _fenced_or_down(cluster: SimCluster) -> list[str]:
    assert cluster.watch.controller is not None
    rows = [row for row in cluster.watch.controller.image[NODES] if row.role is NodeRole.BROKER]
    fenced = [f"{row.node_id} at epoch {row.node_epoch}" for row in rows if row.fenced or row.node_epoch > 1]
    return [*fenced, *(name for name in cluster.brokers if not cluster.processes[name].running)]


@pytest.mark.parametrize("pause_s", [3.0, 8.5, 9.5, 12.0, 20.0, 35.0])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_paused_controller_fences_no_running_broker(seed: int, pause_s: float) -> None:
    async def story(world: MovingWorld) -> None:
        await asyncio.sleep(LIVES_S)
        process = world.cluster.processes["controller"]
        process.pause()
        await asyncio.sleep(pause_s)
        process.resume()
        await asyncio.sleep(30)
        assert not _fenced_or_down(world.cluster)

    MovingWorld(seed, brokers=4, wal=WalKind.OBJECT).tell(story)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_paused_controller_does_not_fence_the_source_of_a_move(seed: int) -> None:
    async def story(world: MovingWorld) -> None:
        await asyncio.sleep(20)
        source = world.leader()
        target = world.other(source)
        process = world.cluster.processes["controller"]
        moving = asyncio.ensure_future(world.move(target, by=target))
        await world.until(lambda: world.moves() > 0)
        process.pause()
        await asyncio.sleep(35)
        process.resume()
        # finished, or cancelled by a source that could not upload
        await world.until(lambda: world.moves() == 0)
        assert (await world.produce(world.leader(), 1)).error_code == ErrorCode.NONE
        assert not _fenced_or_down(world.cluster)
        moving.cancel()

    MovingWorld(seed, brokers=2, wal=WalKind.FILE).tell(story)


def test_a_controller_with_repeated_pauses_still_fences_a_dead_broker() -> None:
    """Pauses shorter than half a session timeout stop the silence clocks without resetting them."""

    async def story(world: MovingWorld) -> None:
        await asyncio.sleep(LIVES_S)
        dead = world.cluster.brokers[0]
        world.cluster.processes[dead].pause()
        process = world.cluster.processes["controller"]
        for _ in range(6):
            await asyncio.sleep(2)
            process.pause()
            await asyncio.sleep(4)
            process.resume()
        controller = world.cluster.watch.controller
        assert controller is not None
        node_id = world.cluster.node_of(dead)
        await world.until(lambda: bool(getattr(controller.image[NODES].get(node_id), "fenced", False)))

    MovingWorld(
        1, brokers=3, wal=WalKind.OBJECT, controller=ControllerSettings(session_timeout_ms=9_000)
    ).tell(story)


def test_a_healed_cut_between_the_controller_and_all_brokers_fences_no_broker() -> None:
    async def story(world: MovingWorld) -> None:
        await asyncio.sleep(LIVES_S)
        network, names = world.simulation.network, world.cluster.brokers
        for name in names:
            network.cut(name, "controller")
            network.cut("controller", name)
        await asyncio.sleep(30)
        # brokers reconnect one after the other; the first could take over the partitions of the others
        network.heal()
        await asyncio.sleep(30)
        assert not _fenced_or_down(world.cluster)

    MovingWorld(1, brokers=4, wal=WalKind.OBJECT).tell(story)
