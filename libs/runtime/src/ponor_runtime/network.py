"""The network port: ordered streams of frames between services.

A frame is one encoded protobuf message. `ponor_rpc.grpc_network` carries frames over gRPC (every connection is one bidirectional
call, so that any gRPC client can talk to the services); the simulator carries the same bytes through a faulty network.
A method is a gRPC path such as "/ponor.controller.v1.SessionService/Session".
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol, TypeAlias

FRAME_BYTES_MAX = 4 * 1024 * 1024
"""No frame is larger; both sides refuse one."""


class ConnectionClosedError(Exception):
    """The peer is gone, the network failed, or `close` was called."""


class Connection(Protocol):
    """One bidirectional stream of frames. Order is kept; nothing is lost while it is open."""

    async def send(self, frame: bytes) -> None:
        """Hand a frame over; waits while the peer is slow (backpressure).

        Raises:
            ConnectionClosedError: the connection is gone.
        """
        ...

    def try_send(self, frame: bytes) -> bool:
        """Hand a frame over at once, if nothing that was handed over before is still waiting; else it is not taken: `send` waits, or tells that the connection is gone.

        For a lone frame that somebody waits for. What comes meanwhile is better gathered and sent together.
        """
        ...

    async def receive(self) -> bytes:
        """The next frame.

        Raises:
            ConnectionClosedError: the connection is gone.
        """
        ...

    async def close(self) -> None:
        """End the connection; idempotent."""
        ...


Handler: TypeAlias = Callable[[Connection], Awaitable[None]]
"""Serves one connection; the connection is closed when it returns."""


class Listener(Protocol):
    """A bound address."""

    @property
    def address(self) -> str:
        """HOST:PORT, with the port that was really bound."""
        ...

    async def close(self) -> None:
        """Stop serving and close every connection."""
        ...


class Network(Protocol):
    """Where connections come from."""

    async def connect(self, address: str, method: str) -> Connection:
        """Open a connection to HOST:PORT. May succeed before the peer is known to be there; then `receive` tells.

        Raises:
            ConnectionClosedError: the peer cannot be reached.
        """
        ...

    async def listen(self, address: str, handlers: Mapping[str, Handler]) -> Listener:
        """Serve methods on HOST:PORT (port 0: any).

        Raises:
            OSError: the address cannot be bound; the message names it.
        """
        ...
