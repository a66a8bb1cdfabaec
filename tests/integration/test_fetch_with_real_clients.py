"""Reads by unmodified clients of other projects: old data from objects, new data from memory, in
fetch sessions if the client supports them.
"""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import Iterator
from typing import Any

import aiokafka
import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.integration.cluster_in_process import RunningCluster, running_cluster

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import kafka

DEADLINE_S = 240.0
PARTITIONS = 4
OLD = 3_000
VALUE = bytes(range(256)) * 32
SMALL = {"log_cache_bytes_max": "8MiB", "block_cache_bytes_max": "8MiB", "cold_read_bytes_max": "256KiB"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """A broker restarted after 24 MB were written. Its caches hold a third of that, so nearly all
    data is only in objects.
    """
    directory = tmp_path_factory.mktemp("cluster")
    with running_cluster(directory, SMALL) as running:
        admin = AdminClient({"bootstrap.servers": running.kafka})
        for future in admin.create_topics(
            [NewTopic("old", PARTITIONS, 1), NewTopic("new", PARTITIONS, 1)]
        ).values():
            future.result(DEADLINE_S)
        write(running, "old", 0, OLD)
    with running_cluster(directory, SMALL) as running:
        yield running


def write(cluster: RunningCluster, topic: str, first: int, count: int) -> None:
    """Records numbered from `first`, spread over the partitions."""
    failed: list[Any] = []
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": cluster.kafka, "enable.idempotence": True, "linger.ms": 5}
    )
    for number in range(first, first + count):
        producer.produce(
            topic,
            b"%d-" % number + VALUE,
            partition=number % PARTITIONS,
            on_delivery=lambda e, _: failed.append(e) if e else None,
        )
        producer.poll(0)
    assert producer.flush(DEADLINE_S) == 0
    assert failed == []


def check(values: dict[int, list[bytes]], count: int) -> None:
    """Check that every partition has its complete numbers once and in order."""
    assert sorted(values) == list(range(PARTITIONS))
    for partition, found in values.items():
        assert [int(value.partition(b"-")[0]) for value in found] == list(range(partition, count, PARTITIONS))
        assert all(value.partition(b"-")[2] == VALUE for value in found)


def read_bytes(cluster: RunningCluster) -> int:
    """Bytes read from the object store so far."""
    return dict(cluster.telemetry.counters("ponor_object_store_bytes_total"))[("read",)]


def gauge(cluster: RunningCluster, name: str) -> float:
    return dict(cluster.telemetry.gauges(name))[()]


def with_confluent(cluster: RunningCluster, topic: str, count: int) -> dict[int, list[bytes]]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": cluster.kafka,
            "group.id": "unused",
            "enable.auto.commit": False,
            "check.crcs": True,
            "fetch.queue.backoff.ms": 0,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, index, 0) for index in range(PARTITIONS)])
    values: dict[int, list[bytes]] = {}
    message: Any
    deadline = time.monotonic() + DEADLINE_S
    while sum(map(len, values.values())) < count:
        assert time.monotonic() < deadline
        for message in consumer.consume(500, 0.5):
            assert message.error() is None, message.error()
            values.setdefault(message.partition(), []).append(message.value())
    consumer.close()
    return values


def with_kafka_python(cluster: RunningCluster, topic: str, count: int) -> dict[int, list[bytes]]:
    consumer = kafka.KafkaConsumer(bootstrap_servers=cluster.kafka, enable_auto_commit=False)
    consumer.assign([kafka.TopicPartition(topic, index) for index in range(PARTITIONS)])
    consumer.seek_to_beginning()
    values: dict[int, list[bytes]] = {}
    deadline = time.monotonic() + DEADLINE_S
    while sum(map(len, values.values())) < count:
        assert time.monotonic() < deadline
        for partition, records in consumer.poll(timeout_ms=500).items():
            values.setdefault(partition.partition, []).extend(record.value for record in records)
    consumer.close()
    return values


def with_aiokafka(cluster: RunningCluster, topic: str, count: int) -> dict[int, list[bytes]]:
    async def read() -> dict[int, list[bytes]]:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=cluster.kafka, enable_auto_commit=False, auto_offset_reset="earliest"
        )
        consumer.assign([aiokafka.TopicPartition(topic, index) for index in range(PARTITIONS)])
        await consumer.start()
        values: dict[int, list[bytes]] = {}
        try:
            async with asyncio.timeout(DEADLINE_S):
                while sum(map(len, values.values())) < count:
                    for partition, records in (await consumer.getmany(timeout_ms=500)).items():
                        values.setdefault(partition.partition, []).extend(record.value for record in records)
        finally:
            await consumer.stop()
        return values

    return asyncio.run(read())


CLIENTS = {"librdkafka": with_confluent, "kafka-python": with_kafka_python, "aiokafka": with_aiokafka}


@pytest.mark.parametrize("client", CLIENTS)
def test_old_data_is_read_from_objects_once(cluster: RunningCluster, client: str) -> None:
    before = read_bytes(cluster)
    check(CLIENTS[client](cluster, "old", OLD), OLD)
    read = read_bytes(cluster) - before
    data = OLD * len(VALUE)
    assert data // 2 < read < data * 11 // 10, "read ahead, with hardly any byte read twice"


@pytest.mark.parametrize("client", CLIENTS)
def test_new_data_is_read_from_memory(cluster: RunningCluster, client: str) -> None:
    first = list(CLIENTS).index(client) * 200
    write(cluster, "new", first, 200)
    before = read_bytes(cluster)
    check(CLIENTS[client](cluster, "new", first + 200), first + 200)
    assert read_bytes(cluster) == before


def test_a_client_with_session_support_gets_a_session(cluster: RunningCluster) -> None:
    known = gauge(cluster, "ponor_fetch_session_partitions")
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=cluster.kafka, enable_auto_commit=False, fetch_max_wait_ms=100
    )
    consumer.assign([kafka.TopicPartition("new", index) for index in range(PARTITIONS)])
    consumer.seek_to_end()
    deadline = time.monotonic() + DEADLINE_S
    while gauge(cluster, "ponor_fetch_session_partitions") <= known:
        assert time.monotonic() < deadline
        consumer.poll(timeout_ms=100)
    consumer.close()
