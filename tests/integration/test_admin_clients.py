"""Unmodified administrators' clients of other projects: settings change under running producers,
topics grow, and all is described.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.cimpl import KafkaException, NewPartitions, NewTopic

from tests.integration.cluster_in_process import RunningCluster, running_cluster

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from kafka import KafkaAdminClient

DEADLINE_S = 240.0
LIVE_S_MAX = 240.0
"""Timeout for a change of settings; only a hanging test reaches it."""
BROKER = "65536"
DYNAMIC_BROKER = 2
"""Numbers of config sources in DescribeConfigs."""
SET, DELETE, APPEND, SUBTRACT = (
    AlterConfigOpType.SET,
    AlterConfigOpType.DELETE,
    AlterConfigOpType.APPEND,
    AlterConfigOpType.SUBTRACT,
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="module")
def admin(cluster: RunningCluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.kafka})


def make(admin: AdminClient, name: str, partitions: int = 1, **more: Any) -> None:
    for future in admin.create_topics([NewTopic(name, partitions, 1, **more)]).values():
        future.result(DEADLINE_S)


def alter(
    admin: AdminClient,
    kind: Any,
    resource: str,
    *changes: tuple[str, AlterConfigOpType, str | None],
) -> None:
    entries = [
        ConfigEntry(name, value, incremental_operation=operation) for name, operation, value in changes
    ]
    wanted = ConfigResource(kind, resource, incremental_configs=entries)
    for future in admin.incremental_alter_configs([wanted]).values():
        future.result(DEADLINE_S)


def alter_topic(admin: AdminClient, name: str, *changes: tuple[str, AlterConfigOpType, str | None]) -> None:
    alter(admin, ConfigResource.Type.TOPIC, name, *changes)


def alter_broker(admin: AdminClient, *changes: tuple[str, AlterConfigOpType, str | None]) -> None:
    """Configs of the single broker: librdkafka and kafka-python cannot name all brokers (tests/oracle
    does).
    """
    alter(admin, ConfigResource.Type.BROKER, BROKER, *changes)


def described(admin: AdminClient, kind: Any, name: str) -> dict[str, ConfigEntry]:
    (future,) = admin.describe_configs([ConfigResource(kind, name)]).values()
    return dict(future.result(DEADLINE_S))


def produced(cluster: RunningCluster, topic: str, value: bytes) -> confluent_kafka.KafkaError | None:
    """The result of one produced record."""
    outcome: list[Any] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.kafka, "message.max.bytes": 5_000_000})
    producer.produce(topic, value, on_delivery=lambda error, _: outcome.append(error))
    assert producer.flush(DEADLINE_S) == 0
    error: confluent_kafka.KafkaError | None = outcome[0]
    return error


def in_time(holds: Callable[[], bool]) -> bool:
    """Whether a condition becomes true within the timeout of a change."""
    deadline = time.monotonic() + LIVE_S_MAX
    while not holds():
        if time.monotonic() > deadline:
            return False
    return True


def test_settings_of_a_topic_change_under_a_producer(cluster: RunningCluster, admin: AdminClient) -> None:
    make(admin, "live", config={"max.message.bytes": "1000000"})
    assert produced(cluster, "live", bytes(50_000)) is None
    alter_topic(admin, "live", ("max.message.bytes", SET, "2000"))
    refused: list[confluent_kafka.KafkaError | None] = []

    def is_refused() -> bool:
        refused.append(produced(cluster, "live", bytes(50_000)))
        return refused[-1] is not None

    assert in_time(is_refused)
    assert refused[-1] is not None
    assert refused[-1].code() == confluent_kafka.KafkaError.MSG_SIZE_TOO_LARGE
    alter_topic(
        admin, "live", ("max.message.bytes", DELETE, None), ("message.timestamp.type", SET, "LogAppendTime")
    )
    assert in_time(lambda: produced(cluster, "live", bytes(50_000)) is None)
    consumer = confluent_kafka.Consumer({"bootstrap.servers": cluster.kafka, "group.id": "g"})
    consumer.assign([confluent_kafka.TopicPartition("live", 0, 0)])
    kinds: list[int] = []
    while confluent_kafka.TIMESTAMP_LOG_APPEND_TIME not in kinds:
        message = consumer.poll(DEADLINE_S)
        assert message is not None
        assert message.error() is None
        kinds.append(message.timestamp()[0])
    consumer.close()
    assert set(kinds[:-1]) == {confluent_kafka.TIMESTAMP_CREATE_TIME}


def test_a_broker_s_dynamic_settings_apply_to_topics_without_their_own(
    cluster: RunningCluster, admin: AdminClient
) -> None:
    make(admin, "plain")
    make(admin, "own", config={"max.message.bytes": "3000000"})
    big = bytes(2_000_000)
    refused = produced(cluster, "plain", big)
    assert refused is not None
    alter_broker(admin, ("message.max.bytes", SET, "2500000"))
    try:
        assert in_time(lambda: produced(cluster, "plain", big) is None)
        shown = described(admin, ConfigResource.Type.TOPIC, "plain")["max.message.bytes"]
        described_source: Any = shown.source
        assert (shown.value, described_source) == ("2500000", DYNAMIC_BROKER)
        assert described(admin, ConfigResource.Type.TOPIC, "own")["max.message.bytes"].value == "3000000"
        assert described(admin, ConfigResource.Type.BROKER, BROKER)["message.max.bytes"].value == "2500000"
    finally:
        alter_broker(admin, ("message.max.bytes", DELETE, None))
    assert described(admin, ConfigResource.Type.TOPIC, "plain")["max.message.bytes"].value == "1048588"


def test_lists_grow_and_shrink_and_invalid_changes_change_nothing(admin: AdminClient) -> None:
    make(admin, "lists")
    alter_topic(admin, "lists", ("cleanup.policy", APPEND, "compact"))
    shown = described(admin, ConfigResource.Type.TOPIC, "lists")
    assert shown["cleanup.policy"].value == "delete,compact"
    assert list(shown["cleanup.policy"].synonyms) == ["cleanup.policy", "log.cleanup.policy"]
    alter_topic(admin, "lists", ("cleanup.policy", SUBTRACT, "compact"))
    with pytest.raises(KafkaException, match="Not a number of type LONG"):
        alter_topic(admin, "lists", ("segment.ms", SET, "1000"), ("retention.ms", SET, "soon"))
    with pytest.raises(KafkaException, match="Cannot update these configs dynamically"):
        alter_broker(admin, ("log.dirs", SET, "/x"))
    shown = described(admin, ConfigResource.Type.TOPIC, "lists")
    assert (shown["cleanup.policy"].value, shown["segment.ms"].value) == ("delete", "604800000")


def test_a_topic_grows_under_its_producer(cluster: RunningCluster, admin: AdminClient) -> None:
    make(admin, "growing", 2)
    for future in admin.create_partitions([NewPartitions("growing", 5)], validate_only=True).values():
        future.result(DEADLINE_S)
    assert len(admin.list_topics("growing", DEADLINE_S).topics["growing"].partitions) == 2
    for future in admin.create_partitions([NewPartitions("growing", 5)]).values():
        future.result(DEADLINE_S)
    assert len(admin.list_topics("growing", DEADLINE_S).topics["growing"].partitions) == 5
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.kafka})
    landed: list[int | None] = []
    for partition in range(5):
        producer.produce(
            "growing",
            b"x",
            partition=partition,
            on_delivery=lambda e, m: landed.append(-1 if e else m.partition()),
        )
    assert producer.flush(DEADLINE_S) == 0
    assert set(landed) == set(range(5))
    for count in (5, 3):
        with pytest.raises(KafkaException):
            admin.create_partitions([NewPartitions("growing", count)])["growing"].result(DEADLINE_S)


def test_kafka_python_s_administrator(cluster: RunningCluster) -> None:
    admin = KafkaAdminClient(bootstrap_servers=cluster.kafka)
    try:
        admin.create_topics({"python": {"num_partitions": 2}})
        cluster_id = admin.describe_cluster()["cluster_id"]
        assert cluster_id
        (topic,) = admin.describe_topics(["python"])
        assert len(topic["partitions"]) == 2
    finally:
        admin.close()


def test_settings_survive_a_restart(tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.mktemp("restarted")
    with running_cluster(directory) as first:
        admin = AdminClient({"bootstrap.servers": first.kafka})
        make(admin, "kept", 1)
        alter_topic(admin, "kept", ("retention.ms", SET, "7000"))
        alter_broker(admin, ("log.retention.bytes", SET, "9000"))
        port = first.port
    with running_cluster(directory, port=port) as second:
        admin = AdminClient({"bootstrap.servers": second.kafka})
        shown = described(admin, ConfigResource.Type.TOPIC, "kept")
        assert (shown["retention.ms"].value, shown["retention.bytes"].value) == ("7000", "9000")
