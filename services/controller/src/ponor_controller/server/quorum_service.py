"""The quorum service: describe and change the quorum, feature levels and the incarnation.

The Raft core decides whether a change of the membership is allowed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from ponor.controller.v1 import quorum_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_metadata.nouns.cluster import cluster_of
from ponor_raft.membership import DIRECTORY_ID_BYTES
from ponor_runtime.host_port import HOST_CHARACTERS_MAX, split_host_port
from ponor_runtime.identity import NODE_ID_BOUND, NodeId, node_id_in

from ponor_controller.consensus.members import Member
from ponor_controller.domains.quorum.feature_levels import (
    check_updates,
    describe_features,
)
from ponor_controller.domains.quorum.raft_quorum import RaftQuorum
from ponor_controller.kernel.decisions import invalid
from ponor_controller.kernel.leading import Leading
from ponor_controller.kernel.proposer import Proposer
from ponor_controller.server.rpc_service import RpcService

_Handler: TypeAlias = Callable[[Any], Awaitable[wire.QuorumResponse]]


class QuorumService(RpcService[wire.QuorumResponse]):
    """Serves QuorumService.Quorum."""

    def __init__(self, control: RaftQuorum, leading: Leading, proposer: Proposer) -> None:
        self._control = control
        handlers: Mapping[str, _Handler] = {
            "describe": self._describe,
            "add_learner": self._add_learner,
            "promote": self._promote,
            "remove": self._remove,
            "transfer": self._transfer,
            "take_snapshot": self._take_snapshot,
            "update_features": self._update_features,
            "confirm_incarnation": self._confirm_incarnation,
            "read_index": self._read_index,
        }
        super().__init__(
            wire.QuorumRequest, wire.QuorumResponse, handlers, leading, proposer, leader_only=False
        )

    # Queries

    async def _describe(self, request: wire.DescribeQuorum) -> wire.QuorumResponse:
        if request.leader_only:
            self._require_leading("describing the quorum")
            await self._control.confirm_leadership()
        description = self._control.describe()
        description.features.extend(describe_features(self._proposer.view))
        return wire.QuorumResponse(description=description)

    async def _read_index(self, _: wire.ReadIndex) -> wire.QuorumResponse:
        return _done(await self._leading.read_index())

    # Changes

    async def _add_learner(self, request: wire.AddLearner) -> wire.QuorumResponse:
        self._require_leading("adding a learner")
        return _done(await self._control.add_learner(_learner(request, self._full_node_id(request.node_id))))

    async def _promote(self, request: wire.PromoteLearner) -> wire.QuorumResponse:
        self._require_leading("promoting a learner")
        return _done(await self._control.promote(self._full_node_id(request.node_id)))

    async def _remove(self, request: wire.RemoveMember) -> wire.QuorumResponse:
        self._require_leading("removing a member")
        if request.directory_id:
            _check_directory_id(request.directory_id)
        return _done(await self._control.remove(self._full_node_id(request.node_id), request.directory_id))

    async def _transfer(self, request: wire.TransferLeadership) -> wire.QuorumResponse:
        self._require_leading("transferring leadership")
        # Zero means the voter with the longest log; it is not a node number.
        target = self._full_node_id(request.node_id) if request.node_id else NodeId(0)
        return _done(await self._control.transfer(target))

    async def _take_snapshot(self, _: wire.TakeSnapshot) -> wire.QuorumResponse:
        self._require_leading("taking a snapshot")
        return _done(await self._control.take_snapshot())

    async def _update_features(self, request: wire.UpdateFeatures) -> wire.QuorumResponse:
        await self._room("updating features")
        records = check_updates(self._proposer.view, request.updates)
        if request.validate_only:
            return _done(await self._confirmed())
        return _done(await self._commit(records))

    async def _confirm_incarnation(self, request: wire.ConfirmIncarnation) -> wire.QuorumResponse:
        await self._room("confirming the incarnation")
        cluster = cluster_of(self._proposer.view)
        present = 0 if cluster is None else cluster.incarnation
        if request.incarnation != present or present == 0:
            raise invalid(
                f"incarnation {request.incarnation} cannot be confirmed: the cluster has incarnation"
                f" {present}" + ("; there was no forced recovery" if present == 0 else "")
            )
        assert cluster is not None
        if not cluster.incarnation_unconfirmed:
            return _done(await self._confirmed())
        confirmed = records_pb2.IncarnationConfirmed(incarnation=present)
        return _done(await self._commit([records_pb2.Record(incarnation_confirmed=confirmed)]))

    def _full_node_id(self, node_id: int) -> NodeId:
        """The complete node id: a number below 2^16 is combined with the cluster's ordinal."""
        cluster = cluster_of(self._proposer.view)
        if cluster is None or not 0 <= node_id < NODE_ID_BOUND:
            return NodeId(node_id)
        return node_id_in(cluster.cluster_ordinal, NodeId(node_id))


def _learner(request: wire.AddLearner, node_id: NodeId) -> Member:
    _check_directory_id(request.directory_id)
    if not 0 < request.node_id < NODE_ID_BOUND:
        raise invalid(
            f"node id {request.node_id} is invalid; give the controller's id, above 0 and below"
            f" {NODE_ID_BOUND}"
        )
    for address in (request.peer_address, request.service_address):
        try:
            host, _ = split_host_port(address)
        except ValueError:
            host = ""
        if not 0 < len(host) <= HOST_CHARACTERS_MAX:
            raise invalid(f"address {address[:HOST_CHARACTERS_MAX]!r} is invalid; write HOST:PORT")
    return Member(node_id, request.directory_id, request.peer_address, request.service_address, voter=False)


def _check_directory_id(directory_id: bytes) -> None:
    if len(directory_id) != DIRECTORY_ID_BYTES:
        raise invalid(f"the directory id has {len(directory_id)} bytes, not {DIRECTORY_ID_BYTES}")


def _done(index: int) -> wire.QuorumResponse:
    return wire.QuorumResponse(done=wire.QuorumDone(index=index))
