"""Rows as an unmodified Kafka client (librdkafka) writes and reads them, for comparison with Spark's.

A row is (topic, partition, offset, timestamp in ms, timestamp type, key, value, headers):
everything that a consumer gets of a record, and that Spark's rows contain.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_CREATE_TIME,
    Consumer,
    KafkaError,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

Headers = tuple[tuple[str, bytes | None], ...]
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
WAIT_S = 240.0


class KafkaRow(NamedTuple):
    """One record, comparable."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: Headers | None


@dataclass(frozen=True, slots=True)
class Sent:
    """A record to produce; timestamp None: the client's clock."""

    partition: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int | None = None
    headers: Headers | None = None


def create_topic(
    bootstrap: str, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None
) -> None:
    """Create a topic that keeps records with old timestamps; wait until it exists."""
    settings = {"retention.ms": "-1", **(config or {})}
    new = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=settings)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made in admin.create_topics([new]).values():
        made.result(WAIT_S)


def delete_topic(bootstrap: str, topic: str) -> None:
    """Delete a topic; wait until it is absent."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for gone in admin.delete_topics([topic]).values():
        gone.result(WAIT_S)


def delete_records(bootstrap: str, topic: str, before: Mapping[int, int]) -> None:
    """Move log starts."""
    wanted = [TopicPartition(topic, partition, offset) for partition, offset in before.items()]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for done in admin.delete_records(wanted).values():
        done.result(WAIT_S)


def produce(
    bootstrap: str, topic: str, records: Iterable[Sent], codec: str = "none", timeout_ms: int = 240_000
) -> None:
    """Send records; wait until all are acknowledged."""
    failed: list[KafkaError] = []
    config: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "compression.type": codec,
        "linger.ms": 20,
        "acks": "all",
        "message.timeout.ms": timeout_ms,
        "enable.idempotence": True,
    }
    producer = Producer(config)
    for record in records:
        extra: dict[str, Any] = {} if record.timestamp_ms is None else {"timestamp": record.timestamp_ms}
        producer.produce(
            topic,
            partition=record.partition,
            key=record.key,
            value=record.value,
            headers=None if record.headers is None else list(record.headers),
            on_delivery=lambda error, _: failed.append(error) if error is not None else None,
            **extra,
        )
        producer.poll(0)
    assert producer.flush(timeout_ms / 1000) == 0
    assert not failed, failed


def ends(bootstrap: str, topic: str, *, read_committed: bool = False) -> dict[int, tuple[int, int]]:
    """Log start and high watermark (last stable offset) of every partition."""
    consumer = _consumer(bootstrap, read_committed=read_committed)
    try:
        partitions = consumer.list_topics(topic, timeout=WAIT_S).topics[topic].partitions
        return {
            number: consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=WAIT_S)
            for number in partitions
        }
    finally:
        consumer.close()


def consumed(bootstrap: str, topic: str, *, read_committed: bool = False) -> list[KafkaRow]:
    """Read everything from the log starts to the current ends, sorted by partition and offset."""
    wanted = {
        number: end
        for number, (start, end) in ends(bootstrap, topic, read_committed=read_committed).items()
        if end > start
    }
    consumer = _consumer(bootstrap, read_committed=read_committed)
    rows: list[KafkaRow] = []
    reached: set[int] = set()
    try:
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in wanted])
        while reached != wanted.keys():
            message = consumer.poll(WAIT_S)
            assert message is not None, f"{topic}: nothing came behind {len(rows)} records"
            if message.error() is not None:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                reached.add(message.partition())
                continue
            if message.offset() < wanted[message.partition()]:
                rows.append(_row(message))
    finally:
        consumer.close()
    return sorted(rows, key=lambda row: (row.partition, row.offset))


def spark_rows(rows: Sequence[Any]) -> list[KafkaRow]:
    """Rows collected by Spark, with all columns (`headers` may be missing), sorted in the same way."""
    found = [
        KafkaRow(
            row["topic"],
            row["partition"],
            row["offset"],
            round(row["timestamp"].timestamp() * 1000),
            row["timestampType"],
            _bytes(row["key"]),
            _bytes(row["value"]),
            _headers(row["headers"]) if "headers" in row else None,
        )
        for row in rows
    ]
    return sorted(found, key=lambda row: (row.topic, row.partition, row.offset))


def assorted(count: int, partitions: int, seed: int, *, start_ms: int = 1_700_000_000_000) -> list[Sent]:
    """Records of all kinds: null and empty keys, values and headers, repeated header names, sizes
    from zero to a few KB.
    """
    chance = random.Random(seed)
    return [_one(chance, number, partitions, start_ms + number * 10) for number in range(count)]


def _one(chance: random.Random, number: int, partitions: int, timestamp_ms: int) -> Sent:
    key = chance.choice([None, b"", f"key-{number % 17}".encode(), chance.randbytes(40)])
    value = chance.choice(
        [None, b"", f"value {number} ".encode() * chance.randrange(1, 60), chance.randbytes(300)]
    )
    headers = chance.choice(
        [
            None,
            (("a", b"1"),),
            (("trace", chance.randbytes(16)), ("empty", b""), ("null", None), ("a", b"2"), ("a", b"3")),
        ]
    )
    return Sent(number % partitions, key, value, timestamp_ms, headers)


def _consumer(bootstrap: str, *, read_committed: bool) -> Any:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed" if read_committed else "read_uncommitted",
            "check.crcs": True,
        }
    )


def _row(message: Any) -> KafkaRow:
    kind, timestamp_ms = message.timestamp()
    headers = message.headers()
    return KafkaRow(
        message.topic(),
        message.partition(),
        message.offset(),
        timestamp_ms,
        0 if kind == TIMESTAMP_CREATE_TIME else 1,
        message.key(),
        message.value(),
        None if not headers else tuple((name, value) for name, value in headers),
    )


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)


def _headers(value: Any) -> Headers | None:
    return None if not value else tuple((header["key"], _bytes(header["value"])) for header in value)
