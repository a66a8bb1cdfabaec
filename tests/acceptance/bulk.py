"""Bulk load: 8 KiB incompressible values by librdkafka, read back and counted."""

from __future__ import annotations

import random
import time
from typing import Any

VALUE_BYTES = 8192


def produce_bulk(
    bootstrap: str, topic: str, *, partitions: int, total_bytes: int, rate_bytes: float | None = None
) -> int:
    """Produce at least `total_bytes` of values round-robin; return the number of acknowledged records."""
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 20,
            "batch.size": 1_000_000,
            "queue.buffering.max.kbytes": 65536,
            "log_level": 2,
        }
    )
    chance = random.Random(1)
    values = [chance.randbytes(VALUE_BYTES) for _ in range(64)]
    failures: list[Any] = []
    began = time.monotonic()
    sent = 0
    for number in range(-(-total_bytes // VALUE_BYTES)):
        if rate_bytes is not None and number % 16 == 0:
            due = began + number * VALUE_BYTES / rate_bytes
            while (ahead := due - time.monotonic()) > 0:  # a poll returns after the first report
                producer.poll(ahead)
        while True:
            try:
                producer.produce(
                    topic,
                    value=values[number % 64],
                    partition=number % partitions,
                    on_delivery=lambda error, _: failures.append(error) if error else None,
                )
                break
            except BufferError:
                producer.poll(0.05)
        sent += 1
        producer.poll(0)
        assert not failures, failures[0]
    assert producer.flush(300) == 0
    assert not failures, failures[0]
    return sent


def read_bulk(bootstrap: str, topic: str, *, partitions: int) -> int:
    """Read every partition to its end; returns the bytes of values."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bulk",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "check.crcs": True,
        }
    )
    consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in range(partitions)])
    left = set(range(partitions))
    total = 0
    last_progress = time.monotonic()
    while left:
        for message in consumer.consume(2000, timeout=1.0):
            last_progress = time.monotonic()
            error = message.error()
            if error is not None:
                assert error.name() == "_PARTITION_EOF", error
                left.discard(message.partition() or 0)
            else:
                total += len(message.value() or b"")
        assert time.monotonic() - last_progress < 60, f"no more records; unfinished: {sorted(left)}"
    consumer.close()
    return total
