"""A broker dies while the store is unavailable, so its log is recovered late: records that librdkafka sends
with acks=0 meanwhile arrive."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from ponor_cli.clients.cluster_address import find_cluster
from ponor_cli.clients.image_reader import image_of
from ponor_metadata.nouns.topics import PARTITIONS as PARTITIONS_TABLE
from ponor_metadata.nouns.topics import TOPICS, PartitionRow

from tests.e2e.load.cluster import LocalCluster
from tests.e2e.load.steady import wait_for
from tests.e2e.scenarios import create_topic
from tests.e2e.surroundings import silenced
from tests.integration.seaweed_server import SeaweedServer

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1_800)]

TOPIC = "load"
PARTITIONS = 4
RECORDS = 200
SILENCE_S = 10.0
"""Longer than requests with acks=0 wait at the new leader."""
FLUSH_S_MAX = 300.0


def rows(cluster: LocalCluster) -> dict[int, PartitionRow]:
    """Return the topic's partitions from the controller."""
    image = image_of(find_cluster(cluster.directory / "data", None))
    (topic,) = (row for row in image[TOPICS] if row.name == TOPIC)
    return {row.partition: row for row in image[PARTITIONS_TABLE] if row.topic_id == topic.topic_id}


def end_offset(cluster: LocalCluster, partition: int) -> int:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "ends"})
    try:
        return int(consumer.get_watermark_offsets(TopicPartition(TOPIC, partition), timeout=60)[1])
    finally:
        consumer.close()


def test_records_sent_with_acks_0_before_the_dead_leaders_log_is_recovered_arrive(
    tmp_path: Path,
) -> None:
    with SeaweedServer(tmp_path / "s3") as store:
        arguments = ["--brokers", "2", "--no-restart", "--wal", "object"]
        arguments += ["--object-store", store.url("ponor")]
        with LocalCluster(tmp_path / "ponor", arguments=arguments, environment=store.environment) as cluster:
            create_topic(cluster, TOPIC, PARTITIONS)
            dead = int(cluster.process("broker", 1)["node_id"])
            partition = next(number for number, row in rows(cluster).items() if row.leader_id == dead)
            with silenced(store):
                cluster.kill("broker", 1)
                wait_for(lambda: rows(cluster)[partition].leader_id != dead, "another broker is elected")
                producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": 0})
                for number in range(RECORDS):
                    producer.produce(TOPIC, b"value-%d" % number, partition=partition)
                    producer.poll(0)
                    time.sleep(SILENCE_S / RECORDS)
            assert producer.flush(FLUSH_S_MAX) == 0
            deadline = time.monotonic() + FLUSH_S_MAX
            while end_offset(cluster, partition) < RECORDS and time.monotonic() < deadline:
                time.sleep(0.2)
            assert end_offset(cluster, partition) == RECORDS
