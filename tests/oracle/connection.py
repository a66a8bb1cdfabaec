"""A socket that speaks Kafka's frames and nothing else: the oracle sends bytes that no client library would send."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Final

ANSWER_S_MAX: Final = 100.0
"""Only who says nothing takes so long, however busy the machine is."""


@dataclass(frozen=True, slots=True)
class Closed:
    """The broker closed the connection instead of answering."""


@dataclass(frozen=True, slots=True)
class Silent:
    """The broker said nothing for `ANSWER_S_MAX`."""


Frame = bytes | Closed | Silent


class Connection:
    """One connection to a broker."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S_MAX)
        self._correlation = 0

    def next_correlation(self) -> int:
        """A correlation id that this connection has not used."""
        self._correlation += 1
        return self._correlation

    def send(self, frame: bytes, *, length: int | None = None) -> None:
        """Send a frame; `length` is what it claims to be, where that is a lie."""
        claimed = len(frame) if length is None else length
        self._socket.sendall(claimed.to_bytes(4, "big", signed=True) + frame)

    def receive(self) -> Frame:
        """The next frame without its length."""
        try:
            head = self._exactly(4)
            return Closed() if head is None else self._exactly(int.from_bytes(head, "big")) or Closed()
        except TimeoutError:
            return Silent()

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def _exactly(self, count: int) -> bytes | None:
        data = bytearray()
        while len(data) < count:
            try:
                part = self._socket.recv(count - len(data))
            except ConnectionError:
                return None
            if not part:
                return None
            data += part
        return bytes(data)
