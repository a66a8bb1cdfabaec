"""The network port: ordered streams of frames between services.

A frame is one encoded protobuf message. `ponor_rpc.grpc_network` carries frames over gRPC: every connection
is one bidirectional call, so any gRPC client can talk to the services. The simulator carries the same bytes
through a faulty network.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol, TypeAlias

FRAME_BYTES_MAX = 4 * 1024 * 1024
"""Maximum size of a frame; both sides refuse larger ones."""


class ConnectionClosedError(Exception):
    """The peer closed, the network failed, or `close` was called."""


class FrameTooLargeError(ValueError):
    """A frame has more than `FRAME_BYTES_MAX` bytes. Nothing was sent, and the connection stays open."""


class Connection(Protocol):
    """A bidirectional, ordered stream of frames. No frame is lost while it is open."""

    async def send(self, frame: bytes) -> None:
        """Send a frame; wait while the peer is slow (backpressure).

        Raises:
            ConnectionClosedError: the connection is closed.
            FrameTooLargeError: the frame is too large.
        """
        ...

    def try_send(self, frame: bytes) -> bool:
        """Send a frame without waiting if no earlier frame is pending.

        Otherwise return False without sending it: use `send`.

        Use this for a single latency-sensitive frame. If it returns False, collect further frames and send
        them together.
        """
        ...

    async def receive(self) -> bytes:
        """Wait for the next frame.

        Raises:
            ConnectionClosedError: the connection is closed.
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
        """HOST:PORT with the actual port."""
        ...

    async def close(self) -> None:
        """Stop serving and close every connection."""
        ...


class Network(Protocol):
    """Factory of connections and listeners."""

    async def connect(self, address: str, method: str) -> Connection:
        """Open a connection to HOST:PORT. The call may return before the peer is reached. If the peer turns
        out to be unreachable, `receive` raises.

        Raises:
            ConnectionClosedError: the peer cannot be reached.
        """
        ...

    async def listen(self, address: str, handlers: Mapping[str, Handler]) -> Listener:
        """Serve methods on HOST:PORT (port 0: any free port).

        Raises:
            OSError: the address cannot be bound; the message names it.
        """
        ...
