"""The two ports of a controller: one for nodes and tools, one for other controllers.

Both are bound before the log is read, so that their addresses are known. Until the handlers are set,
connections are closed and clients retry.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ponor_rpc.methods import CLUSTER, PEER, QUORUM, SESSION, SUBSCRIBE
from ponor_runtime.network import Connection, Handler, Listener, Network

from ponor_controller.consensus.address_book import Addresses

SERVICE_METHODS: Final = (SESSION, SUBSCRIBE, QUORUM, CLUSTER)
PEER_METHODS: Final = (PEER,)


class Listeners:
    """The two listeners. `open` binds them; `serve` sets their handlers."""

    def __init__(self, network: Network, peer_network: Network) -> None:
        self._network = network
        self.peer_network = peer_network
        self._handlers: Mapping[str, Handler] = {}
        self._listeners: list[Listener] = []
        self.addresses = Addresses("", "")

    async def open(self, listen: str, peer_listen: str) -> None:
        """Bind the addresses. An empty `peer_listen` is not bound.

        Raises:
            OSError: an address cannot be bound; the message names it.
        """
        service = await self._bind(self._network, listen, SERVICE_METHODS)
        peer = await self._bind(self.peer_network, peer_listen, PEER_METHODS) if peer_listen else ""
        self.addresses = Addresses(peer, service)

    def serve(self, handlers: Mapping[str, Handler]) -> None:
        """Set the handler of each method. Connections for methods without a handler are closed."""
        self._handlers = handlers

    def refusal_of(self, method: str) -> str:
        """Why a method has no handler; empty if it has one."""
        return "" if method in self._handlers else "this controller does not serve connections yet"

    async def close(self) -> None:
        """Stop serving and close every connection. Idempotent."""
        self._handlers = {}
        while self._listeners:
            await self._listeners.pop().close()

    async def _bind(self, network: Network, address: str, methods: tuple[str, ...]) -> str:
        listener = await network.listen(address, {method: self._handler_of(method) for method in methods})
        self._listeners.append(listener)
        return listener.address

    def _handler_of(self, method: str) -> Handler:
        async def handle(connection: Connection) -> None:
            handler = self._handlers.get(method)
            if handler is not None:
                await handler(connection)
            else:
                await connection.close()

        return handle
