"""Connections between controllers: one stream to each peer and one stream from each."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from google.protobuf.message import DecodeError
from ponor.common.v1 import error_pb2
from ponor.controller.v1 import peer_service_pb2 as wire
from ponor_raft.membership import Membership, ReplicaId
from ponor_raft.messages import Message
from ponor_rpc.errors import OperationError, error_name
from ponor_runtime.network import Connection, ConnectionClosedError, Network
from ponor_runtime.runtime import Runtime
from ponor_runtime.tasks import BackgroundTasks

from ponor_controller.consensus.address_book import AddressBook, Addresses
from ponor_controller.consensus.directory_identity import DirectoryIdentity
from ponor_controller.consensus.introduction import introduction
from ponor_controller.consensus.members import voters_set
from ponor_controller.consensus.peer_frames import PeerFrameError, decode_messages, replica, replica_message
from ponor_controller.consensus.peer_link import ALIVE_SECONDS, HANDSHAKE_SECONDS, PeerLink

LOG: Final = logging.getLogger("ponor.controller")
CALLERS_MAX: Final = 64
"""Bound of streams from other controllers; far above the number of members of a quorum."""


class Core(Protocol):
    """The Raft driver as `Peers` uses it: handles messages and events of streams."""

    @property
    def membership(self) -> Membership:
        """The present membership."""
        ...

    def step(self, message: Message) -> None:
        """Handle a message."""
        ...

    def flush(self) -> None:
        """Carry out now what the core returned for the last messages, instead of at the end of this turn of
        the event loop.
        """
        ...

    def unreachable(self, peer: ReplicaId) -> None:
        """Messages to a peer were lost."""
        ...

    def reachable(self) -> None:
        """A stream to a peer is open."""
        ...

    def peer_restarted(self, peer: ReplicaId) -> None:
        """A peer opened a new stream. This controller has closed the peer's older stream."""
        ...

    def suspect(self, peer: ReplicaId) -> None:
        """A stream to or from a peer broke."""
        ...


