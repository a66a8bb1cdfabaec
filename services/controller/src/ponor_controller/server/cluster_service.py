"""The cluster service: stop announcements, balancer, nodes, identity and snapshot leases."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

from ponor.common.v1 import error_pb2
from ponor.controller.v1 import cluster_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_metadata.nouns.cluster import ClusterRow, cluster_of
from ponor_rpc.errors import OperationError
from ponor_runtime.identity import NodeId

from ponor_controller.domains.balancing.duty import Balancer
from ponor_controller.domains.leases.operations import LeaseDecision, close_lease, open_lease, renew_lease
from ponor_controller.domains.nodes.descriptions import describe_nodes, unregister_node
from ponor_controller.kernel.decisions import invalid
from ponor_controller.kernel.leading import Leading
from ponor_controller.kernel.node_activity import NodeActivity
from ponor_controller.kernel.proposer import Proposer
from ponor_controller.server.rpc_service import RpcService
from ponor_controller.settings import SnapshotLeaseSettings

STOP_TTL_MS_MAX: Final = 600_000

_Handler: TypeAlias = Callable[[Any], Awaitable[wire.ClusterResponse]]


class ClusterService(RpcService[wire.ClusterResponse]):
    """Serves ClusterService.Cluster."""

    def __init__(
        self,
        leading: Leading,
        proposer: Proposer,
        balancer: Balancer,
        activity: NodeActivity,
        settings: SnapshotLeaseSettings,
    ) -> None:
        self._balancer = balancer
        self._activity = activity
        self._settings = settings
        handlers: Mapping[str, _Handler] = {
            "announce_stop": self._announce_stop,
            "describe_balance": self._describe_balance,
            "pause_balancer": self._pause_balancer,
            "open_snapshot": self._open_snapshot,
            "renew_snapshot": self._renew_snapshot,
            "close_snapshot": self._close_snapshot,
            "describe_nodes": self._describe_nodes,
            "unregister_node": self._unregister_node,
            "describe_identity": self._describe_identity,
        }
        super().__init__(
            wire.ClusterRequest, wire.ClusterResponse, handlers, leading, proposer, leader_only=True
        )

    async def _announce_stop(self, request: wire.AnnounceStop) -> wire.ClusterResponse:
        if not 0 <= request.ttl_ms <= STOP_TTL_MS_MAX:
            raise invalid(
                f"ttl_ms is {request.ttl_ms}; give 1 to {STOP_TTL_MS_MAX}, or 0 to withdraw the announcement"
            )
        cluster = await self._require_changeable("announcing the stop of the cluster")
        until_ms = self._proposer.now_ms() + request.ttl_ms if request.ttl_ms else 0
        if until_ms == cluster.stop_until_ms:
            return _done(await self._confirmed())
        announced = records_pb2.ClusterStopAnnounced(until_ms=until_ms)
        return _done(await self._commit([records_pb2.Record(cluster_stop_announced=announced)]))

    async def _pause_balancer(self, request: wire.PauseBalancer) -> wire.ClusterResponse:
        cluster = await self._require_changeable("pausing the balancer")
        if request.paused == cluster.balancer_paused:
            return _done(await self._confirmed())
        paused = records_pb2.BalancerPaused(paused=request.paused)
        return _done(await self._commit([records_pb2.Record(balancer_paused=paused)]))

    async def _describe_balance(self, _: wire.DescribeBalance) -> wire.ClusterResponse:
        # The loads of a deposed leader are obsolete.
        await self._leading.read_index()
        return wire.ClusterResponse(balance=self._balancer.describe())

    async def _describe_nodes(self, _: wire.DescribeNodes) -> wire.ClusterResponse:
        await self._leading.read_index()
        return wire.ClusterResponse(nodes=describe_nodes(self._proposer.view, self._activity))

    async def _unregister_node(self, request: wire.UnregisterNode) -> wire.ClusterResponse:
        await self._require_changeable("unregistering a node")
        records = unregister_node(NodeId(request.node_id), self._proposer.view, self._activity)
        return _done(await self._commit(records))

    async def _describe_identity(self, _: wire.DescribeIdentity) -> wire.ClusterResponse:
        await self._leading.read_index()
        cluster = cluster_of(self._proposer.view)
        if cluster is None:
            raise OperationError(error_pb2.ERROR_CODE_OVERLOADED, "the cluster is being formatted; try again")
        identity = wire.ClusterIdentity(
            cluster_id=cluster.cluster_id,
            cluster_ordinal=cluster.cluster_ordinal,
            namespace=cluster.namespace,
            incarnation=cluster.incarnation,
        )
        return wire.ClusterResponse(identity=identity)

    async def _open_snapshot(self, request: wire.OpenSnapshot) -> wire.ClusterResponse:
        await self._require_changeable("reading a snapshot")
        proposer = self._proposer
        return await self._lease(open_lease(request, proposer.view, proposer.now_ms(), self._settings))

    async def _renew_snapshot(self, request: wire.RenewSnapshot) -> wire.ClusterResponse:
        await self._require_changeable("reading a snapshot")
        proposer = self._proposer
        decision = renew_lease(request, proposer.view, proposer.now_ms(), self._settings)
        return await self._lease(decision)

    async def _close_snapshot(self, request: wire.CloseSnapshot) -> wire.ClusterResponse:
        await self._require_changeable("reading a snapshot")
        records = close_lease(request, self._proposer.view)
        return _done(await self._commit(records))

    async def _lease(self, decision: LeaseDecision) -> wire.ClusterResponse:
        await self._commit(decision.records)
        opened = wire.SnapshotOpened(
            lease_id=decision.row.lease_id,
            index=decision.row.image_index,
            leased_until_ms=decision.row.leased_until_ms,
            cluster_time_ms=self._proposer.now_ms(),
        )
        return wire.ClusterResponse(snapshot=opened)

    async def _require_changeable(self, what: str) -> ClusterRow:
        """Wait for room, check leadership, and return the cluster's row."""
        await self._room(what)
        cluster = cluster_of(self._proposer.view)
        assert cluster is not None, "the image does not contain the cluster"
        return cluster


def _done(index: int) -> wire.ClusterResponse:
    return wire.ClusterResponse(done=wire.ClusterDone(index=index))
