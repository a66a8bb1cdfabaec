"""One connection to each broker of the cluster that this broker sends requests to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Final, Protocol

from ponor_runtime.host_port import join_host_port
from ponor_runtime.network import ConnectionClosedError
from ponor_runtime.runtime import Runtime
from ponor_runtime.tasks import BackgroundTasks

from ponor_broker.peers.kafka_connection import KafkaConnection
from ponor_broker.peers.tcp_connection import ConnectPeer

CONNECT_S_MAX: Final = 5.0
RECONNECT_S_MIN: Final = 0.05
"""First back-off after a failed connection attempt; doubles up to `RECONNECT_S_MAX`."""
RECONNECT_S_MAX: Final = 1.0
WAITING_MAX: Final = 1_000
"""Callers that wait for the connection to one broker."""
IN_FLIGHT_MAX: Final = 5


class PeerUnavailableError(Exception):
    """There is no connection to the broker now. The caller may look up the target again and retry."""


class PeerGoneError(PeerUnavailableError):
    """The broker is not registered or is fenced: its process can no longer write."""


class BrokerAddress(Protocol):
    """A broker's address for clients."""

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...


class BrokerDirectory(Protocol):
    """Addresses of brokers, from the image."""

    def broker(self, node_id: int) -> BrokerAddress | None:
        """Return a broker if it is registered and not fenced."""
        ...


class PeerConnections:
    """Connects on demand; one connection per broker, shared by all callers.

    After a failed attempt, callers wait for the next one, which begins after a back-off.
    """

    def __init__(
        self,
        connect: ConnectPeer,
        brokers: BrokerDirectory,
        runtime: Runtime,
        *,
        client_id: Callable[[int], str],
    ) -> None:
        """Create a pool without connections.

        Args:
            connect: opens a connection.
            brokers: the current image.
            runtime: clock and randomness of the back-off.
            client_id: client id of a connection, by its number within this process.
        """
        self._connect = connect
        self._brokers = brokers
        self._clock = runtime.clock
        self._randomness = runtime.randomness
        self._client_id = client_id
        self._numbers = count(1)
        self._tasks = BackgroundTasks(runtime.fail_stop)
        self._peers: dict[int, _Peer] = {}

    async def connection(self, node_id: int) -> KafkaConnection:
        """Return the open connection to a broker; wait for it while it is being opened.

        Raises:
            PeerGoneError: the broker is not registered, or is fenced.
            PeerUnavailableError: it cannot be reached, or `WAITING_MAX` callers already wait.
        """
        if self._tasks.is_closed:
            raise PeerUnavailableError("this broker is stopping")
        address = self._address(node_id)
        if address is None:
            raise PeerGoneError(f"broker {node_id} is not registered, or is fenced")
        peer = self._peers.get(node_id)
        if peer is None or peer.address != address:
            peer = self._begin(node_id, address)
        if peer.connection is not None and not peer.connection.is_closed:
            return peer.connection
        return await peer.wait()

    def image_changed(self) -> None:
        """Close connections to brokers that were removed, were fenced or have another address, so that
        requests to them fail at once.
        """
        for node_id, peer in list(self._peers.items()):
            if peer.address != self._address(node_id):
                self._end(node_id)

    async def close(self) -> None:
        """Close every connection. Idempotent."""
        for node_id in list(self._peers):
            self._end(node_id)
        await self._tasks.close()

    def _address(self, node_id: int) -> str | None:
        broker = self._brokers.broker(node_id)
        return None if broker is None else join_host_port(broker.host, broker.port)

    def _begin(self, node_id: int, address: str) -> _Peer:
        self._end(node_id)
        peer = self._peers[node_id] = _Peer(node_id, address)
        peer.task = self._tasks.spawn(self._keep(peer), f"connection to broker {node_id}")
        return peer

    def _end(self, node_id: int) -> None:
        peer = self._peers.pop(node_id, None)
        if peer is not None:
            peer.refuse("is no longer available")
            if peer.task is not None:
                peer.task.cancel()

    async def _keep(self, peer: _Peer) -> None:
        """Connect, and wait until the connection closes; repeat while callers wait."""
        delay_s = RECONNECT_S_MIN
        while True:
            try:
                async with asyncio.timeout(CONNECT_S_MAX):
                    wire = await self._connect(peer.address)
            except (ConnectionClosedError, TimeoutError) as error:
                reason = str(error) or f"not connected after {CONNECT_S_MAX:g} s"
                peer.refuse(f"at {peer.address} does not answer: {reason}")
                await self._clock.sleep(self._randomness.uniform(delay_s / 2, delay_s))
                delay_s = min(2 * delay_s, RECONNECT_S_MAX)
            else:
                delay_s = RECONNECT_S_MIN
                client_id = self._client_id(next(self._numbers))
                connection = KafkaConnection(wire, client_id, in_flight_max=IN_FLIGHT_MAX)
                try:
                    peer.opened(connection)
                    await connection.wait_closed()
                finally:
                    await connection.close()
            if not peer.waiting:
                self._peers.pop(peer.node_id)
                return


class _Peer:
    """The connection to one broker, or the callers that wait for it."""

    def __init__(self, node_id: int, address: str) -> None:
        self.node_id = node_id
        self.address = address
        self.connection: KafkaConnection | None = None
        self.task: asyncio.Task[None] | None = None
        self.waiting: dict[asyncio.Future[KafkaConnection], None] = {}

    async def wait(self) -> KafkaConnection:
        """Wait for the next connection.

        Raises:
            PeerUnavailableError: the attempt failed, or too many callers wait.
        """
        if len(self.waiting) >= WAITING_MAX:
            raise PeerUnavailableError(f"{WAITING_MAX} requests already wait for broker {self.node_id}")
        opened: asyncio.Future[KafkaConnection] = asyncio.get_running_loop().create_future()
        self.waiting[opened] = None
        try:
            return await opened
        finally:
            self.waiting.pop(opened, None)

    def opened(self, connection: KafkaConnection) -> None:
        self.connection = connection
        for opened in self._take_waiting():
            opened.set_result(connection)

    def refuse(self, reason: str) -> None:
        error = PeerUnavailableError(f"broker {self.node_id} {reason}")
        for opened in self._take_waiting():
            opened.set_exception(error)

    def _take_waiting(self) -> list[asyncio.Future[KafkaConnection]]:
        waiting = [opened for opened in self.waiting if not opened.done()]
        self.waiting.clear()
        return waiting
