"""Hostile or broken clients: many connections, half requests, slow bytes, wrong lengths, compression bombs.

Each is one function over plain sockets. The tests make the assertions.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
from collections.abc import Iterator
from typing import Final

from crc32c import crc32c
from ponor_kafka.api import ApiKey
from ponor_kafka.codec import encode
from ponor_kafka.headers import encode_request_header
from ponor_kafka.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ponor_kafka.record_builder import NewRecord, build_batch

SOURCES: Final = tuple(f"127.0.0.{number}" for number in range(2, 8))
"""Source addresses on loopback: one address has too few ports for all connections."""
ZSTD_BLOCK_BYTES: Final = 128 << 10
CRC_POSITION: Final = 17
ATTRIBUTES_POSITION: Final = 21
HEADER_BYTES: Final = 61
ZSTD: Final = 4


class Crowd:
    """Open sockets, spread over the source addresses."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._sources = itertools.cycle(SOURCES)
        self.sockets: list[socket.socket] = []

    def join(self, count: int) -> list[socket.socket]:
        """Open this many more connections."""
        joined = []
        for _ in range(count):
            connection = socket.socket()
            connection.bind((next(self._sources), 0))
            connection.settimeout(30)
            connection.connect(("127.0.0.1", self._port))
            joined.append(connection)
        self.sockets += joined
        return joined

    def leave(self) -> None:
        """Close them all."""
        for connection in self.sockets:
            connection.close()
        self.sockets.clear()

    def still_connected(self) -> int:
        """Number of connections that the broker has not closed."""
        return sum(_is_open(connection) for connection in self.sockets)


def _is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


@contextlib.contextmanager
def crowd(port: int) -> Iterator[Crowd]:
    """A crowd that is closed at the end."""
    people = Crowd(port)
    try:
        yield people
    finally:
        people.leave()


def send_bytes(connection: socket.socket, data: bytes) -> None:
    """Ignore errors of the connection."""
    with contextlib.suppress(OSError):
        connection.sendall(data)


def announce(length: int) -> bytes:
    """The length of a frame that may never follow."""
    return struct.pack(">i", length)


def api_versions_frame() -> bytes:
    """A small, valid request."""
    body = encode_request_header(ApiKey.API_VERSIONS, 0, 1, "hostile")
    return announce(len(body)) + body


def produce_frame(topic: str, batch: bytes | bytearray) -> bytes:
    """One batch for partition 0."""
    data = PartitionProduceData(index=0, records=batch)
    request = ProduceRequest(
        transactional_id=None,
        acks=-1,
        timeout_ms=10_000,
        topic_data=[TopicProduceData(name=topic, partition_data=[data])],
    )
    body = encode_request_header(ApiKey.PRODUCE, 9, 1, "hostile") + encode(request, 9)
    return announce(len(body)) + body


def zstd_bomb(unpacked_bytes: int) -> bytes:
    """A zstd frame of run-length blocks: four bytes for each 128 KiB of zeros (RFC 8878, 3.1.1.2)."""
    blocks = unpacked_bytes // ZSTD_BLOCK_BYTES
    assert blocks > 1
    header = b"\x28\xb5\x2f\xfd" + b"\x00\x38"  # no content size, window of 128 KiB
    middle = struct.pack("<I", (ZSTD_BLOCK_BYTES << 3) | (1 << 1))[:3] + b"\0"
    last = struct.pack("<I", (ZSTD_BLOCK_BYTES << 3) | (1 << 1) | 1)[:3] + b"\0"
    return header + middle * (blocks - 1) + last


def bomb_batch(unpacked_bytes: int) -> bytearray:
    """A record batch with right lengths and a right CRC whose records decompress to this size."""
    batch = bytearray(
        build_batch([NewRecord(1_700_000_000_000, None, b"x") for _ in range(100)])[:HEADER_BYTES]
    )
    batch += zstd_bomb(unpacked_bytes)
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">h", batch, ATTRIBUTES_POSITION, ZSTD)
    struct.pack_into(">I", batch, CRC_POSITION, crc32c(batch[ATTRIBUTES_POSITION:]))
    return batch
