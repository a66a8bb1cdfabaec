"""Calls about the whole cluster: announce a stop, pause and describe the balancer, describe nodes, lease
snapshots.

Only the leader answers. All calls are idempotent except `open_snapshot`: a retry may open a second lease, and
the first one expires unused.
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
"""How long one controller may take to answer; the answer may need a commit."""


class ClusterClient:
    """Calls to the leader; `addresses` as in `LeaderCalls`.

    Every method raises `OperationError` if the controller refuses, and `NoControllerError` if none answers in
    time.
    """

    def __init__(self, network: Network, clock: Clock, addresses: Sequence[str] | KnownControllers) -> None:
        self._calls = LeaderCalls(network, clock, addresses, CLUSTER, wire.ClusterResponse.FromString)

    async def announce_stop(self, ttl_ms: int, *, timeout_s: float) -> int:
        """Announce a stop of the whole cluster: for `ttl_ms` the controllers begin no drain and no failover.
        0 cancels the announcement.

        Returns:
            The index of the commit. A broker's image shows the change from this index on.
        """
        request = wire.ClusterRequest(announce_stop=wire.AnnounceStop(ttl_ms=ttl_ms))
        return (await self._ask(request, timeout_s)).done.index

    async def pause_balancer(self, paused: bool, *, timeout_s: float) -> int:
        """Pause or resume the balancer. Returns as `announce_stop`."""
        request = wire.ClusterRequest(pause_balancer=wire.PauseBalancer(paused=paused))
        return (await self._ask(request, timeout_s)).done.index

    async def describe_balance(self, *, timeout_s: float) -> wire.BalanceDescription:
        """Return the distribution of load, and the balancer's past and planned moves with reasons."""
        request = wire.ClusterRequest(describe_balance=wire.DescribeBalance())
        return (await self._ask(request, timeout_s)).balance

    async def describe_nodes(self, *, timeout_s: float) -> Sequence[wire.NodeDescription]:
        """Return every node that ever registered, and whether the leader receives its heartbeats."""
        request = wire.ClusterRequest(describe_nodes=wire.DescribeNodes())
        return (await self._ask(request, timeout_s)).nodes.nodes

    async def unregister_node(self, node_id: int, *, timeout_s: float) -> int:
        """Unregister a node that will not return. Returns as `announce_stop`.

        Raises:
            OperationError: the node is alive, still holds streams, logs or partitions, or is unknown; the
                message names the remedy.
        """
        request = wire.ClusterRequest(unregister_node=wire.UnregisterNode(node_id=node_id))
        return (await self._ask(request, timeout_s)).done.index

    async def describe_identity(self, *, timeout_s: float) -> wire.ClusterIdentity:
        """Return the identity of the cluster that the controllers serve."""
        request = wire.ClusterRequest(describe_identity=wire.DescribeIdentity())
        return (await self._ask(request, timeout_s)).identity

    async def open_snapshot(self, holder: str, ttl_ms: int, *, timeout_s: float) -> wire.SnapshotOpened:
        """Lease a snapshot of the present data: objects destroyed later are kept until the lease ends.

        Args:
            holder: name of the reader, for operators.
            ttl_ms: duration of the lease; the controllers limit it.
            timeout_s: time limit of all attempts together.

        Raises:
            OperationError: the lease was refused. OVERLOADED is not raised but retried.
        """
        request = wire.ClusterRequest(open_snapshot=wire.OpenSnapshot(holder=holder, ttl_ms=ttl_ms))
        return (await self._ask(request, timeout_s)).snapshot

    async def renew_snapshot(self, lease_id: int, ttl_ms: int, *, timeout_s: float) -> wire.SnapshotOpened:
        """Extend a lease by `ttl_ms` from now, at most to the maximum age of a lease. The answer contains the
        new end of the lease.

        Raises:
            OperationError: SNAPSHOT_EXPIRED; the lease has ended, and the objects it kept may be deleted.
        """
        request = wire.ClusterRequest(renew_snapshot=wire.RenewSnapshot(lease_id=lease_id, ttl_ms=ttl_ms))
        return (await self._ask(request, timeout_s)).snapshot

    async def close_snapshot(self, lease_id: int, *, timeout_s: float) -> int:
        """End a lease. Returns as `announce_stop`."""
        request = wire.ClusterRequest(close_snapshot=wire.CloseSnapshot(lease_id=lease_id))
        return (await self._ask(request, timeout_s)).done.index

    async def _ask(self, request: wire.ClusterRequest, timeout_s: float) -> wire.ClusterResponse:
        return await self._calls.ask(
            request.SerializeToString(), answer_s_max=ANSWER_S_MAX, timeout_s=timeout_s
        )