class Peers:
    """Links to all peers, and the streams from them. Implements `peer_link.LinkOwner`."""

    def __init__(
        self,
        identity: DirectoryIdentity,
        incarnation: Callable[[], int],
        addresses: AddressBook,
        own_addresses: Addresses,
        network: Network,
        runtime: Runtime,
        tasks: BackgroundTasks,
    ) -> None:
        self._identity = identity
        self._own = identity.replica
        self._cluster_id = identity.cluster_id
        self._incarnation = incarnation
        self._addresses = addresses
        self._own_addresses = own_addresses
        self._network = network
        self._runtime = runtime
        self._tasks = tasks
        self._core: Core | None = None
        self._links: dict[ReplicaId, tuple[PeerLink, asyncio.Task[None]]] = {}
        self._callers: dict[ReplicaId, Connection] = {}
        self._calls = 0
        self._logged_refusal = ""
        runtime.telemetry.gauge("ponor_controller_peers_connected", lambda: self.connected_count)

    @property
    def connected_count(self) -> int:
        """Number of peers with an open stream."""
        return sum(link.connected for link, _ in self._links.values())

    def is_connected(self, to: ReplicaId) -> bool:
        """Whether a stream to the peer is open."""
        found = self._links.get(to)
        return found is not None and found[0].connected

    def attach(self, core: Core) -> None:
        """Set the handler of messages. Called once."""
        assert self._core is None
        self._core = core

    def keep_links(self, members: Sequence[ReplicaId]) -> None:
        """Keep links to exactly these replicas and to replicas with an open stream to this controller."""
        wanted = dict.fromkeys(each for each in (*members, *self._callers) if each != self._own)
        for to in [to for to in self._links if to not in wanted]:
            _, task = self._links.pop(to)
            task.cancel()
        for to in wanted:
            if to not in self._links and not self._tasks.is_closed:
                link = PeerLink(
                    to, self, self._network, self._runtime.clock, self._runtime.randomness, self._lost
                )
                self._links[to] = (link, self._tasks.spawn(link.run(), f"peer-{to.node_id}"))

    def send(self, messages: Sequence[Message]) -> None:
        """Send messages. Messages to replicas without a link are dropped."""
        for message in messages:
            found = self._links.get(message.to)
            if found is not None:
                found[0].send(message)
            else:
                self._lost(message.to)

    # LinkOwner.

    def hello(self, to: ReplicaId) -> wire.PeerHello:
        return wire.PeerHello(
            cluster_id=self._cluster_id,
            incarnation=self._incarnation(),
            sender=replica_message(self._own),
            to=replica_message(to),
            peer_address=self._own_addresses.peer,
            service_address=self._own_addresses.service,
            initial_voters=voters_set(self._identity.initial_voters).voters_set.members,
            cluster_ordinal=self._identity.cluster_ordinal,
        )

    def address(self, to: ReplicaId) -> str:
        return self._addresses.peer_address(to)

    def link_made(self) -> None:
        if self._core is not None:
            self._core.reachable()

    def link_broken(self, to: ReplicaId) -> None:
        self._lost(to)
        if self._core is not None:
            self._core.suspect(to)

    def link_refused(self, error: OperationError) -> None:
        self._runtime.telemetry.counter(
            "ponor_controller_peer_refusals_total", reason=error_name(error.code)
        ).add()
        if error.message != self._logged_refusal:  # log a repeated refusal once
            self._logged_refusal = error.message
            LOG.warning("another controller refuses connections of this controller: %s", error.message)

    def _lost(self, to: ReplicaId) -> None:
        if self._core is not None:
            self._core.unreachable(to)

    # Accepted streams.

    async def handle(self, connection: Connection) -> None:
        """Serve one peer until it disconnects or is refused."""
        self._calls += 1
        try:
            await self._serve(connection)
        except OperationError as error:
            await _refuse(connection, error)
        except (ConnectionClosedError, DecodeError, PeerFrameError, TimeoutError):
            return
        finally:
            self._calls -= 1
            await connection.close()

    async def _serve(self, connection: Connection) -> None:
        async with asyncio.timeout(HANDSHAKE_SECONDS):
            hello = await receive_hello(connection, self._identity)
        if hello is None:
            return
        sender = self._admit(hello)
        before = self._callers.pop(sender, None)
        self._callers[sender] = connection
        if before is not None:
            await before.close()
        self._addresses.add_hint(sender, Addresses(hello.peer_address, hello.service_address))
        self._refresh()
        if self._core is not None:
            self._core.peer_restarted(sender)
        alive = asyncio.get_running_loop().create_task(
            self._send_keepalives(connection), name=f"peer-{sender.node_id}-alive"
        )
        try:
            await self._receive(connection, sender)
        finally:
            alive.cancel()
            await asyncio.gather(alive, return_exceptions=True)
            if self._callers.get(sender) is connection:
                del self._callers[sender]
                self._refresh()
                if self._core is not None:
                    self._core.suspect(sender)

    def _refresh(self) -> None:
        if self._core is not None:
            self.keep_links(self._core.membership.members)

    def _admit(self, hello: wire.PeerHello) -> ReplicaId:
        """The sender of a hello.

        Raises:
            OperationError: the sender belongs to another cluster, or the hello addresses another replica.
        """
        sender, to = replica(hello.sender), replica(hello.to)
        problem = None
        if self._calls > CALLERS_MAX:
            raise OperationError(
                error_pb2.ERROR_CODE_OVERLOADED,
                f"{CALLERS_MAX} controllers are connected, the maximum; try again later",
            )
        if hello.cluster_id != self._cluster_id:
            problem = f"this controller belongs to cluster {self._cluster_id}, not {hello.cluster_id}"
        elif to != self._own:
            problem = (
                f"this is node {self._own.node_id} with directory {self._own.directory_id.hex()}, not node"
                f" {to.node_id} with directory {to.directory_id.hex()}; remove the lost member and add this"
                " controller"
            )
        elif hello.incarnation < self._incarnation() and not self._is_member(sender):
            problem = (
                f"node {sender.node_id} has incarnation {hello.incarnation} from before the forced recovery;"
                " start it with an empty directory"
            )
        if problem is not None:
            raise OperationError(error_pb2.ERROR_CODE_INVALID_REQUEST, problem)
        return sender

    def _is_member(self, sender: ReplicaId) -> bool:
        return self._core is not None and sender in self._core.membership.members

    async def _receive(self, connection: Connection, sender: ReplicaId) -> None:
        while True:
            request = wire.ExchangeRequest.FromString(await connection.receive())
            if self._callers.get(sender) is not connection:
                return  # the sender opened a newer stream, so messages of this one are obsolete
            if request.WhichOneof("frame") != "messages":
                raise PeerFrameError("only frames with messages may follow a hello")
            if self._core is None:
                continue
            for message in decode_messages(request.messages, sender, self._own):
                self._core.step(message)
            self._core.flush()

    async def _send_keepalives(self, connection: Connection) -> None:
        await connection.send(wire.ExchangeResponse(welcome=wire.PeerWelcome()).SerializeToString())
        alive = wire.ExchangeResponse(alive=wire.PeerAlive()).SerializeToString()
        while True:
            await self._runtime.clock.sleep(ALIVE_SECONDS)
            await connection.send(alive)


async def receive_hello(
    connection: Connection, identity: DirectoryIdentity, *, may_format: bool = False
) -> wire.PeerHello | None:
    """Receive the hello of a stream. If the first frame is a request for the identity, answer it and return
    None.

    Raises:
        OperationError: the first frame is neither a hello nor such a request.
    """
    request = wire.ExchangeRequest.FromString(await connection.receive())
    match request.WhichOneof("frame"):
        case "hello":
            return request.hello
        case "introduce":
            answer = introduction(identity, may_format=may_format)
            await connection.send(wire.ExchangeResponse(introduction=answer).SerializeToString())
            return None
    raise OperationError(
        error_pb2.ERROR_CODE_INVALID_REQUEST, "the first frame between controllers must be a hello"
    )


async def _refuse(connection: Connection, error: OperationError) -> None:
    try:
        await connection.send(wire.ExchangeResponse(refused=error.to_proto()).SerializeToString())
    except ConnectionClosedError:
        return
