"""Transactions of unmodified clients: librdkafka and aiokafka."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import aiokafka
import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.integration.cluster_in_process import RunningCluster, running_cluster

DEADLINE_S = 240.0
PARTITIONS = 2


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


def create(cluster: RunningCluster, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.kafka})
    for future in admin.create_topics([NewTopic(name, PARTITIONS, 1)]).values():
        future.result(DEADLINE_S)


def transactional(cluster: RunningCluster, name: str, **configs: Any) -> confluent_kafka.Producer:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": cluster.kafka, "transactional.id": name, "linger.ms": 5, **configs}
    )
    producer.init_transactions(DEADLINE_S)
    return producer


def send(producer: confluent_kafka.Producer, topic: str, *values: str) -> None:
    """Produce to the partitions in turn, and wait for the acknowledgements."""
    failed: list[Any] = []
    for number, value in enumerate(values):
        producer.produce(
            topic,
            value.encode(),
            partition=number % PARTITIONS,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
    assert producer.flush(DEADLINE_S) == 0
    assert failed == []


def read(cluster: RunningCluster, topic: str, isolation: str) -> list[str]:
    """Return the values of all partitions, in the order of their names."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": cluster.kafka,
            "group.id": "unused",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, index, 0) for index in range(PARTITIONS)])
    found: list[str] = []
    ended: set[int] = set()
    deadline = time.monotonic() + DEADLINE_S
    while len(ended) < PARTITIONS:
        assert time.monotonic() < deadline, found
        for message in consumer.consume(1000, 0.5):
            value, partition, error = message.value(), message.partition(), message.error()
            if error is None:
                assert value is not None
                found.append(value.decode())
            else:
                assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF
                assert partition is not None
                ended.add(partition)
    consumer.close()
    return sorted(found)


def test_librdkafka_commits_and_aborts(cluster: RunningCluster) -> None:
    create(cluster, "rdkafka")
    producer = transactional(cluster, "rdkafka")
    for number in range(6):
        producer.begin_transaction()
        send(producer, "rdkafka", *(f"{number}{letter}" for letter in "abcd"))
        if number % 2:
            producer.abort_transaction(DEADLINE_S)
        else:
            producer.commit_transaction(DEADLINE_S)
    values = [f"{number}{letter}" for number in range(6) for letter in "abcd"]
    assert read(cluster, "rdkafka", "read_uncommitted") == values
    assert read(cluster, "rdkafka", "read_committed") == [one for one in values if int(one[0]) % 2 == 0]


def test_an_open_transaction_is_not_read_until_it_is_committed(cluster: RunningCluster) -> None:
    create(cluster, "open")
    producer = transactional(cluster, "open")
    producer.begin_transaction()
    send(producer, "open", "a", "b")
    assert read(cluster, "open", "read_committed") == []
    assert read(cluster, "open", "read_uncommitted") == ["a", "b"]
    producer.commit_transaction(DEADLINE_S)
    assert read(cluster, "open", "read_committed") == ["a", "b"]


def test_a_newer_producer_fences_the_older_one(cluster: RunningCluster) -> None:
    create(cluster, "fenced")
    older = transactional(cluster, "fenced")
    older.begin_transaction()
    send(older, "fenced", "lost")
    newer = transactional(cluster, "fenced")
    newer.begin_transaction()
    send(newer, "fenced", "kept")
    newer.commit_transaction(DEADLINE_S)
    with pytest.raises(confluent_kafka.KafkaException) as caught:
        older.commit_transaction(DEADLINE_S)
    assert caught.value.args[0].fatal()
    assert read(cluster, "fenced", "read_committed") == ["kept"]


def test_a_transaction_is_aborted_after_its_timeout(cluster: RunningCluster) -> None:
    create(cluster, "late")
    producer = transactional(cluster, "late", **{"transaction.timeout.ms": 1000})
    producer.begin_transaction()
    send(producer, "late", "a")
    deadline = time.monotonic() + DEADLINE_S
    consumer = confluent_kafka.Consumer({"bootstrap.servers": cluster.kafka, "group.id": "unused"})
    where = confluent_kafka.TopicPartition("late", 0)
    while consumer.get_watermark_offsets(where, timeout=DEADLINE_S)[1] < 2:  # the record and the marker
        assert time.monotonic() < deadline
        time.sleep(0.1)
    consumer.close()
    assert read(cluster, "late", "read_committed") == []


def test_aiokafka_commits_and_aborts(cluster: RunningCluster) -> None:
    create(cluster, "aiokafka")

    async def story() -> None:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=cluster.kafka, transactional_id="aiokafka")
        await producer.start()
        try:
            for number in range(4):
                await producer.begin_transaction()
                for partition in range(PARTITIONS):
                    await producer.send_and_wait("aiokafka", b"%d" % number, partition=partition)
                if number % 2:
                    await producer.abort_transaction()
                else:
                    await producer.commit_transaction()
        finally:
            await producer.stop()

    asyncio.run(story())
    assert read(cluster, "aiokafka", "read_committed") == ["0", "0", "2", "2"]
    assert read(cluster, "aiokafka", "read_uncommitted") == ["0", "0", "1", "1", "2", "2", "3", "3"]


def committed(cluster: RunningCluster, topic: str, group: str) -> int:
    """Return the stable committed offset of partition 0."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": cluster.kafka, "group.id": group})
    (found,) = consumer.committed([confluent_kafka.TopicPartition(topic, 0)], timeout=DEADLINE_S)
    consumer.close()
    assert found.error is None
    return found.offset


def test_librdkafka_commits_offsets_in_transactions(cluster: RunningCluster) -> None:
    create(cluster, "offsets")
    producer = transactional(cluster, "offsets")
    consumer = confluent_kafka.Consumer({"bootstrap.servers": cluster.kafka, "group.id": "offsets"})
    for offset, commits in ((10, True), (20, False), (30, True), (40, False)):
        producer.begin_transaction()
        send(producer, "offsets", f"{offset}")
        places = [confluent_kafka.TopicPartition("offsets", 0, offset)]
        producer.send_offsets_to_transaction(places, consumer.consumer_group_metadata(), DEADLINE_S)
        if commits:
            producer.commit_transaction(DEADLINE_S)
        else:
            producer.abort_transaction(DEADLINE_S)
        assert committed(cluster, "offsets", "offsets") == (offset if commits else offset - 10)
    consumer.close()


async def test_aiokafka_commits_offsets_in_transactions(cluster: RunningCluster) -> None:
    create(cluster, "aio-offsets")
    producer = aiokafka.AIOKafkaProducer(bootstrap_servers=cluster.kafka, transactional_id="aio-offsets")
    async with asyncio.timeout(DEADLINE_S):
        await producer.start()
        where = aiokafka.TopicPartition("aio-offsets", 0)
        for offset in (1, 2):
            async with producer.transaction():
                await producer.send("aio-offsets", b"value", partition=0)
                await producer.send_offsets_to_transaction({where: offset}, "aio-group")
        await producer.stop()
    assert committed(cluster, "aio-offsets", "aio-group") == 2
