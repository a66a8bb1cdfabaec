"""A socket with Kafka's framing, for bytes that no client library sends."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Final

ANSWER_S_MAX: Final = 100.0
"""Longer than any answer takes on a busy machine."""


@dataclass(frozen=True, slots=True)
class Closed:
    """The broker closed the connection instead of answering."""


@dataclass(frozen=True, slots=True)
class Silent:
    """The broker sent nothing for `ANSWER_S_MAX`."""


Frame = bytes | Closed | Silent


class Connection:
    """One connection to a broker."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S_MAX)
        self._correlation = 0

    def next_correlation(self) -> int:
        """Return an unused correlation id."""
        self._correlation += 1
        return self._correlation

    def send(self, frame: bytes, *, length: int | None = None) -> None:
        """Send a frame; `length` replaces its true length."""
        claimed = len(frame) if length is None else length
        self._socket.sendall(claimed.to_bytes(4, "big", signed=True) + frame)

    def receive(self) -> Frame:
        """Return the next frame without its length."""
        try:
            head = self._exactly(4)
            return Closed() if head is None else self._exactly(int.from_bytes(head, "big")) or Closed()
        except TimeoutError:
            return Silent()

    def close(self) -> None:
        """Disconnect."""
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
