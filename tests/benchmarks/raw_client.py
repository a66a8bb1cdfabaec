"""A load generator with little overhead: prebuilt frames over plain sockets; responses are skipped
by their length.

Real clients mostly measure themselves; this one leaves the core to the broker. The same generator
loads every system, so it cancels out in ratios.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

SCRATCH_BYTES: Final = 1 << 20
LENGTH_BYTES: Final = 4
PACING_POLL_S: Final = 0.0005
"""Interval at which an open loop reads the clock."""


@dataclass(slots=True)
class Connection:
    """One socket with its requests in flight."""

    socket: socket.socket
    frame: bytes
    sent_at: deque[float] = field(default_factory=deque)
    """Times of sending, oldest first."""
    length: bytearray = field(default_factory=bytearray)
    """Received bytes of a response's length."""
    left_bytes: int = 0
    """Remaining bytes of the current response."""

    def received(self, part: memoryview) -> int:
        """Return how many responses end within these bytes."""
        answered = position = 0
        size = len(part)
        while position < size:
            if self.left_bytes:
                step = min(self.left_bytes, size - position)
                position += step
                self.left_bytes -= step
            else:
                wanted = LENGTH_BYTES - len(self.length)
                self.length += part[position : position + wanted]
                position += wanted
                if len(self.length) < LENGTH_BYTES:
                    break
                self.left_bytes = int.from_bytes(self.length, "big")
                self.length.clear()
            if not self.left_bytes and not self.length:
                answered += 1
        return answered


@dataclass(slots=True)
class LoadResult:
    """Results of a run. Latencies in seconds."""

    requests: int
    seconds: float
    latencies: list[float]
    response_bytes: int
    busy_fraction: float
    """Share of its core that the generator used: near 1, the generator was the bottleneck."""
    late: list[float] = field(default_factory=list)
    """In an open loop: delay between due time and sending of each request. It is part of the
    latency and not caused by the system."""

    def percentile_ms(self, fraction: float) -> float:
        """In milliseconds; 0 without requests."""
        return _percentile_ms(self.latencies, fraction)

    def late_ms(self, fraction: float) -> float:
        """The same percentile of the generator's own delay."""
        return _percentile_ms(self.late, fraction)


def _percentile_ms(values_s: list[float], fraction: float) -> float:
    ordered = sorted(values_s)
    return 1000 * ordered[min(len(ordered) - 1, int(fraction * len(ordered)))] if ordered else 0.0


def connect(bootstrap: str) -> socket.socket:
    """A plain connection without delays."""
    host, _, port = bootstrap.rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=30)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def closed_loop(bootstrap: str, frames: list[bytes], *, depth: int, seconds: float) -> LoadResult:
    """One connection per frame with `depth` requests in flight each: a response triggers the next request."""

    def begin(connections: list[Connection]) -> None:
        for connection in connections:
            for _ in range(depth):
                _send(connection, time.perf_counter())

    return _run(bootstrap, frames, seconds, begin, None)


def open_loop(bootstrap: str, frames: list[bytes], *, rate: float, seconds: float) -> LoadResult:
    """`rate` requests per second in total, independent of responses. The latency of a late request
    counts from its due time.
    """
    return _run(bootstrap, frames, seconds, lambda _: None, rate)


def _run(
    bootstrap: str,
    frames: list[bytes],
    seconds: float,
    begin: Callable[[list[Connection]], None],
    rate: float | None,
) -> LoadResult:
    selector = selectors.DefaultSelector()
    connections = [Connection(connect(bootstrap), frame) for frame in frames]
    for connection in connections:
        selector.register(connection.socket, selectors.EVENT_READ, connection)
    scratch = memoryview(bytearray(SCRATCH_BYTES))
    latencies: list[float] = []
    late: list[float] = []
    response_bytes = turn = 0
    busy_before = time.process_time()
    began = now = time.perf_counter()
    end = began + seconds
    begin(connections)
    while now < end or any(connection.sent_at for connection in connections):
        if rate is not None:
            while now < end and turn < (now - began) * rate:
                due = began + turn / rate
                _send(connections[turn % len(connections)], due)
                late.append(time.perf_counter() - due)
                turn += 1
        for key, _ in selector.select(PACING_POLL_S if rate is not None else 1.0):
            connection = key.data
            size = connection.socket.recv_into(scratch)
            assert size, "the subject closed a connection"
            response_bytes += size
            answered = connection.received(scratch[:size])
            now = time.perf_counter()
            for _ in range(answered):
                latencies.append(now - connection.sent_at.popleft())
                if rate is None and now < end:
                    _send(connection, now)
        now = time.perf_counter()
    busy = (time.process_time() - busy_before) / (now - began)
    for connection in connections:
        connection.socket.close()
    selector.close()
    return LoadResult(len(latencies), now - began, latencies, response_bytes, busy, late)


def _send(connection: Connection, due: float) -> None:
    connection.sent_at.append(due)
    connection.socket.sendall(connection.frame)


def exchange(bootstrap: str, frame: bytes) -> bytes:
    """Send one frame; return the response's body without its length."""
    with connect(bootstrap) as connection:
        connection.sendall(frame)
        reader = connection.makefile("rb")
        length = int.from_bytes(reader.read(LENGTH_BYTES), "big")
        return reader.read(length)
