"""A dead broker is unregistered, and its node id is assigned to a new process at a higher epoch. In
virtual time.
"""

from __future__ import annotations

import pytest
from ponor_metadata.client.cluster_client import ClusterClient
from ponor_rpc.errors import OperationError
from ponor_simulation.simulation import SimulationFailedError

from tests.scenarios.test_brokers_without_disks import World
from tests.simulation.mutants.table import MUTANTS

ATTEMPTS_MAX = 60


async def unregister(world: World, name: str) -> None:
    """Retry until the controllers have reassigned its partitions and its log."""
    assert world._runtime is not None
    runtime = world._runtime
    client = ClusterClient(runtime.network, runtime.clock, world.cluster.addresses)
    for _ in range(ATTEMPTS_MAX):
        try:
            await client.unregister_node(world.cluster.node_of(name), timeout_s=10)
        except OperationError:
            await runtime.clock.sleep(1)
        else:
            return
    raise AssertionError(f"{name} was not unregistered")


async def a_broker_dies_and_its_id_is_used_again(world: World) -> None:
    dead = world.leader()
    await world.fill(dead)
    before = world.node(dead).node_epoch
    world.cluster.processes[dead].crash()
    await world.taken_over(dead)
    await unregister(world, dead)
    world.cluster.start(dead)
    await world.until(lambda: world.cluster.is_serving, 60.0)
    assert world.node(dead).node_epoch > before, "epochs of a node id never restart"
    await world.fill(world.leader())
    await world.holds(world.leader(), 12)


def test_a_reused_node_id_gets_a_higher_epoch_and_no_data_is_lost() -> None:
    World(3).happen(a_broker_dies_and_its_id_is_used_again)


def test_a_registration_that_restarts_the_epochs_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS["unregistration_forgets_epochs"].plant(monkeypatch)
    with pytest.raises(SimulationFailedError, match="never restart"):
        World(3).happen(a_broker_dies_and_its_id_is_used_again)
