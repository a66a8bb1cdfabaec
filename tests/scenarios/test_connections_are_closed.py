"""Whoever connects to a controller that does not answer hangs up before it connects again."""

from __future__ import annotations

import asyncio

from ponor_metadata.nouns.nodes import WalKind

from tests.scenarios.moving_world import MovingWorld

SILENT_S = 40.0
"""Several times as long as anybody waits for the first answer."""


def test_nobody_leaves_a_connection_to_a_silent_controller_open() -> None:
    async def story(world: MovingWorld) -> None:
        (controller,) = (world.cluster.processes[name] for name in world.cluster.controllers)
        controller.pause()
        await asyncio.sleep(SILENT_S)
        controller.resume()
        await world.until(world.serves_somewhere)
        services = (*world.cluster.brokers, "gc")
        forgotten = [each for each in world.simulation.network.forgotten() if each.startswith(services)]
        assert not forgotten, "whoever connects closes the connection"

    MovingWorld(21, brokers=2, wal=WalKind.OBJECT).tell(story)
