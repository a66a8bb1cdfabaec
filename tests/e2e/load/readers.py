"""Readers without a group for three client families: every partition from its first offset to its current
end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tests.e2e.load.judge import Seen
from tests.e2e.load.records import checksum, identity

IDLE_S_MAX = 240.0
TRIES_MAX: Final = 1_000
PASSING: Final = frozenset({"_TRANSPORT", "_ALL_BROKERS_DOWN", "_TIMED_OUT"})
"""Errors that end when a broker is available again."""
REQUEST_MS_MAX: Final = 120_000


def read_all(family: str, bootstrap: str, topic: str, partitions: int) -> Seen:
    """Read everything with one client family."""
    readers: dict[str, Callable[[str, str, int], Seen]] = {
        "librdkafka": read_librdkafka,
        "aiokafka": lambda *arguments: asyncio.run(read_aiokafka(*arguments)),
        "kafka-python": read_kafka_python,
    }
    return readers[family](bootstrap, topic, partitions)


def watermarks(consumer: Consumer, topic: str, partition: int) -> tuple[int, int]:
    """Return first and end offset.

    Unlike reads and writes, this librdkafka call does not look up a new leader by itself.
    """
    for _ in range(TRIES_MAX):
        try:
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=240)
        except KafkaException as error:
            if not _passes(error.args[0]):
                raise
            with suppress(KafkaException):
                consumer.list_topics(topic, timeout=240)
            time.sleep(0.1)
        else:
            return low, high
    raise AssertionError(f"{topic}-{partition} has no leader")


def _passes(error: KafkaError) -> bool:
    return bool(error.retriable()) or error.name() in {*PASSING, "NOT_LEADER_FOR_PARTITION"}


def read_librdkafka(bootstrap: str, topic: str, partitions: int) -> Seen:
    """Read with confluent_kafka.Consumer and assign()."""
    from confluent_kafka import OFFSET_BEGINNING

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader-without-commits",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "check.crcs": True,
            "enable.partition.eof": True,
            "log_level": 2,
        }
    )
    seen = Seen()
    wanted = {p: watermarks(consumer, topic, p) for p in range(partitions)}
    open_partitions = {p for p, (low, high) in wanted.items() if high > low}
    consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in open_partitions])
    last_progress = time.monotonic()
    while open_partitions:
        messages = consumer.consume(5000, timeout=1.0)
        if messages:
            last_progress = time.monotonic()
        assert time.monotonic() - last_progress < IDLE_S_MAX, (
            f"no more records; unfinished partitions: {sorted(open_partitions)}"
        )
        for message in messages:
            error = message.error()
            if error is not None:
                if error.name() == "_PARTITION_EOF":
                    open_partitions.discard(message.partition())
                    continue
                assert _passes(error), error
                continue
            headers: Any = message.headers()
            producer, number = identity(headers)
            crc = checksum(message.key(), message.value(), headers)
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            seen.add(partition, offset, producer, number, crc)
    consumer.close()
    return seen


async def read_aiokafka(bootstrap: str, topic: str, partitions: int) -> Seen:
    """Read with aiokafka.AIOKafkaConsumer and assign()."""
    from aiokafka import AIOKafkaConsumer, TopicPartition

    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        enable_auto_commit=False,
        auto_offset_reset="none",
        check_crcs=True,
        request_timeout_ms=REQUEST_MS_MAX,
    )
    await consumer.start()
    seen = Seen()
    try:
        assigned = [TopicPartition(topic, p) for p in range(partitions)]
        consumer.assign(assigned)
        ends = await consumer.end_offsets(assigned)
        starts = await consumer.beginning_offsets(assigned)
        for place in assigned:
            consumer.seek(place, starts[place])
        left = {place for place in assigned if ends[place] > starts[place]}
        last_progress = time.monotonic()
        while left:
            batches = await consumer.getmany(*left, timeout_ms=1000, max_records=5000)
            assert batches or time.monotonic() - last_progress < IDLE_S_MAX, (
                f"no more records; unfinished partitions: {left}"
            )
            for place, records in batches.items():
                last_progress = time.monotonic()
                for record in records:
                    headers = list(record.headers)
                    producer, number = identity(headers)
                    crc = checksum(record.key, record.value, headers)
                    seen.add(record.partition, record.offset, producer, number, crc)
                if records and records[-1].offset + 1 >= ends[place]:
                    left.discard(place)
    finally:
        await consumer.stop()
    return seen


def read_kafka_python(bootstrap: str, topic: str, partitions: int) -> Seen:
    """Read with kafka.KafkaConsumer and assign()."""
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        check_crcs=True,
        request_timeout_ms=REQUEST_MS_MAX,
    )
    seen = Seen()
    assigned = [TopicPartition(topic, p) for p in range(partitions)]
    consumer.assign(assigned)
    ends = consumer.end_offsets(assigned)
    starts = consumer.beginning_offsets(assigned)
    for place in assigned:
        consumer.seek(place, starts[place])
    left = {place for place in assigned if ends[place] > starts[place]}
    last_progress = time.monotonic()
    while left:
        batches = consumer.poll(timeout_ms=1000, max_records=5000)
        assert batches or time.monotonic() - last_progress < IDLE_S_MAX, (
            f"no more records; unfinished partitions: {left}"
        )
        for place, records in batches.items():
            last_progress = time.monotonic()
            for record in records:
                headers = list(record.headers)
                producer, number = identity(headers)
                crc = checksum(record.key, record.value, headers)
                seen.add(record.partition, record.offset, producer, number, crc)
            if records and records[-1].offset + 1 >= ends[place]:
                left.discard(place)
    consumer.close()
    return seen
