"""Connections to the Kafka listeners of other brokers over TCP.

Listeners have no TLS yet. When they get TLS, brokers need a separate listener, whose address belongs in the
node's registration, next to the address for clients.
"""

from __future__ import annotations

import asyncio
import socket  # noqa: TID251 - names of socket options
import struct
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from ponor_runtime.host_port import split_host_port
from ponor_runtime.network import FRAME_BYTES_MAX, Connection, ConnectionClosedError, FrameTooLargeError

ConnectPeer: TypeAlias = Callable[[str], Awaitable[Connection]]
"""Opens a connection to the Kafka listener at HOST:PORT; a frame is a Kafka frame without its length. Raises
ConnectionClosedError if the peer cannot be reached."""

_LENGTH_BYTES: Final = 4
_DROP_UNSENT: Final = struct.pack("ii", 1, 0)


async def connect_tcp(address: str) -> Connection:
    """Open a connection to the Kafka listener at HOST:PORT.

    Raises:
        ConnectionClosedError: the peer cannot be reached.
    """
    host, port = split_host_port(address)
    try:
        reader, writer = await asyncio.open_connection(host, port)
    except OSError as error:
        raise ConnectionClosedError(f"{address} cannot be reached: {error}") from error
    return TcpConnection(reader, writer, address)


class TcpConnection:
    """`Connection` on a socket. A 32-bit length precedes every frame; frames have at most
    `FRAME_BYTES_MAX` bytes. `send` waits while the peer does not read.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: str) -> None:
        self._reader = reader
        self._writer = writer
        self._address = address
        # A request that timed out must not arrive after its retry on the next connection: the kernel must
        # drop unsent bytes when the connection closes.
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _DROP_UNSENT)

    async def send(self, frame: bytes) -> None:
        """Send a frame."""
        self._write(frame)
        try:
            await self._writer.drain()
        except OSError as error:
            raise ConnectionClosedError(f"the connection to {self._address} broke: {error}") from error

    def try_send(self, frame: bytes) -> bool:
        """Send a frame if no earlier frame is pending."""
        transport = self._writer.transport
        if transport.is_closing() or transport.get_write_buffer_size():
            return False
        self._write(frame)
        return True

    async def receive(self) -> bytes:
        """Wait for the next frame."""
        try:
            length = int.from_bytes(await self._reader.readexactly(_LENGTH_BYTES), "big")
            if length > FRAME_BYTES_MAX:
                raise ConnectionClosedError(
                    f"{self._address} sent a frame length of {length} bytes; the limit is {FRAME_BYTES_MAX}"
                )
            return await self._reader.readexactly(length)
        except (OSError, asyncio.IncompleteReadError) as error:
            raise ConnectionClosedError(
                f"the connection to {self._address} was closed or broke: {error}"
            ) from error

    async def close(self) -> None:
        """Close the connection and drop unsent bytes."""
        self._writer.transport.abort()

    def _write(self, frame: bytes) -> None:
        if len(frame) > FRAME_BYTES_MAX:
            raise FrameTooLargeError(
                f"a frame of {len(frame)} bytes to {self._address} exceeds the limit, {FRAME_BYTES_MAX}"
            )
        if self._writer.transport.is_closing():
            raise ConnectionClosedError(f"the connection to {self._address} is closed")
        self._writer.write(len(frame).to_bytes(_LENGTH_BYTES, "big") + frame)
