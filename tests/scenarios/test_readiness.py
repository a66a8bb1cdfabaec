"""Readiness of processes is withdrawn and restored in time. In virtual time, because the limits
come from the protocol and not from the machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from ponor_broker.settings import BrokerSettings
from ponor_cluster_simulation.cluster.sim_cluster import SimCluster
from ponor_controller.settings import ControllerSettings
from ponor_metadata.nouns.nodes import WalKind
from ponor_runtime.health import POLL_INTERVAL_S
from ponor_simulation.process import wait_until
from ponor_simulation.simulation import Simulation, SimulationFailedError

from tests.scenarios.moving_world import with_small_logs
from tests.simulation.mutants.table import MUTANTS

NOTICED_S_MAX = 5.0 - POLL_INTERVAL_S
"""A probe must fail within 5 s; conditions are evaluated every `POLL_INTERVAL_S`."""
START_S_MAX = 60.0
Story = Callable[["World"], Awaitable[None]]


class World:
    """Three controllers, two brokers without disks, a compactor and a garbage collector."""

    def __init__(self, seed: int) -> None:
        self.simulation = Simulation(seed)
        self.cluster = SimCluster(
            self.simulation,
            with_small_logs(BrokerSettings(), ControllerSettings()),
            controllers=3,
            brokers=2,
            wal=WalKind.OBJECT,
            compactors=1,
        )

    def tell(self, story: Story) -> None:
        async def scenario() -> None:
            self.cluster.start_all()
            await wait_until(lambda: self.cluster.is_serving and self.all_ready(), timeout_s=START_S_MAX)
            await story(self)
            self.simulation.network.heal()
            await wait_until(lambda: self.cluster.is_serving and self.all_ready(), timeout_s=START_S_MAX)
            self.cluster.check_alive()

        with self.cluster.watch.on():
            self.simulation.run(scenario())

    def unmet(self, name: str) -> dict[str, str]:
        runtime = self.cluster.processes[name].runtime
        assert runtime is not None
        return dict(runtime.health.unmet())

    def all_ready(self) -> bool:
        return not any(self.unmet(name) for name in self.cluster.processes)

    def cut_off(self, name: str) -> None:
        for other in self.cluster.processes:
            if other != name:
                self.simulation.network.cut(name, other)
                self.simulation.network.cut(other, name)

    def follower(self) -> str:
        return next(name for name in self.cluster.controllers if name != self.cluster.leader)


def cut_off_is_noticed(name_of: Callable[[World], str], condition: str) -> Story:
    async def story(world: World) -> None:
        name = name_of(world)
        world.cut_off(name)
        await asyncio.sleep(NOTICED_S_MAX)
        assert condition in world.unmet(name), world.unmet(name)
        others = [each for each in world.cluster.processes if each != name]
        assert not [each for each in others if world.unmet(each)], "other processes are not affected"

    return story


@pytest.mark.parametrize("seed", range(3))
def test_a_broker_without_controllers_becomes_unready_within_five_seconds(seed: int) -> None:
    World(seed).tell(cut_off_is_noticed(lambda world: world.cluster.brokers[1], "metadata"))


def test_a_broker_that_ignores_the_age_of_its_metadata_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS["readiness_ignores_currency"].plant(monkeypatch)
    with pytest.raises(SimulationFailedError, match="'metadata' in"):
        World(0).tell(cut_off_is_noticed(lambda world: world.cluster.brokers[1], "metadata"))


@pytest.mark.parametrize("name", ["gc", "compactor-0"])
def test_a_worker_without_a_session_becomes_unready_within_five_seconds(name: str) -> None:
    World(7).tell(cut_off_is_noticed(lambda _: name, "session"))


@pytest.mark.parametrize("seed", range(3))
def test_a_controller_without_a_leader_becomes_unready_within_five_seconds(seed: int) -> None:
    World(seed).tell(cut_off_is_noticed(World.follower, "quorum"))


def test_a_lagging_controller_becomes_unready() -> None:
    async def story(world: World) -> None:
        follower = world.cluster.watch.controllers[world.follower()]
        driver = follower.driver
        driver.heard_commit_index = driver.applied_index + 10_000
        assert list(world.unmet(world.follower())) == ["log"]
        driver.heard_commit_index = driver.applied_index

    World(4).tell(story)


def test_a_controller_receives_the_leaders_commit_index() -> None:
    async def story(world: World) -> None:
        leader = world.cluster.leader
        assert leader is not None
        committed = world.cluster.watch.controllers[leader].driver.applied_index
        assert committed > 0
        for name in world.cluster.controllers:
            if name != leader:
                driver = world.cluster.watch.controllers[name].driver
                await wait_until(lambda d=driver: d.heard_commit_index >= committed, timeout_s=5)  # type: ignore[misc]

    World(5).tell(story)


def test_a_fenced_broker_is_not_ready() -> None:
    async def story(world: World) -> None:
        name = world.cluster.brokers[0]
        world.cut_off(name)
        await wait_until(lambda: "fence" in world.unmet(name), timeout_s=30)
        assert "silence of the leading controller" in world.unmet(name)["fence"]
        # The controllers fence it, so it stops when it is connected again.
        world.cluster.processes[name].crash()
        world.cluster.start(name)

    World(6).tell(story)
