"""Requests of tools to the cluster service of three real controllers. In virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import pytest
from ponor.common.v1 import error_pb2
from ponor.controller.v1 import cluster_service_pb2 as wire
from ponor.controller.v1 import quorum_service_pb2
from ponor.controller.v1.session_service_pb2 import LoadReport
from ponor_controller.server.cluster_service import STOP_TTL_MS_MAX
from ponor_controller.server.rpc_service import CONNECTIONS_MAX
from ponor_metadata.client.cluster_client import ClusterClient
from ponor_metadata.client.leader_calls import NoControllerError
from ponor_metadata.client.node_identity import NodeIdentity
from ponor_metadata.client.session import SessionClient
from ponor_metadata.nouns.cluster import ClusterRow, cluster_of
from ponor_metadata.nouns.nodes import NodeRole
from ponor_rpc.errors import OperationError
from ponor_rpc.methods import CLUSTER, QUORUM
from ponor_runtime.identity import ClusterOrdinal, compose_node_id
from ponor_runtime.runtime import Runtime
from ponor_simulation.process import wait_until

from services.controller.tests.quorum_rig import QuorumRig

ADDRESSES = ("c0:7000", "c1:7000", "c2:7000")
INVALID = error_pb2.ERROR_CODE_INVALID_REQUEST


class Tool:
    """An operator's client, and connections to single controllers."""

    def __init__(self, rig: QuorumRig, runtime: Runtime) -> None:
        self.rig = rig
        self.runtime = runtime
        self.client = ClusterClient(runtime.network, runtime.clock, ADDRESSES)

    async def ask_at(self, address: str, frame: bytes) -> wire.ClusterResponse:
        """Send one request to one controller; return its answer."""
        connection = await self.runtime.network.connect(address, CLUSTER)
        try:
            await connection.send(frame)
            return wire.ClusterResponse.FromString(await connection.receive())
        finally:
            await connection.close()

    async def row(self) -> ClusterRow:
        leader = await self.rig.until_led()
        cluster = cluster_of(leader.image)
        assert cluster is not None
        return cluster


Story: TypeAlias = Callable[[Tool], Awaitable[None]]


def tell(story: Story) -> None:
    """Run a story in its own process next to three controllers."""
    rig = QuorumRig(1)

    async def main(runtime: Runtime) -> None:
        await story(Tool(rig, runtime))

    tool = rig.simulation.process("tool", main)

    async def scenario() -> None:
        rig.start()
        await rig.until_led()
        tool.start()
        await wait_until(lambda: not tool.running, timeout_s=300)
        if tool.failure is not None:
            raise tool.failure

    with rig.watching():
        rig.simulation.run(scenario())


def test_a_stop_is_announced_prolonged_and_withdrawn() -> None:
    async def story(tool: Tool) -> None:
        leader = await tool.rig.until_led()
        before_ms = leader.proposer.now_ms()
        first = await tool.client.announce_stop(60_000, timeout_s=10)
        until_ms = (await tool.row()).stop_until_ms
        assert 60_000 <= until_ms - before_ms < 61_000
        assert leader.image.index >= first, "it is committed"
        await tool.runtime.clock.sleep(1)
        second = await tool.client.announce_stop(60_000, timeout_s=10)
        assert second > first
        assert (await tool.row()).stop_until_ms >= until_ms + 1_000
        leader = await tool.rig.until_led()
        tool.rig.process_of(leader).crash()
        await tool.rig.until_led(other_than=leader)
        assert (await tool.row()).stop_until_ms > until_ms, "it survives the leader"
        third = await tool.client.announce_stop(0, timeout_s=10)
        assert (await tool.row()).stop_until_ms == 0
        assert await tool.client.announce_stop(0, timeout_s=10) == third, "nothing to withdraw"

    tell(story)


def test_the_balancer_stays_paused_until_it_is_resumed() -> None:
    async def story(tool: Tool) -> None:
        for paused in (True, True, False, False):
            index = await tool.client.pause_balancer(paused, timeout_s=10)
            leader = await tool.rig.until_led()
            assert leader.image.index >= index
            assert (await tool.row()).balancer_paused is paused
            assert (await tool.client.describe_balance(timeout_s=10)).paused is paused

    tell(story)


def test_an_impossible_load_report_does_not_stop_the_balancer() -> None:
    async def story(tool: Tool) -> None:
        runtime, node_id = tool.runtime, compose_node_id(ClusterOrdinal(1), 77)
        session = SessionClient(
            network=runtime.network,
            clock=runtime.clock,
            randomness=runtime.randomness,
            telemetry=runtime.telemetry,
            identity=NodeIdentity(
                node_id, NodeRole.BROKER, runtime.randomness.token(16), kafka_host="h", kafka_port=1
            ),
            addresses=ADDRESSES,
        )
        running = asyncio.create_task(session.run())
        await session.ready()
        most = 2**63 - 1
        session.report_load(
            LoadReport(in_bytes_per_s=most, out_bytes_per_s=most, cpu_permille=2**31 - 1, window_ms=1_000)
        )
        await runtime.clock.sleep(60)
        (broker,) = (await tool.client.describe_balance(timeout_s=10)).brokers
        assert broker.in_bytes_per_s > 0
        await session.close()
        await running

    tell(story)


