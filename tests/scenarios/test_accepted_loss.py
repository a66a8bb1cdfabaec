"""A recovery without the log of a dead broker closes all of its streams, in several operations."""

from __future__ import annotations

import pytest
from ponor_broker import dead_node

from tests.scenarios.moving_world import MovingWorld
from tests.scenarios.test_brokers_without_disks import FAILOVER_S_MAX
from tests.scenarios.test_stores_of_a_cluster import Rescuer, open_streams

PARTITIONS = 8
PER_OPERATION = 2


def test_all_streams_are_closed_and_all_partitions_move(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, every second operation was left out: the list of open streams became shorter meanwhile."""
    monkeypatch.setattr(dead_node, "STREAMS_PER_CALL_MAX", PER_OPERATION)

    async def story(world: MovingWorld) -> None:
        await world.until(lambda: all(map(world.serves_somewhere, range(PARTITIONS))), FAILOVER_S_MAX)
        dead = world.leader()
        held = open_streams(world, dead)
        assert held > 2 * PER_OPERATION
        world.cluster.processes[dead].crash(power_loss=True)
        rescuer = Rescuer(world, dead, accept_loss=True)
        await rescuer.run()
        assert rescuer.report is not None, rescuer.process.failure
        assert len(rescuer.report.open_ends) == held
        assert rescuer.report.partitions_left == 0
        assert open_streams(world, dead) == 0

    MovingWorld(1, brokers=2).tell(story, partitions=PARTITIONS)
