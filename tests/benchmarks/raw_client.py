"""A load generator that costs little: prebuilt Produce and Fetch frames over plain sockets, answers barely looked at.

Real clients measure themselves first; this one leaves the core to the broker.
"""

from __future__ import annotations

import selectors
import socket
import time
from dataclasses import dataclass, field

from ponor_kafka.codec import decode_as, encode
from ponor_kafka.headers import decode_response_header, encode_request_header
from ponor_kafka.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from ponor_kafka.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from ponor_kafka.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ponor_kafka.record_builder import NewRecord, build_batch

PRODUCE_VERSION = 9
FETCH_VERSION = 12
METADATA_VERSION = 12


@dataclass(slots=True)
class Connection:
    """One socket with its requests in flight (times of sending, oldest first)."""

    socket: socket.socket
    frame: bytes
    sent_at: list[float] = field(default_factory=list)
    received: bytearray = field(default_factory=bytearray)


@dataclass(slots=True)
class LoadResult:
    """What a run saw. Latencies in seconds."""

    requests: int
    seconds: float
    latencies: list[float]
    response_bytes: int

    def percentile(self, fraction: float) -> float:
        """In milliseconds."""
        ordered = sorted(self.latencies)
        return 1000 * ordered[min(len(ordered) - 1, int(fraction * len(ordered)))]


def connect(bootstrap: str) -> socket.socket:
    """A plain connection without delays."""
    host, _, port = bootstrap.rpartition(":")
    connection = socket.create_connection((host, int(port)))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def framed(body: bytes) -> bytes:
    """With its length in front."""
    return len(body).to_bytes(4, "big") + body


def produce_frame(topic: str, partition: int, batch_bytes: int, record_bytes: int, client: str) -> bytes:
    """A Produce request with one batch of about `batch_bytes`."""
    count = max(1, batch_bytes // record_bytes)
    batch = build_batch([NewRecord(1_700_000_000_000, None, bytes(record_bytes)) for _ in range(count)])
    data = PartitionProduceData(index=partition, records=batch)
    request = ProduceRequest(
        transactional_id=None,
        acks=-1,
        timeout_ms=30_000,
        topic_data=[TopicProduceData(name=topic, partition_data=[data])],
    )
    return framed(encode_request_header(0, PRODUCE_VERSION, 1, client) + encode(request, PRODUCE_VERSION))


def fetch_frame(topic: str, partition: int, offset: int, max_bytes: int, client: str) -> bytes:
    """A Fetch request of one partition."""
    wanted = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes)
    request = FetchRequest(
        replica_id=-1,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=max_bytes,
        topics=[FetchTopic(topic=topic, partitions=[wanted])],
    )
    return framed(encode_request_header(1, FETCH_VERSION, 1, client) + encode(request, FETCH_VERSION))


def metadata_frame(topic: str, client: str) -> bytes:
    """A Metadata request of one topic."""
    request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
    return framed(encode_request_header(3, METADATA_VERSION, 1, client) + encode(request, METADATA_VERSION))


def run_load(
    bootstrap: str, frames: list[bytes], *, depth: int, seconds: float, rate: float | None = None
) -> LoadResult:
    """One connection per frame, `depth` requests in flight each, for a while; with `rate`, so many per second in all."""
    selector = selectors.DefaultSelector()
    connections = [Connection(connect(bootstrap), frame) for frame in frames]
    for connection in connections:
        selector.register(connection.socket, selectors.EVENT_READ, connection)
    began = time.perf_counter()
    end = began + seconds
    latencies: list[float] = []
    response_bytes = 0
    turn = 0
    if rate is None:
        for connection in connections:
            for _ in range(depth):
                _send(connection)
    while True:
        now = time.perf_counter()
        if now >= end and not any(connection.sent_at for connection in connections):
            break
        if rate is not None:
            while now < end and turn < (now - began) * rate:
                _send(connections[turn % len(connections)])
                turn += 1
        for key, _ in selector.select(0.0005 if rate is not None else 1.0):
            connection = key.data
            answered, size = _receive(connection, latencies)
            response_bytes += size
            if rate is None and time.perf_counter() < end:
                for _ in range(answered):
                    _send(connection)
    for connection in connections:
        connection.socket.close()
    selector.close()
    return LoadResult(len(latencies), time.perf_counter() - began, latencies, response_bytes)


def _send(connection: Connection) -> None:
    connection.sent_at.append(time.perf_counter())
    connection.socket.sendall(connection.frame)


def _receive(connection: Connection, latencies: list[float]) -> tuple[int, int]:
    part = connection.socket.recv(1 << 20)
    assert part, "the broker closed a connection"
    connection.received += part
    answered = 0
    while len(connection.received) >= 4:
        length = int.from_bytes(connection.received[:4], "big")
        if len(connection.received) < 4 + length:
            break
        del connection.received[: 4 + length]
        latencies.append(time.perf_counter() - connection.sent_at.pop(0))
        answered += 1
    return answered, len(part)


def exchange(bootstrap: str, frame: bytes) -> bytes:
    """Send one frame, return the answer's body without its length."""
    connection = connect(bootstrap)
    try:
        connection.sendall(frame)
        reader = connection.makefile("rb")
        length = int.from_bytes(reader.read(4), "big")
        return reader.read(length)
    finally:
        connection.close()


def check_produce(bootstrap: str, frame: bytes) -> None:
    """One Produce must succeed, or the figures would measure errors."""
    answer = exchange(bootstrap, frame)
    _, position = decode_response_header(0, PRODUCE_VERSION, answer)
    response, _ = decode_as(ProduceResponse, PRODUCE_VERSION, answer, position)
    code = response.responses[0].partition_responses[0].error_code
    assert code == 0, f"Produce is answered with error {code}"


def check_fetch(bootstrap: str, frame: bytes) -> int:
    """One Fetch must succeed; returns the bytes of records."""
    answer = exchange(bootstrap, frame)
    _, position = decode_response_header(1, FETCH_VERSION, answer)
    response, _ = decode_as(FetchResponse, FETCH_VERSION, answer, position)
    partition = response.responses[0].partitions[0]
    assert partition.error_code == 0, f"Fetch is answered with error {partition.error_code}"
    return len(partition.records or b"")


def partitions_of(bootstrap: str, topic: str) -> int:
    """How many partitions a topic has; 0 while it does not exist."""
    answer = exchange(bootstrap, metadata_frame(topic, "bench"))
    _, position = decode_response_header(3, METADATA_VERSION, answer)
    response, _ = decode_as(MetadataResponse, METADATA_VERSION, answer, position)
    return len(response.topics[0].partitions)
