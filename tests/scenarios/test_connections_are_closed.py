"""A client closes the connection to a silent controller before it connects again."""

from __future__ import annotations

import asyncio

from ponor_metadata.nouns.nodes import WalKind

from tests.scenarios.moving_world import MovingWorld

SILENT_S = 40.0
"""Several times the timeout of the first answer."""


def test_clients_close_connections_to_a_silent_controller() -> None:
    async def story(world: MovingWorld) -> None:
        (controller,) = (world.cluster.processes[name] for name in world.cluster.controllers)
        controller.pause()
        await asyncio.sleep(SILENT_S)
        controller.resume()
        await world.until(world.serves_somewhere)
        services = (*world.cluster.brokers, "gc")
        forgotten = [each for each in world.simulation.network.forgotten() if each.startswith(services)]
        assert not forgotten, "every client closes its connection"

    MovingWorld(21, brokers=2, wal=WalKind.OBJECT).tell(story)
