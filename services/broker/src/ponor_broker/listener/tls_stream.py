"""The server side of one TLS connection, without a socket: ciphertext in, plaintext out, and the reverse.

The event loop's own TLS reports a connection only after its handshake and keeps a read buffer of 256 KiB for
each. Here, clients in their handshake count as connections, and all connections share one buffer.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import Any, Final, cast

from ponor_runtime.disk import Buffer

PIECE_BYTES: Final = 64 << 10


class TlsStream:
    """One connection. Every method raises `ssl.SSLError` if the client violates the protocol, or leaves a
    handshake record unfinished while data is written.

    Attributes:
        is_open: whether the handshake is complete.
        has_ended: whether the client has announced the end of the connection.
    """

    __slots__ = ("_incoming", "_object", "_outgoing", "has_ended", "is_open")

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self.is_open = False
        self.has_ended = False

    @property
    def peer_certificate(self) -> Any:
        """The client's certificate as `ssl.SSLObject.getpeercert` returns it."""
        return self._object.getpeercert()

    def received(self, data: memoryview) -> None:
        """Take ciphertext from the client; continue the handshake if it is not complete."""
        self._incoming.write(data)
        if not self.is_open:
            try:
                self._object.do_handshake()
            except ssl.SSLWantReadError:
                return
            self.is_open = True

    def read_into(self, buffer: memoryview) -> int:
        """Decrypt into the buffer and return the number of bytes; fewer than its size: there are no more now.
        Set `has_ended` if the client has announced the end of the connection.
        """
        filled = 0
        try:
            while filled < len(buffer):
                count = cast("int", self._object.read(len(buffer) - filled, buffer[filled:]))
                if not count:
                    self.has_ended = True
                    break
                filled += count
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.has_ended = True
        return filled

    def encrypt(self, buffers: Sequence[Buffer]) -> list[bytes]:
        """Encrypt data; return the ciphertext in pieces, because OpenSSL keeps the memory of the largest."""
        pieces: list[bytes] = []
        for buffer in buffers:
            view = memoryview(buffer)
            for begin in range(0, len(view), PIECE_BYTES):
                piece = view[begin : begin + PIECE_BYTES]
                while piece:
                    piece = piece[self._object.write(piece) :]
                pieces.append(self._outgoing.read())
        return pieces

    def end(self) -> None:
        """Announce the end of the connection to the client."""
        try:
            self._object.unwrap()
        except ssl.SSLError:
            return  # the client has not announced its own end, or the handshake is not complete

    def take_outgoing(self) -> bytes:
        """Return the ciphertext for the client, and forget it."""
        return self._outgoing.read() if self._outgoing.pending else b""
