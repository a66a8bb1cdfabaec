"""The demo's clients: three unmodified client libraries that write and read the same topic."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import aiokafka
import confluent_kafka
import kafka

TOPIC = "journeys"
GROUP = "demo-readers"
VALUE_BYTES = 1_000
READ_S_MAX = 60.0
FAMILIES = ("librdkafka", "aiokafka", "kafka-python")
Told: TypeAlias = Callable[[int], None]
"""Callback with the number of additional records that a client has written or read."""


@dataclass(slots=True)
class Seen:
    """Records read by all readers of the group; each record is (producer, number)."""

    records: dict[tuple[str, int], int] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, key: bytes | None) -> None:
        """Count one record."""
        assert key is not None, "the demo's writers give every record a key"
        family, _, number = key.decode().partition("/")
        with self.lock:
            place = (family, int(number))
            self.records[place] = self.records.get(place, 0) + 1


def write(family: str, bootstrap: str, count: int, told: Told) -> None:
    """Write `count` records with acks=all; return when all are acknowledged."""
    writers: dict[str, Callable[[str, int, Told], None]] = {
        "librdkafka": _write_librdkafka,
        "aiokafka": lambda *given: asyncio.run(_write_aiokafka(*given)),
        "kafka-python": _write_kafka_python,
    }
    writers[family](bootstrap, count, told)


def read(family: str, bootstrap: str, seen: Seen, told: Told, is_over: Callable[[], bool]) -> None:
    """Read as a member of the demo's group until every record was read."""
    readers: dict[str, Callable[[str, Seen, Told, Callable[[], bool]], None]] = {
        "librdkafka": _read_librdkafka,
        "aiokafka": lambda *given: asyncio.run(_read_aiokafka(*given)),
        "kafka-python": _read_kafka_python,
    }
    readers[family](bootstrap, seen, told, is_over)


def quiet_clients() -> None:
    """Silence aiokafka's warnings about retried requests, for example during a coordinator election."""
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)


def make_topic(bootstrap: str, partitions: int) -> None:
    """Create the demo's topic with librdkafka's admin client."""
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made in admin.create_topics([NewTopic(TOPIC, partitions)]).values():
        made.result(30)


def end_offsets(bootstrap: str) -> dict[int, int]:
    """Return the end offset of every partition of the demo's topic."""
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap)
    try:
        partitions = [kafka.TopicPartition(TOPIC, each) for each in consumer.partitions_for_topic(TOPIC)]
        return {each.partition: end for each, end in consumer.end_offsets(partitions).items()}
    finally:
        consumer.close()


def _key(family: str, number: int) -> bytes:
    return f"{family}/{number}".encode()


def _value(family: str, number: int) -> bytes:
    return f"journey {number} of {family}; ".encode().ljust(VALUE_BYTES, b".")


def _write_librdkafka(bootstrap: str, count: int, told: Told) -> None:
    failures: list[Any] = []

    def delivered(error: Any, _: Any) -> None:
        if error is not None:
            failures.append(error)
        told(1)

    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5}
    )
    for number in range(count):
        while True:
            try:
                producer.produce(
                    TOPIC, _value("librdkafka", number), _key("librdkafka", number), on_delivery=delivered
                )
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    producer.flush(READ_S_MAX)
    if failures:
        raise RuntimeError(f"librdkafka: {len(failures)} records were not written: {failures[0]}")


async def _write_aiokafka(bootstrap: str, count: int, told: Told) -> None:
    producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True, linger_ms=5)
    await producer.start()
    try:
        waiting: set[asyncio.Future[Any]] = set()
        for number in range(count):
            sent = await producer.send(TOPIC, _value("aiokafka", number), _key("aiokafka", number))
            waiting.add(sent)
            if len(waiting) >= 500:
                await asyncio.gather(*waiting)
                told(len(waiting))
                waiting.clear()
        await asyncio.gather(*waiting)
        told(len(waiting))
    finally:
        await producer.stop()


def _write_kafka_python(bootstrap: str, count: int, told: Told) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, acks="all", linger_ms=5)
    waiting: list[Any] = []
    for number in range(count):
        waiting.append(producer.send(TOPIC, _value("kafka-python", number), _key("kafka-python", number)))
        if len(waiting) >= 500:
            for sent in waiting:
                sent.get(READ_S_MAX)
            told(len(waiting))
            waiting.clear()
    for sent in waiting:
        sent.get(READ_S_MAX)
    told(len(waiting))
    producer.close()


def _read_librdkafka(bootstrap: str, seen: Seen, told: Told, is_over: Callable[[], bool]) -> None:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": GROUP, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([TOPIC])
    while not is_over():
        records = [record for record in consumer.consume(500, 0.2) if record.error() is None]
        for record in records:
            seen.note(record.key())
        told(len(records))
    consumer.close()


async def _read_aiokafka(bootstrap: str, seen: Seen, told: Told, is_over: Callable[[], bool]) -> None:
    consumer = aiokafka.AIOKafkaConsumer(
        TOPIC, bootstrap_servers=bootstrap, group_id=GROUP, auto_offset_reset="earliest"
    )
    await consumer.start()
    try:
        while not is_over():
            for records in (await consumer.getmany(timeout_ms=200, max_records=500)).values():
                for record in records:
                    seen.note(record.key)
                told(len(records))
    finally:
        await consumer.stop()


def _read_kafka_python(bootstrap: str, seen: Seen, told: Told, is_over: Callable[[], bool]) -> None:
    consumer = kafka.KafkaConsumer(
        TOPIC, bootstrap_servers=bootstrap, group_id=GROUP, auto_offset_reset="earliest"
    )
    while not is_over():
        for records in consumer.poll(timeout_ms=200, max_records=500).values():
            for record in records:
                seen.note(record.key)
            told(len(records))
    consumer.close()
