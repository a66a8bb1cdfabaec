"""Clients cannot write to internal topics: one invalid record would prevent a partition's groups
from loading.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.integration.cluster_in_process import running_cluster


def test_a_producer_is_refused_and_the_groups_continue(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        common: dict[str, str | int | float | bool] = {"bootstrap.servers": cluster.kafka, "log_level": 2}
        admin = AdminClient(common)
        admin.create_topics([NewTopic("t", 1, 1)])["t"].result(240)
        reader = Consumer({**common, "group.id": "g"})
        reader.commit(offsets=[TopicPartition("t", 0, 7)], asynchronous=False)
        outcomes: list[KafkaError | None] = []
        producer = Producer({**common, "message.timeout.ms": 5_000})
        for partition in range(4):
            producer.produce(
                "__consumer_offsets", b"x", b"\x00\x01", partition, lambda error, _: outcomes.append(error)
            )
        producer.flush(240)
        assert len(outcomes) == 4
        assert all(error is not None for error in outcomes)
        (place,) = reader.committed([TopicPartition("t", 0)], timeout=240)
        assert place.offset == 7
        reader.close()
    with running_cluster(tmp_path) as cluster:
        reader = Consumer({"bootstrap.servers": cluster.kafka, "log_level": 2, "group.id": "g"})
        try:
            (place,) = reader.committed([TopicPartition("t", 0)], timeout=240)
        except KafkaException as error:
            pytest.fail(f"the group cannot be read after a restart: {error}")
        assert place.offset == 7
        reader.close()
