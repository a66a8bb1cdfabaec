"""Forced recovery after a permanent loss of the majority: one of three real directories continues alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from ponor.controller.v1 import quorum_service_pb2 as wire
from ponor.controller.v1 import session_service_pb2 as session_wire
from ponor_controller.consensus.errors import DirectoryInUseError, QuorumLivesError, WrongDirectoryError
from ponor_controller.options import ControllerOptions
from ponor_controller.startup.forced_recovery import ForcedRecovery, force_recovery
from ponor_metadata.client.node_identity import NodeIdentity
from ponor_metadata.client.quorum_client import QuorumClient
from ponor_metadata.client.session import SessionClient
from ponor_metadata.client.subscription import SubscriptionClient
from ponor_metadata.nouns.cluster import EPOCH_BITS, cluster_of
from ponor_metadata.nouns.counters import INCARNATION_JUMP
from ponor_metadata.nouns.keys import KEYS
from ponor_metadata.nouns.nodes import NodeRole
from ponor_metadata.nouns.quorum import QUORUM
from ponor_rpc.errors import OperationError
from ponor_rpc.grpc_network import GrpcNetwork
from ponor_runtime.identity import compose_node_id
from ponor_runtime.runtime import Runtime
from ponor_runtime.system import SystemClock, SystemRandomness
from ponor_runtime.system_disk import SystemDisk
from ponor_runtime.telemetry import Telemetry

from services.controller.tests.consensus.test_quorum_over_loopback import (
    LAG_MS_MAX,
    ORDINAL,
    SETTINGS,
    Machine,
    a_node,
    machines,
)

KEPT = 1
"""The number of the remaining controller."""


def options_of(machine: Machine) -> ControllerOptions:
    """Its directory, as in its configuration."""
    return ControllerOptions(
        machine.directory,
        machine.member.service_address,
        ORDINAL,
        node_id=machine.member.node_id,
        peer_listen=machine.member.peer_address,
        voters=machine.voters,
    )


async def force(machine: Machine, **changes: object) -> ForcedRecovery:
    """Do what the command does."""
    network, disk = GrpcNetwork(), SystemDisk()
    runtime = Runtime(SystemClock(), SystemRandomness(), disk, network, Telemetry())
    try:
        return await force_recovery(runtime, SETTINGS, replace(options_of(machine), **changes))  # type: ignore[arg-type]
    finally:
        disk.close()
        await network.close()


def put(key: str) -> session_wire.Operation:
    return session_wire.Operation(put_key=session_wire.PutKey(key=key, value=b"v"))


@asynccontextmanager
async def a_later_node(machine: Machine) -> AsyncIterator[tuple[SessionClient, SubscriptionClient]]:
    """The broker of `a_node`, restarted after the recovery."""
    network, clock, randomness = GrpcNetwork(), SystemClock(), SystemRandomness()
    addresses = [machine.member.service_address]
    identity = NodeIdentity(
        compose_node_id(ORDINAL, 0), NodeRole.BROKER, b"later" + bytes(11), kafka_host="b", kafka_port=9092
    )
    session = SessionClient(
        network=network,
        clock=clock,
        randomness=randomness,
        telemetry=Telemetry(),
        identity=identity,
        addresses=addresses,
    )
    subscription = SubscriptionClient(
        network=network, clock=clock, randomness=randomness, telemetry=Telemetry(), addresses=addresses
    )
    tasks = [asyncio.create_task(session.run()), asyncio.create_task(subscription.run())]
    try:
        await asyncio.wait_for(session.ready(), LAG_MS_MAX / 1000)
        yield session, subscription
    finally:
        await session.close()
        await subscription.close()
        await asyncio.gather(*tasks, return_exceptions=True)
        await network.close()


async def ask(machine: Machine, **kind: object) -> wire.QuorumResponse:
    """One controller alone."""
    network = GrpcNetwork()
    try:
        client = QuorumClient(network, SystemClock(), [machine.member.service_address])
        return await client.ask(wire.QuorumRequest(**kind), timeout_s=LAG_MS_MAX / 1000)  # type: ignore[arg-type]
    finally:
        await network.close()


async def test_everything_in_the_chosen_log_is_kept_and_the_lost_controllers_are_ignored(
    tmp_path: Path,
) -> None:
    async with machines(tmp_path) as all_three:
        kept = all_three[KEPT]
        async with a_node(all_three) as (session, subscription):
            for begin in range(0, 300, 100):  # beyond a snapshot
                await asyncio.gather(*(session.submit(put(f"k{begin + n}")) for n in range(100)))
            await _everybody_has_everything(all_three)
            with pytest.raises(DirectoryInUseError, match="stop it first"):
                await force(kept)
            stream = await session.submit(session_wire.Operation(create_streams=_one_stream()))
            await _everybody_has_everything(all_three)
            old_stream = stream.streams_created.stream_ids[0]
        for machine in all_three:
            await machine.cut_off()
        done = await force(kept)
        assert done.incarnation > 0
        assert sorted(done.former_voters) == [each.member.node_id for each in all_three]
        assert done.known_committed_index <= done.last_index
        kept.start()
        async with a_later_node(kept) as (session, subscription):
            new = await session.submit(session_wire.Operation(create_streams=_one_stream()))
            await subscription.wait_for(new.commit_index, LAG_MS_MAX)
            assert {f"k{n}" for n in range(300)} <= {row.key for row in subscription.image[KEYS]}
            assert new.streams_created.stream_ids[0] > old_stream + INCARNATION_JUMP - 1
            (row,) = subscription.image[QUORUM]
            assert (row.node_id, row.voter) == (kept.member.node_id, True)
            await _the_others_are_not_heard(all_three, subscription)


async def test_a_quorum_with_a_majority_is_not_recovered(tmp_path: Path) -> None:
    async with machines(tmp_path) as all_three:
        kept = all_three[KEPT]
        async with a_node(all_three) as (session, _):
            await session.submit(put("k"))
            await _everybody_has_everything(all_three)
        await kept.cut_off()
        with pytest.raises(QuorumLivesError, match="2 of the 3 voters run"):
            await force(kept)
        kept.start()
        await _everybody_has_everything(all_three)
        for machine in all_three[:2]:
            await machine.cut_off()
        assert (await force(kept)).incarnation, "a minority does not keep the others from it"


async def test_nothing_is_deleted_before_the_confirmation(tmp_path: Path) -> None:
    async with machines(tmp_path) as all_three:
        kept = all_three[KEPT]
        async with a_node(all_three) as (session, _):
            await session.submit(put("k"))
            await _everybody_has_everything(all_three)
        for machine in all_three:
            await machine.cut_off()
        raised = (await force(kept)).incarnation
        kept.start()
        async with a_later_node(kept) as (session, subscription):
            index = (await session.submit(put("after"))).commit_index
            await subscription.wait_for(index, LAG_MS_MAX)
            cluster = cluster_of(subscription.image)
            assert cluster is not None
            assert cluster.incarnation_unconfirmed
            with pytest.raises(OperationError, match=f"the cluster has incarnation {raised}"):
                await ask(kept, confirm_incarnation=wire.ConfirmIncarnation(incarnation=raised + 1))
            for _ in range(2):  # the answer may get lost
                done = await ask(kept, confirm_incarnation=wire.ConfirmIncarnation(incarnation=raised))
            await subscription.wait_for(done.done.index, LAG_MS_MAX)
            cluster = cluster_of(subscription.image)
            assert cluster is not None
            assert (cluster.incarnation, cluster.incarnation_unconfirmed) == (raised, False)


async def test_a_repeated_recovery_changes_only_the_incarnation(tmp_path: Path) -> None:
    async with machines(tmp_path) as all_three:
        kept = all_three[KEPT]
        async with a_node(all_three) as (session, _):
            await asyncio.gather(*(session.submit(put(f"k{n}")) for n in range(50)))
            await _everybody_has_everything(all_three)
            term = (await _ask_any(all_three)).description.term
        for machine in all_three:
            await machine.cut_off()
        first, second = await force(kept), await force(kept)
        assert first.incarnation < second.incarnation
        assert second.last_index == first.last_index + 1
        assert (first.last_term, second.last_term) == (term, term + 1), (
            "of the last entry, not of the last vote"
        )
        assert second.former_voters == (kept.member.node_id,)
        kept.start()
        described = (await ask(kept, describe=wire.DescribeQuorum(leader_only=True))).description
        assert described.incarnation == second.incarnation
        async with a_later_node(kept) as (session, subscription):
            index = (await session.submit(put("after"))).commit_index
            await subscription.wait_for(index, LAG_MS_MAX)
            assert len(subscription.image[KEYS]) == 51
        await kept.end()
        kept.start()
        described = (await ask(kept, describe=wire.DescribeQuorum(leader_only=True))).description
        assert described.incarnation == second.incarnation


async def test_recoveries_on_two_directories_of_one_cluster_differ(tmp_path: Path) -> None:
    async with machines(tmp_path) as all_three:
        async with a_node(all_three) as (session, _):
            await session.submit(put("k"))
            await _everybody_has_everything(all_three)
        for machine in all_three:
            await machine.cut_off()
        floors: list[tuple[int, int]] = []
        for machine in all_three[:2]:
            await force(machine)
            machine.start()
            async with a_later_node(machine) as (session, _):
                made = await session.submit(session_wire.Operation(create_streams=_one_stream()))
                floors.append((session.node_epoch, made.streams_created.stream_ids[0]))
            await machine.cut_off()
        for one, other in zip(*floors, strict=True):
            assert abs(one - other) >= 1 << EPOCH_BITS, "no epoch and no id is assigned in both"


async def test_a_directory_without_a_log_is_refused_and_not_changed(tmp_path: Path) -> None:
    async with machines(tmp_path) as all_three:
        blank = replace(all_three[0], directory=tmp_path / "blank")
        blank.directory.mkdir()
        with pytest.raises(WrongDirectoryError, match="contains no data of a controller"):
            await force(blank)
        assert not list(blank.directory.glob("identity*"))


def _one_stream() -> session_wire.CreateStreams:
    return session_wire.CreateStreams(streams=[session_wire.StreamTags()])


async def _everybody_has_everything(all_three: list[Machine]) -> None:
    """Wait until the leader has received that every voter's log contains all of its own."""
    while True:
        described = (await _ask_any(all_three)).description
        if all(member.match_index == described.last_index for member in described.members):
            return
        await asyncio.sleep(0.02)


async def _ask_any(all_three: list[Machine]) -> wire.QuorumResponse:
    network = GrpcNetwork()
    try:
        addresses = [machine.member.service_address for machine in all_three]
        request = wire.QuorumRequest(describe=wire.DescribeQuorum(leader_only=True))
        return await QuorumClient(network, SystemClock(), addresses).ask(request, timeout_s=LAG_MS_MAX / 1000)
    finally:
        await network.close()


async def _the_others_are_not_heard(all_three: list[Machine], subscription: SubscriptionClient) -> None:
    """An old member restarts on its old directory: it reaches no member, and the new incarnation
    continues undisturbed.
    """
    kept, old = all_three[KEPT], all_three[0]
    before = (await ask(kept, describe=wire.DescribeQuorum(leader_only=True))).description
    old.start()
    await asyncio.sleep(2.0)  # several election timeouts
    after = (await ask(kept, describe=wire.DescribeQuorum(leader_only=True))).description
    assert (after.term, after.incarnation, len(after.members)) == (before.term, before.incarnation, 1)
    alone = (await ask(old, describe=wire.DescribeQuorum())).description
    assert (alone.leader_node_id, alone.incarnation) == (0, 0)
    assert subscription.image.index >= before.commit_index
