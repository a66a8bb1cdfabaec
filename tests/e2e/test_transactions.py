"""Transactions of librdkafka while brokers are killed and the coordinator moves."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from ponor_broker.coordination.partitioning import partition_for
from ponor_cli.clients.kafka_client import KafkaClient
from ponor_cli.clients.reassignments import places_of
from ponor_kafka.internal_topics import TRANSACTIONS_TOPIC

from tests.e2e.load.cluster import LocalCluster
from tests.e2e.scenarios import create_topic

PARTITIONS = 4
COORDINATOR_PARTITIONS = 2
DEADLINE_S = 300.0
TRANSACTIONAL_ID = "payments"


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("wal", ["file", "object"])
def test_transactions_keep_their_outcome_when_brokers_die_and_coordinators_move(
    tmp_path: Path, wal: str
) -> None:
    settings = {"transaction_topic_partitions": COORDINATOR_PARTITIONS, "offsets_topic_partitions": 2}
    with LocalCluster(tmp_path, settings=settings, arguments=["--brokers", "2", "--wal", wal]) as cluster:
        create_topic(cluster, "out", PARTITIONS)
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "transactional.id": TRANSACTIONAL_ID,
                "transaction.timeout.ms": 600_000,
                "linger.ms": 5,
            }
        )
        producer.init_transactions(DEADLINE_S)
        expected: list[str] = []
        # One of the brokers is the coordinator; each leads partitions of the topic.
        for broker in (0, 1):
            for is_commit in (True, False):
                name = f"killed-{broker}-{is_commit}"
                producer.begin_transaction()
                _send(producer, name)
                _kill(cluster, broker)
                _end(producer, is_commit=is_commit)
                expected += [name] * PARTITIONS * is_commit
        for is_commit in (True, False):
            name = f"moved-{is_commit}"
            producer.begin_transaction()
            _send(producer, name)
            _move_the_coordinator(cluster)
            _send(producer, name)
            _end(producer, is_commit=is_commit)
            expected += [name] * PARTITIONS * 2 * is_commit
        assert _read_committed(cluster) == sorted(expected)


def _send(producer: confluent_kafka.Producer, value: str) -> None:
    failed: list[Any] = []
    for partition in range(PARTITIONS):
        producer.produce(
            "out",
            value.encode(),
            partition=partition,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
    assert producer.flush(DEADLINE_S) == 0
    assert failed == []


def _end(producer: confluent_kafka.Producer, *, is_commit: bool) -> None:
    """Commit or abort, and repeat it while the client calls its error retriable."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            if is_commit:
                producer.commit_transaction(DEADLINE_S)
            else:
                producer.abort_transaction(DEADLINE_S)
        except confluent_kafka.KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline:
                raise
        else:
            return


def _kill(cluster: LocalCluster, broker: int) -> None:
    before = cluster.process("broker", broker)["restarts"]
    assert cluster.kill("broker", broker)
    cluster.wait_serving("broker", broker, after_restarts=before + 1)


def _move_the_coordinator(cluster: LocalCluster) -> None:
    index = partition_for(TRANSACTIONAL_ID, COORDINATOR_PARTITIONS)
    with KafkaClient(cluster.bootstrap) as client:
        home = places_of(client, [TRANSACTIONS_TOPIC])[index].leader_id
    away = next(
        row["node_id"]
        for row in cluster.describe()["processes"]
        if row["role"] == "broker" and row["node_id"] != home
    )
    cluster.run("partition", "move", TRANSACTIONS_TOPIC, str(index), "--to", str(away), "--wait")


def _read_committed(cluster: LocalCluster) -> list[str]:
    """Return the values of all partitions, sorted."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "unused",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition("out", index, 0) for index in range(PARTITIONS)])
    found: list[str] = []
    ended: set[int | None] = set()
    deadline = time.monotonic() + DEADLINE_S
    while len(ended) < PARTITIONS:
        assert time.monotonic() < deadline, found
        for message in consumer.consume(1000, 0.5):
            if message.error() is None:
                found.append((message.value() or b"").decode())
            else:
                ended.add(message.partition())
    consumer.close()
    return sorted(found)