def test_a_tool_lists_nodes_and_unregisters_a_departed_one() -> None:
    async def story(tool: Tool) -> None:
        runtime, node_id = tool.runtime, compose_node_id(ClusterOrdinal(1), 77)
        session = SessionClient(
            network=runtime.network,
            clock=runtime.clock,
            randomness=runtime.randomness,
            telemetry=runtime.telemetry,
            identity=NodeIdentity(node_id, NodeRole.GC, runtime.randomness.token(16)),
            addresses=ADDRESSES,
        )
        running = asyncio.create_task(session.run())
        await session.ready()
        (node,) = await _described(tool, node_id)
        assert (node.role, node.connected, node.suspected, node.fenced) == (
            int(NodeRole.GC),
            True,
            False,
            False,
        )
        with pytest.raises(OperationError, match=r"gc .* is alive"):
            await tool.client.unregister_node(node_id, timeout_s=10)
        await session.close()
        await running
        await runtime.clock.sleep(30)
        (node,) = await _described(tool, node_id)
        assert (node.connected, node.suspected, node.fenced) == (False, True, False)
        index = await tool.client.unregister_node(node_id, timeout_s=10)
        assert await tool.client.unregister_node(node_id, timeout_s=10) >= index, "it is already unregistered"
        assert await _described(tool, node_id) == []

    tell(story)


async def _described(tool: Tool, node_id: int) -> list[wire.NodeDescription]:
    return [each for each in await tool.client.describe_nodes(timeout_s=10) if each.node_id == node_id]


@pytest.mark.parametrize("ttl_ms", [-1, STOP_TTL_MS_MAX + 1])
def test_a_stop_cannot_be_announced_too_far_ahead(ttl_ms: int) -> None:
    async def story(tool: Tool) -> None:
        with pytest.raises(OperationError, match=str(STOP_TTL_MS_MAX)) as refused:
            await tool.client.announce_stop(ttl_ms, timeout_s=10)
        assert refused.value.code == INVALID
        assert (await tool.row()).stop_until_ms == 0

    tell(story)


def test_a_follower_redirects_callers_to_the_leader() -> None:
    async def story(tool: Tool) -> None:
        leader = tool.rig.process_of(await tool.rig.until_led()).name
        await tool.rig.until_equal()
        follower = next(each for each in ADDRESSES if not each.startswith(leader))
        for request in (
            wire.ClusterRequest(announce_stop=wire.AnnounceStop(ttl_ms=1)),
            wire.ClusterRequest(pause_balancer=wire.PauseBalancer(paused=True)),
            wire.ClusterRequest(describe_balance=wire.DescribeBalance()),
        ):
            error = (await tool.ask_at(follower, request.SerializeToString())).error
            assert (error.code, error.leader_address) == (
                error_pb2.ERROR_CODE_NOT_LEADER,
                f"{leader}:7000",
            )

    tell(story)


def test_invalid_requests_are_refused() -> None:
    async def story(tool: Tool) -> None:
        leader = tool.rig.process_of(await tool.rig.until_led()).name
        for frame in (b"\xff\xff", b""):
            assert (await tool.ask_at(f"{leader}:7000", frame)).error.code == INVALID

    tell(story)


def test_hanging_callers_do_not_block_other_services() -> None:
    async def story(tool: Tool) -> None:
        leader = f"{tool.rig.process_of(await tool.rig.until_led()).name}:7000"
        network = tool.runtime.network
        hanging = [await network.connect(leader, CLUSTER) for _ in range(CONNECTIONS_MAX)]
        request = wire.ClusterRequest(pause_balancer=wire.PauseBalancer(paused=True)).SerializeToString()
        error = (await tool.ask_at(leader, request)).error
        assert error.code == error_pb2.ERROR_CODE_OVERLOADED
        other = await network.connect(leader, QUORUM)
        await other.send(
            quorum_service_pb2.QuorumRequest(describe=quorum_service_pb2.DescribeQuorum()).SerializeToString()
        )
        answer = quorum_service_pb2.QuorumResponse.FromString(await other.receive())
        assert answer.HasField("description")
        for connection in hanging:
            await connection.close()
        await tool.runtime.clock.sleep(1)
        assert (await tool.ask_at(leader, request)).HasField("done")

    tell(story)


def test_without_a_leader_requests_are_refused() -> None:
    async def story(tool: Tool) -> None:
        for process in tool.rig.processes[1:]:
            process.crash()
        await tool.runtime.clock.sleep(3)
        with pytest.raises(NoControllerError, match="no answer from the controllers at c0:7000"):
            await tool.client.announce_stop(1_000, timeout_s=2)

    tell(story)
