"""Wait until a member of a cluster connects to a blank controller and names its cluster.

Every directory draws its own id. A caller whose hello contains the id of this directory got it from the
operator or from the formation of the cluster, so the caller is a member of the cluster. The hello also
contains the cluster's id and ordinal, and the initial voters if this directory is one of them.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from google.protobuf.message import DecodeError
from ponor.controller.v1 import peer_service_pb2 as wire
from ponor_rpc.errors import OperationError
from ponor_runtime.identity import ClusterOrdinal, NodeId, number_of_node
from ponor_runtime.network import Connection, ConnectionClosedError

from ponor_controller.consensus.directory_identity import DirectoryIdentity
from ponor_controller.consensus.members import Member
from ponor_controller.consensus.peer_frames import PeerFrameError, replica
from ponor_controller.consensus.peer_link import HANDSHAKE_SECONDS
from ponor_controller.consensus.peers import receive_hello


class Admission:
    """Serves the peer port until a member of the cluster connects. The connection is then closed. When the
    member connects again, this controller already runs as a follower.

    `may_format`: whether this directory may become a voter of a new cluster.
    """

    def __init__(self, identity: DirectoryIdentity, *, may_format: bool) -> None:
        self._identity = identity
        self.may_format = may_format
        self.admitted: asyncio.Future[DirectoryIdentity] = asyncio.get_running_loop().create_future()

    async def handle(self, connection: Connection) -> None:
        """Serve one connection."""
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                hello = await receive_hello(connection, self._identity, may_format=self.may_format)
            if hello is not None and hello.cluster_id and self._is_for_us(hello) and not self.admitted.done():
                self.admitted.set_result(_admitted(self._identity, hello))
        except (ConnectionClosedError, DecodeError, OperationError, PeerFrameError, TimeoutError):
            return
        finally:
            await connection.close()

    def _is_for_us(self, hello: wire.PeerHello) -> bool:
        to, own = replica(hello.to), self._identity
        is_same_number = number_of_node(NodeId(to.node_id)) == number_of_node(own.node_id)
        return is_same_number and to.directory_id == own.directory_id.bytes


def _admitted(identity: DirectoryIdentity, hello: wire.PeerHello) -> DirectoryIdentity:
    own = replica(hello.to)
    voters = tuple(
        Member(NodeId(row.node_id), replica(row).directory_id, row.peer_address, row.service_address)
        for row in hello.initial_voters
    )
    return replace(
        identity,
        cluster_id=hello.cluster_id,
        node_id=NodeId(own.node_id),
        # A learner is added later, and gets the members from the log.
        initial_voters=voters if any(voter.replica == own for voter in voters) else (),
        cluster_ordinal=ClusterOrdinal(hello.cluster_ordinal),
    )
