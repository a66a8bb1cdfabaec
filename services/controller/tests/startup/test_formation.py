"""Formatting is explicit, every directory gets its own id, and a lost directory is never formatted again."""

from __future__ import annotations

import asyncio
import logging
from pathlib import PurePosixPath

import pytest
from ponor_controller.app import run
from ponor_controller.consensus.errors import WrongDirectoryError
from ponor_controller.options import ControllerOptions
from ponor_metadata.nouns.cluster import cluster_of
from ponor_metadata.nouns.keys import KEYS
from ponor_metadata.nouns.quorum import QUORUM
from ponor_runtime.runtime import Runtime
from ponor_simulation.disk_state import DiskState
from ponor_simulation.process import wait_until
from ponor_simulation.simulation import Simulation

from services.controller.tests.quorum_rig import DATA, QuorumRig, Writer


def _cut(rig: QuorumRig, name: str) -> None:
    for other in (process.name for process in rig.processes if process.name != name):
        rig.simulation.network.cut(name, other)
        rig.simulation.network.cut(other, name)


def test_two_clusters_with_equal_names_have_different_identities() -> None:
    """Everything in the configuration is equal."""
    clusters = []
    directories: set[bytes] = set()
    for seed in (1, 2):
        rig = QuorumRig(seed)

        async def story(rig: QuorumRig = rig) -> None:
            rig.start()
            leader = await rig.until_led()
            await wait_until(lambda: cluster_of(leader.image) is not None)
            clusters.append(cluster_of(leader.image))
            directories.update(row.directory_id for row in leader.image[QUORUM])

        with rig.watching():
            rig.simulation.run(story())
    one, other = clusters
    assert one is not None
    assert other is not None
    assert len({one.cluster_id, other.cluster_id, one.namespace, other.namespace}) == 4
    assert len(directories) == 6


def test_the_first_leader_draws_the_ordinal_unless_it_is_configured() -> None:
    ordinals = set()
    for seed in range(4):
        simulation = Simulation(seed)
        served: list[dict[str, str]] = []

        async def main(runtime: Runtime, served: list[dict[str, str]] = served) -> None:
            options = ControllerOptions(DATA, "c0:7000", format=True)
            rig = QuorumRig(0)
            await run(
                runtime,
                rig.settings,
                options,
                stop=asyncio.Event(),
                ready=lambda addresses: served.append(dict(addresses)),
            )

        rig = QuorumRig(0)
        process = simulation.process("c0", main)

        async def story(served: list[dict[str, str]] = served) -> None:
            process.start()  # noqa: B023 - runs within this turn of the loop
            await wait_until(lambda: bool(served))
            image = rig.lives["c0"].image  # noqa: B023
            cluster = cluster_of(image)
            assert cluster is not None
            (member,) = image[QUORUM]
            assert member.node_id >> 16 == cluster.cluster_ordinal
            ordinals.add(cluster.cluster_ordinal)

        with rig.watching():
            simulation.run(story())
    assert len(ordinals) == 4
    assert all(1 <= ordinal < 1 << 14 for ordinal in ordinals)


def test_no_cluster_is_formed_before_all_voters_run() -> None:
    rig = QuorumRig(7)

    async def story() -> None:
        first, second, third = rig.processes
        first.start()
        second.start()
        await asyncio.sleep(20)
        assert not rig.lives, "two of three could be what is left of a cluster"
        third.start()
        leader = await rig.until_led()
        await wait_until(lambda: len(rig.lives) == 3)
        assert len([row for row in leader.image[QUORUM] if row.voter]) == 3

    with rig.watching():
        rig.simulation.run(story())


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_voter_that_lost_its_volume_does_not_format_again(
    lost: int, caplog: pytest.LogCaptureFixture
) -> None:
    """`format` stays in the configuration, and the other controllers have only half of what was
    acknowledged (KAFKA-14077).
    """
    rig = QuorumRig(20 + lost)
    writer = Writer(rig)

    async def story() -> None:
        rig.start()
        writer.process.start()
        await writer.until_written(50)
        wiped = rig.processes[lost]
        lagging = rig.processes[(lost + 1) % 3]
        witness = rig.processes[(lost + 2) % 3]
        _cut(rig, lagging.name)
        await writer.until_written(100)
        writer.process.crash()
        wiped.crash(power_loss=True)
        wiped.disk.state = DiskState()
        witness.crash(power_loss=True)
        rig.simulation.network.heal()
        del rig.lives[wiped.name]
        wiped.start()
        await asyncio.sleep(30)
        assert wiped.name not in rig.lives, "it has no vote"
        witness.start()
        await wait_until(lambda: rig.leader() is not None, timeout_s=30)
        await rig.until_equal([lagging.name, witness.name])
        keys = {row.key for row in rig.lives[witness.name].image[KEYS]}
        assert not set(writer.acknowledged) - keys

    with rig.watching(), caplog.at_level(logging.ERROR):
        rig.simulation.run(story())
    assert "remove the lost member and add this controller" in caplog.text


def test_an_empty_directory_is_refused_where_no_controller_can_add_it() -> None:
    simulation = Simulation(3)
    rig = QuorumRig(3)

    async def main(runtime: Runtime) -> None:
        with pytest.raises(WrongDirectoryError, match="mount the directory"):
            await run(
                runtime,
                rig.settings,
                ControllerOptions(PurePosixPath("/controller"), "c0:7000"),
                stop=asyncio.Event(),
                ready=lambda _: None,
            )

    process = simulation.process("c0", main)

    async def story() -> None:
        process.start()
        await asyncio.sleep(5)

    simulation.run(story())
