"""Asks the controllers about the cluster as a whole: tells them of its end, asks for its balance, and leases snapshots of it.

What lives here: the questions as calls, for tools and readers. Each is answered by the leader alone, and may be asked again: only the lease of a snapshot is another one then,
and the first ends by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ponor.controller.v1 import cluster_service_pb2 as wire
from ponor_rpc.methods import CLUSTER
from ponor_runtime.clock import Clock
from ponor_runtime.network import Network

from ponor_metadata.client.controllers import KnownControllers
from ponor_metadata.client.leader_calls import LeaderCalls

ANSWER_S_MAX: Final = 2.0
"""One controller's answer: a commit, or a look."""


class ClusterClient:
    """Asks at `addresses`, see `LeaderCalls`.

    Raises (all calls): `OperationError`, refused for good; `NoControllerError`, nobody answered within the time.
    """

    def __init__(self, network: Network, clock: Clock, addresses: Sequence[str] | KnownControllers) -> None:
        self._questions = LeaderCalls(network, clock, addresses, CLUSTER, wire.ClusterResponse.FromString)

    async def announce_stop(self, ttl_ms: int, *, timeout_s: float) -> int:
        """All of the cluster is about to be stopped: for so long nobody drains or fails over. 0 takes it back.

        Returns:
            The index up to which a broker's image must go to show it.
        """
        request = wire.ClusterRequest(announce_stop=wire.AnnounceStop(ttl_ms=ttl_ms))
        return (await self._ask(request, timeout_s)).done.index

    async def pause_balancer(self, paused: bool, *, timeout_s: float) -> int:
        """The balancer moves nothing from now on, or moves again. Returns as `announce_stop`."""
        request = wire.ClusterRequest(pause_balancer=wire.PauseBalancer(paused=paused))
        return (await self._ask(request, timeout_s)).done.index

    async def describe_balance(self, *, timeout_s: float) -> wire.BalanceDescription:
        """How load is spread, what the balancer would do and did, and why."""
        request = wire.ClusterRequest(describe_balance=wire.DescribeBalance())
        return (await self._ask(request, timeout_s)).balance

    async def describe_nodes(self, *, timeout_s: float) -> Sequence[wire.NodeDescription]:
        """Every node that ever registered, and whether the leader hears it."""
        request = wire.ClusterRequest(describe_nodes=wire.DescribeNodes())
        return (await self._ask(request, timeout_s)).nodes.nodes

    async def unregister_node(self, node_id: int, *, timeout_s: float) -> int:
        """Forget a node that is gone for good. Returns as `announce_stop`.

        Raises:
            OperationError: it is alive, holds something, or is not known; the message says what to do.
        """
        request = wire.ClusterRequest(unregister_node=wire.UnregisterNode(node_id=node_id))
        return (await self._ask(request, timeout_s)).done.index

    async def describe_identity(self, *, timeout_s: float) -> wire.ClusterIdentity:
        """Which cluster the controllers serve."""
        request = wire.ClusterRequest(describe_identity=wire.DescribeIdentity())
        return (await self._ask(request, timeout_s)).identity

    async def open_snapshot(self, holder: str, ttl_ms: int, *, timeout_s: float) -> wire.SnapshotOpened:
        """Read the data as they are now: what is destroyed later is kept until the lease is over.

        Args:
            holder: who reads, for people.
            ttl_ms: life of the lease; the controllers cap it.
            timeout_s: how long to go on asking.

        Raises:
            OperationError: OVERLOADED is asked again.
        """
        request = wire.ClusterRequest(open_snapshot=wire.OpenSnapshot(holder=holder, ttl_ms=ttl_ms))
        return (await self._ask(request, timeout_s)).snapshot

    async def renew_snapshot(self, lease_id: int, ttl_ms: int, *, timeout_s: float) -> wire.SnapshotOpened:
        """Go on reading for so long from now on, or until the lease is as old as one may be: see the answer.

        Raises:
            OperationError: SNAPSHOT_EXPIRED, when it is over; what it kept may be gone.
        """
        request = wire.ClusterRequest(renew_snapshot=wire.RenewSnapshot(lease_id=lease_id, ttl_ms=ttl_ms))
        return (await self._ask(request, timeout_s)).snapshot

    async def close_snapshot(self, lease_id: int, *, timeout_s: float) -> int:
        """Done with reading. Returns as `announce_stop`."""
        request = wire.ClusterRequest(close_snapshot=wire.CloseSnapshot(lease_id=lease_id))
        return (await self._ask(request, timeout_s)).done.index

    async def _ask(self, request: wire.ClusterRequest, timeout_s: float) -> wire.ClusterResponse:
        return await self._questions.ask(
            request.SerializeToString(), answer_s_max=ANSWER_S_MAX, timeout_s=timeout_s
        )
