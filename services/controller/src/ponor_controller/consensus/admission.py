"""A blank controller learns which cluster it belongs to.

What lives here: the wait for the first call. Nobody knows the directory id of a blank controller but who was told by an operator, so whoever calls it by that id speaks for the
cluster; nothing else of the call is used.
"""

from __future__ import annotations

import asyncio

from google.protobuf.message import DecodeError
from ponor_raft.membership import ReplicaId
from ponor_rpc.errors import OperationError
from ponor_runtime.network import Connection, ConnectionClosedError

from ponor_controller.consensus.peer_frames import replica
from ponor_controller.consensus.peer_link import HANDSHAKE_SECONDS
from ponor_controller.consensus.peers import receive_hello


class Admission:
    """Serves the peer port until a member of the cluster calls; the caller calls again later and finds a follower."""

    def __init__(self, own: ReplicaId) -> None:
        self._own = own
        self.cluster_id: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def handle(self, connection: Connection) -> None:
        """One caller."""
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                hello = await receive_hello(connection)
            if replica(hello.to) == self._own and hello.cluster_id and not self.cluster_id.done():
                self.cluster_id.set_result(hello.cluster_id)
        except (ConnectionClosedError, DecodeError, OperationError, TimeoutError):
            return
        finally:
            await connection.close()
