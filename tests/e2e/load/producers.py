"""Idempotent acks=all producers of three unmodified client families with one interface.

Each `produce_*` sends records [first, first + count) of one producer name, spread over the partitions, and
returns the delivery reports [(number, partition, offset)]. A permanent delivery failure raises: every send
must survive the tests' faults. `rate_bytes` (bytes per second) keeps a load steady; None means full speed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast

from tests.e2e.load.records import LoadRecord, make_record

Report: TypeAlias = tuple[int, int, int]
CLIENT_FAMILIES = ("librdkafka", "aiokafka", "kafka-python")
COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
DELIVERY_TIMEOUT_MS = 300_000
UNKNOWN_OFFSET = -1
"""Offset reported by librdkafka for a repeated batch that the broker no longer remembers
(DUPLICATE_SEQUENCE_NUMBER)."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """Parameters of one producer."""

    bootstrap: str
    topic: str
    producer: str
    first: int
    count: int
    partitions: int
    compression: str = "none"
    rate_bytes: float | None = None
    stop_file: str | None = None
    """If this file appears, sending ends early; delivery reports are still awaited."""
    batch_bytes_max: int = 1_000_000
    """Only for librdkafka: batches grow while the broker is slow, and the last record added may exceed the
    limit."""

    @property
    def started_file(self) -> Path:
        """Created when the client is connected and sends; a client that never finds the cluster gives up."""
        return Path(f"{self.stop_file}.{self.producer}.started")


class Pace:
    """Spreads sends over time."""

    def __init__(self, rate_bytes: float | None) -> None:
        self._rate = rate_bytes
        self._began = time.monotonic()
        self._sent = 0

    def ahead_s(self, record: LoadRecord) -> float:
        """Return the wait in seconds before the next send."""
        if self._rate is None:
            return 0.0
        self._sent += len(record.value or b"") + 100
        return max(0.0, self._began + self._sent / self._rate - time.monotonic())


def produce(family: str, assignment: Assignment) -> list[Report]:
    """Send with one client family."""
    senders: dict[str, Callable[[Assignment], list[Report]]] = {
        "librdkafka": produce_librdkafka,
        "aiokafka": lambda work: asyncio.run(produce_aiokafka(work)),
        "kafka-python": produce_kafka_python,
    }
    return senders[family](assignment)


def _numbers(assignment: Assignment) -> Any:
    stop = Path(assignment.stop_file) if assignment.stop_file else None
    for number in range(assignment.first, assignment.first + assignment.count):
        if stop is not None and number % 64 == 0:
            if stop.exists():
                return
            if number == assignment.first + 64:
                assignment.started_file.touch()
        yield number


def partition_of(number: int, partitions: int) -> int:
    """Choose a record's partition; short runs stay together so that batches form."""
    return (number // 7) % partitions


def produce_librdkafka(assignment: Assignment) -> list[Report]:
    """Produce with confluent_kafka.Producer."""
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": assignment.bootstrap,
            "enable.idempotence": True,
            "acks": "all",
            "compression.type": assignment.compression,
            "delivery.timeout.ms": DELIVERY_TIMEOUT_MS,
            "linger.ms": 5,
            "batch.size": assignment.batch_bytes_max,
            "socket.connection.setup.timeout.ms": 5000,
            "reconnect.backoff.max.ms": 500,
            "log_level": 2,
        }
    )
    reports: list[Report] = []
    failures: list[str] = []

    def delivered(number: int) -> Callable[[Any, Any], None]:
        def report(error: Any, message: Any) -> None:
            if error is not None:
                failures.append(f"{assignment.producer}/{number}: {error}")
            else:
                offset = message.offset()
                reports.append((number, message.partition(), UNKNOWN_OFFSET if offset is None else offset))

        return report

    pace = Pace(assignment.rate_bytes)
    for number in _numbers(assignment):
        record = make_record(assignment.producer, number)
        ahead = pace.ahead_s(record)
        while ahead > 0.002:
            before = time.monotonic()
            producer.poll(ahead)
            ahead -= time.monotonic() - before
        while True:
            try:
                producer.produce(
                    assignment.topic,
                    key=record.key,
                    value=record.value,
                    headers=cast("Any", record.headers),
                    partition=partition_of(number, assignment.partitions),
                    on_delivery=delivered(number),
                )
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
        assert not failures, failures[0]
    left = producer.flush(DELIVERY_TIMEOUT_MS / 1000)
    assert not failures, failures[0]
    assert left == 0, f"{left} records were never reported"
    return reports


async def produce_aiokafka(assignment: Assignment) -> list[Report]:
    """Produce with aiokafka.AIOKafkaProducer."""
    from aiokafka import AIOKafkaProducer

    producer = AIOKafkaProducer(
        bootstrap_servers=assignment.bootstrap,
        enable_idempotence=True,
        acks="all",
        compression_type=None if assignment.compression == "none" else assignment.compression,
        linger_ms=5,
        request_timeout_ms=180_000,  # also limits the total time for a batch
        retry_backoff_ms=100,
    )
    await producer.start()
    reports: list[Report] = []
    waiting: list[tuple[int, asyncio.Future[Any]]] = []

    async def collect() -> None:
        for number, future in waiting:
            metadata = await asyncio.wait_for(future, DELIVERY_TIMEOUT_MS / 1000)
            reports.append((number, metadata.partition, metadata.offset))
        waiting.clear()

    try:
        pace = Pace(assignment.rate_bytes)
        for number in _numbers(assignment):
            record = make_record(assignment.producer, number)
            ahead = pace.ahead_s(record)
            if ahead > 0.002:
                await asyncio.sleep(ahead)
            future = await producer.send(
                assignment.topic,
                key=record.key,
                value=record.value,
                headers=[(name, content) for name, content in record.headers],
                partition=partition_of(number, assignment.partitions),
            )
            waiting.append((number, future))
            if len(waiting) >= 5000:
                await collect()
        await collect()
    finally:
        await producer.stop()
    return reports


def produce_kafka_python(assignment: Assignment) -> list[Report]:
    """Produce with kafka.KafkaProducer."""
    from kafka import KafkaProducer

    producer = KafkaProducer(
        bootstrap_servers=assignment.bootstrap,
        enable_idempotence=True,
        acks="all",
        compression_type=None if assignment.compression == "none" else assignment.compression,
        linger_ms=5,
        delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
        request_timeout_ms=60_000,
        max_block_ms=120_000,
    )
    reports: list[Report] = []
    waiting: list[tuple[int, Any]] = []

    def collect() -> None:
        for number, future in waiting:
            metadata = future.get(timeout=DELIVERY_TIMEOUT_MS / 1000)
            reports.append((number, metadata.partition, metadata.offset))
        waiting.clear()

    pace = Pace(assignment.rate_bytes)
    for number in _numbers(assignment):
        record = make_record(assignment.producer, number)
        ahead = pace.ahead_s(record)
        if ahead > 0.002:
            time.sleep(ahead)
        future = producer.send(
            assignment.topic,
            key=record.key,
            value=record.value,
            headers=record.headers,
            partition=partition_of(number, assignment.partitions),
        )
        waiting.append((number, future))
        if len(waiting) >= 5000:
            collect()
    producer.flush(DELIVERY_TIMEOUT_MS / 1000)
    collect()
    producer.close()
    return reports
