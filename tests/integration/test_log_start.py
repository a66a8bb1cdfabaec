"""Log start offsets: DeleteRecords and retention, as unmodified clients of other projects see them."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec as UntypedOffsetSpec
from confluent_kafka.cimpl import NewTopic

from tests.integration.cluster_in_process import RunningCluster, running_cluster

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from kafka import KafkaAdminClient, TopicPartition

OffsetSpec: Any = UntypedOffsetSpec
DEADLINE_S = 240.0
SETTINGS = {"maintenance_interval_ms": "50", "upload_interval_ms": "200", "segment_bytes": "10000"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster"), SETTINGS) as running:
        yield running


def create(cluster: RunningCluster, name: str, **configs: str) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.kafka})
    named = {key.replace("_", "."): value for key, value in configs.items()}
    for future in admin.create_topics([NewTopic(name, 1, 1, config=named)]).values():
        future.result(DEADLINE_S)


def produce(cluster: RunningCluster, topic: str, values: list[bytes], *, timestamp_ms: int = 0) -> None:
    """Send each value in its own batch, so that segments can roll between them."""
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.kafka, "enable.idempotence": True})
    failed: list[Any] = []
    for value in values:
        producer.produce(
            topic,
            key=b"k",
            value=value,
            timestamp=timestamp_ms or int(time.time() * 1000),
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
        assert producer.flush(DEADLINE_S) == 0
    assert failed == []


def watermarks(cluster: RunningCluster, topic: str) -> tuple[int, int]:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": cluster.kafka, "group.id": "none"})
    try:
        return consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, 0), DEADLINE_S)
    finally:
        consumer.close()


def delete_records(cluster: RunningCluster, topic: str, offset: int) -> int:
    admin = AdminClient({"bootstrap.servers": cluster.kafka})
    wanted = confluent_kafka.TopicPartition(topic, 0, offset)
    (future,) = admin.delete_records([wanted]).values()
    return int(future.result(DEADLINE_S).low_watermark)


def eventually(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def log_size(cluster: RunningCluster, topic: str) -> int:
    admin = KafkaAdminClient(bootstrap_servers=cluster.kafka)
    try:
        sizes = [
            partition["partition_size"]
            for broker in admin.describe_log_dirs(None)
            for result in _results(broker)
            for entry in result["topics"]
            if entry["name"] == topic
            for partition in entry["partitions"]
        ]
        return int(sum(sizes))
    finally:
        admin.close()


def _results(answer: Any) -> list[dict[str, Any]]:
    content = answer if isinstance(answer, dict) else answer.to_dict()
    return list(content.get("results") or content.get("log_dirs") or [])


def test_deleted_records_stay_deleted_after_a_restart_of_all_processes(tmp_path: Path) -> None:
    with running_cluster(tmp_path, SETTINGS) as first:
        create(first, "cut")
        produce(first, "cut", [b"%d" % n for n in range(6)])
        assert delete_records(first, "cut", 4) == 4
        assert watermarks(first, "cut") == (4, 6)
    with running_cluster(tmp_path, SETTINGS) as second:
        assert watermarks(second, "cut") == (4, 6)
        assert delete_records(second, "cut", 2) == 4
        with pytest.raises(confluent_kafka.KafkaException) as refused:
            delete_records(second, "cut", 7)
        assert refused.value.args[0].code() == confluent_kafka.KafkaError.OFFSET_OUT_OF_RANGE
        assert delete_records(second, "cut", confluent_kafka.OFFSET_END) == 6
    with running_cluster(tmp_path, SETTINGS) as third:
        assert watermarks(third, "cut") == (6, 6)
        produce(third, "cut", [b"next"])
        assert watermarks(third, "cut") == (6, 7)


def test_compacted_topics_keep_their_records(cluster: RunningCluster) -> None:
    create(cluster, "table", cleanup_policy="compact")
    produce(cluster, "table", [b"v"])
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        delete_records(cluster, "table", 1)
    assert refused.value.args[0].code() == confluent_kafka.KafkaError.POLICY_VIOLATION


def test_retention_by_age_empties_a_partition_and_by_size_keeps_the_newest(cluster: RunningCluster) -> None:
    create(cluster, "aged", retention_ms="1000")
    produce(cluster, "aged", [b"old"] * 3, timestamp_ms=int(time.time() * 1000) - 60_000)
    eventually(lambda: watermarks(cluster, "aged") == (3, 3))
    create(cluster, "large", retention_bytes="25000")
    produce(cluster, "large", [bytes(6_000)] * 10)
    eventually(lambda: watermarks(cluster, "large") == (5, 10))
    assert 30_000 < log_size(cluster, "large") < 31_000  # one segment less would be below the limit


def test_special_timestamps_after_the_largest_one_was_deleted(cluster: RunningCluster) -> None:
    create(cluster, "times")
    now_ms = int(time.time() * 1000)
    for age_ms in (5_000, 1_000, 3_000, 2_000):
        produce(cluster, "times", [b"v"], timestamp_ms=now_ms - age_ms)
    admin = AdminClient({"bootstrap.servers": cluster.kafka})
    partition = confluent_kafka.TopicPartition("times", 0)

    def offset_of(spec: Any) -> tuple[int, int]:
        (future,) = admin.list_offsets({partition: spec}).values()
        result = future.result(DEADLINE_S)
        return result.offset, result.timestamp

    assert offset_of(OffsetSpec.max_timestamp()) == (1, now_ms - 1_000)
    assert offset_of(OffsetSpec.for_timestamp(now_ms - 4_000)) == (1, now_ms - 1_000)
    assert delete_records(cluster, "times", 2) == 2
    assert offset_of(OffsetSpec.earliest())[0] == 2
    assert offset_of(OffsetSpec.max_timestamp()) == (3, now_ms - 2_000)
    assert offset_of(OffsetSpec.for_timestamp(now_ms - 4_000)) == (2, now_ms - 3_000)
    assert offset_of(OffsetSpec.for_timestamp(now_ms))[0] == -1


def test_batches_are_stored_with_the_topic_s_compression(cluster: RunningCluster) -> None:
    create(cluster, "plain", compression_type="uncompressed")
    create(cluster, "packed", compression_type="zstd")
    value = b"the same words again and again " * 200
    for topic in ("plain", "packed"):
        produce(cluster, topic, [value])
    assert log_size(cluster, "packed") < 300 < len(value) < log_size(cluster, "plain")


def test_the_error_names_a_record_without_a_key(cluster: RunningCluster) -> None:
    create(cluster, "keyed", cleanup_policy="compact")
    failed: list[Any] = []
    # They share a batch, which waits for the flush.
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.kafka, "linger.ms": 30_000})
    for key in (b"k", None, b"k"):
        producer.produce("keyed", key=key, value=b"v", on_delivery=lambda error, _: failed.append(error))
    assert producer.flush(DEADLINE_S) == 0
    assert [error.code() for error in failed] == [confluent_kafka.KafkaError.INVALID_RECORD] * 3


def test_the_producers_of_a_partition_are_described(cluster: RunningCluster) -> None:
    create(cluster, "known")
    produce(cluster, "known", [b"1", b"2", b"3"])
    admin = KafkaAdminClient(bootstrap_servers=cluster.kafka)
    try:
        described = admin.describe_producers([TopicPartition("known", 0)])
    finally:
        admin.close()
    (state,) = described[TopicPartition("known", 0)].active_producers
    assert (state.producer_epoch, state.last_sequence) == (0, 2)
    assert (state.coordinator_epoch, state.current_transaction_start_offset) == (-1, -1)
