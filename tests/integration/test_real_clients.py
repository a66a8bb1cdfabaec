"""Unmodified clients of other projects with a broker: librdkafka, aiokafka, kafka-python."""

from __future__ import annotations

import asyncio
import hashlib
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.cimpl import NewTopic

from tests.integration.cluster_in_process import RunningCluster, running_cluster

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import kafka

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
DEADLINE_S = 240.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


def create(cluster: RunningCluster, name: str, partitions: int = 3, **configs: str) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.kafka})
    for future in admin.create_topics([NewTopic(name, partitions, 1, config=configs)]).values():
        future.result(DEADLINE_S)


def produce(
    cluster: RunningCluster, topic: str, records: list[tuple[bytes | None, bytes | None]], codec: str = "none"
) -> None:
    failed: list[Any] = []
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": cluster.kafka,
            "enable.idempotence": True,
            "compression.type": codec,
            "linger.ms": 5,
        }
    )
    for key, value in records:
        producer.produce(
            topic,
            key=key,
            value=value,
            headers=[("codec", codec.encode()), ("empty", None)],
            on_delivery=lambda e, _: failed.append(e) if e else None,
        )
        producer.poll(0)
    assert producer.flush(DEADLINE_S) == 0
    assert failed == []


def read_all(cluster: RunningCluster, topic: str, partitions: int) -> list[Any]:
    """Read every record without a group, until the end of every partition."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": cluster.kafka,
            "group.id": "unused",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "check.crcs": True,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, index, 0) for index in range(partitions)])
    found: list[Any] = []
    message: Any
    ended: dict[int, bool] = {}
    deadline = time.monotonic() + DEADLINE_S
    while len(ended) < partitions:
        assert time.monotonic() < deadline, f"{len(found)} records, ends of {sorted(ended)}"
        for message in consumer.consume(1000, 0.5):
            if message.error() is None:
                found.append(message)
            else:
                assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF, message.error()
                ended[message.partition()] = True
    consumer.close()
    return found


def checksum(values: Sequence[bytes | None]) -> str:
    digest = hashlib.sha256()
    for value in sorted(repr(value) for value in values):
        digest.update(value.encode())
    return digest.hexdigest()


def test_every_codec_nulls_and_headers_are_returned_in_order(cluster: RunningCluster) -> None:
    create(cluster, "codecs", 1)
    sent: list[bytes | None] = []
    for codec in CODECS:
        records = [
            (
                None if n % 3 == 0 else b"k%d" % n,
                None if n % 7 == 0 else b"%s-%d" % (codec.encode(), n) * (n % 50),
            )
            for n in range(300)
        ]
        produce(cluster, "codecs", records, codec)
        sent += [value for _, value in records]
    found = read_all(cluster, "codecs", 1)
    assert [message.value() for message in found] == sent
    assert [message.offset() for message in found] == list(range(len(sent)))
    assert found[0].headers() == [("codec", b"none"), ("empty", None)]


def test_three_clients_write_and_read_each_other_s_records(cluster: RunningCluster) -> None:
    create(cluster, "shared", 3)
    produce(cluster, "shared", [(b"%d" % n, b"rdkafka-%d" % n) for n in range(500)], "lz4")
    python = kafka.KafkaProducer(bootstrap_servers=cluster.kafka, acks="all", compression_type="gzip")
    for number in range(500):
        python.send("shared", b"kafka-python-%d" % number, key=b"%d" % number)
    python.flush(DEADLINE_S)
    python.close()
    asyncio.run(_aio_produce(cluster, "shared", [b"aiokafka-%d" % n for n in range(500)]))

    expected = checksum(
        [b"%s-%d" % (name, n) for name in (b"rdkafka", b"kafka-python", b"aiokafka") for n in range(500)]
    )
    assert checksum([message.value() for message in read_all(cluster, "shared", 3)]) == expected
    assert checksum(_python_consume(cluster, "shared", 1500)) == expected
    assert checksum(asyncio.run(_aio_consume(cluster, "shared", 1500))) == expected


async def _aio_produce(cluster: RunningCluster, topic: str, values: list[bytes]) -> None:
    async with aiokafka.AIOKafkaProducer(
        bootstrap_servers=cluster.kafka, enable_idempotence=True, compression_type="zstd"
    ) as producer:
        for future in [await producer.send(topic, value) for value in values]:
            await future


async def _aio_consume(cluster: RunningCluster, topic: str, count: int) -> list[bytes]:
    found: list[bytes] = []
    consumer = aiokafka.AIOKafkaConsumer(
        topic, bootstrap_servers=cluster.kafka, group_id=f"aio-{topic}", auto_offset_reset="earliest"
    )
    async with asyncio.timeout(DEADLINE_S), consumer:
        while len(found) < count:
            for messages in (await consumer.getmany(timeout_ms=500)).values():
                found += [message.value for message in messages]
    return found


def _python_consume(cluster: RunningCluster, topic: str, count: int) -> list[bytes]:
    consumer = kafka.KafkaConsumer(
        topic,
        bootstrap_servers=cluster.kafka,
        group_id=f"python-{topic}",
        auto_offset_reset="earliest",
        consumer_timeout_ms=240_000,
    )
    found: list[bytes] = []
    for message in consumer:
        found.append(message.value)
        if len(found) == count:
            break
    consumer.commit()
    consumer.close()
    return found


def test_a_group_continues_at_its_committed_offsets(cluster: RunningCluster) -> None:
    create(cluster, "resumed", 2)
    produce(cluster, "resumed", [(b"%d" % n, b"%d" % n) for n in range(200)])
    config = {
        "bootstrap.servers": cluster.kafka,
        "group.id": "resumed",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    seen: Counter[bytes] = Counter()
    for _ in range(2):
        consumer = confluent_kafka.Consumer(config)
        consumer.subscribe(["resumed"])
        taken = 0
        deadline = time.monotonic() + DEADLINE_S
        while taken < 100:
            assert time.monotonic() < deadline
            message: Any = consumer.poll(1.0)
            if message is not None and message.error() is None:
                seen[message.value()] += 1
                taken += 1
                consumer.commit(message=message, asynchronous=False)
        consumer.close()
    assert len(seen) == 200
    assert set(seen.values()) == {1}


def test_a_topic_is_created_by_a_producer_s_metadata_request(cluster: RunningCluster) -> None:
    produce(cluster, "made-on-demand", [(None, b"x")])
    admin = AdminClient({"bootstrap.servers": cluster.kafka})
    assert len(admin.list_topics("made-on-demand", DEADLINE_S).topics["made-on-demand"].partitions) == 1


def test_offsets_by_time_and_by_special_timestamps(cluster: RunningCluster) -> None:
    create(cluster, "times", 1)
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.kafka, "linger.ms": 50})
    for number in range(100):
        producer.produce("times", b"x", timestamp=1_000_000 + number * 10)
    assert producer.flush(DEADLINE_S) == 0
    consumer = confluent_kafka.Consumer({"bootstrap.servers": cluster.kafka, "group.id": "times"})
    asked = [
        confluent_kafka.TopicPartition("times", 0, timestamp)
        for timestamp in (0, 1_000_005, 1_000_990, 1_000_991)
    ]
    answers = [consumer.offsets_for_times([one], DEADLINE_S)[0].offset for one in asked]
    assert answers == [0, 1, 99, -1]
    assert consumer.get_watermark_offsets(confluent_kafka.TopicPartition("times", 0), DEADLINE_S) == (0, 100)
    consumer.close()
    admin = AdminClient({"bootstrap.servers": cluster.kafka})
    partition = confluent_kafka.TopicPartition("times", 0)
    specs: Any = OffsetSpec
    for spec, offset in ((specs.latest(), 100), (specs.earliest(), 0), (specs.max_timestamp(), 99)):
        (future,) = admin.list_offsets({partition: spec}).values()
        assert future.result(DEADLINE_S).offset == offset


def test_deleted_topics_are_absent_and_a_recreated_one_is_empty(cluster: RunningCluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.kafka})
    for _ in range(2):
        create(cluster, "short-lived", 2)
        produce(cluster, "short-lived", [(b"%d" % n, b"x") for n in range(50)])
        assert len(read_all(cluster, "short-lived", 2)) == 50
        for future in admin.delete_topics(["short-lived"]).values():
            future.result(DEADLINE_S)
        assert "short-lived" not in admin.list_topics(timeout=DEADLINE_S).topics


@pytest.mark.parametrize(
    ("name", "partitions", "configs", "code"),
    [
        ("bad name!", 1, {}, confluent_kafka.KafkaError.TOPIC_EXCEPTION),
        ("x" * 250, 1, {}, confluent_kafka.KafkaError.TOPIC_EXCEPTION),
        ("codec", 0, {}, confluent_kafka.KafkaError.INVALID_PARTITIONS),
        ("codec", 1, {"no.such.setting": "1"}, confluent_kafka.KafkaError.INVALID_CONFIG),
        ("__consumer_offsets", 1, {}, confluent_kafka.KafkaError.TOPIC_ALREADY_EXISTS),
    ],
)
def test_invalid_topics_get_kafka_s_errors(
    cluster: RunningCluster, name: str, partitions: int, configs: dict[str, str], code: int
) -> None:
    confluent_kafka.Consumer({"bootstrap.servers": cluster.kafka, "group.id": "g"}).list_topics(
        timeout=DEADLINE_S
    )
    if name == "__consumer_offsets":
        _python_consume_nothing(cluster)
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        create(cluster, name, partitions, **configs)
    assert refused.value.args[0].code() == code


def _python_consume_nothing(cluster: RunningCluster) -> None:
    """A group creates the offsets topic."""
    create(cluster, "nothing", 1)
    consumer = confluent_kafka.Consumer({"bootstrap.servers": cluster.kafka, "group.id": "nothing"})
    consumer.commit(offsets=[confluent_kafka.TopicPartition("nothing", 0, 0)], asynchronous=False)
    consumer.close()


def test_too_large_messages_are_refused_by_name(cluster: RunningCluster) -> None:
    create(cluster, "small-messages", 1, **{"max.message.bytes": "1000"})
    results: list[Any] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.kafka})
    producer.produce("small-messages", b"x" * 5000, on_delivery=lambda error, _: results.append(error))
    producer.flush(DEADLINE_S)
    assert results[0].code() == confluent_kafka.KafkaError.MSG_SIZE_TOO_LARGE


def test_a_message_larger_than_every_fetch_size_is_delivered(cluster: RunningCluster) -> None:
    create(cluster, "huge", 1, **{"max.message.bytes": "6000000"})
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.kafka, "message.max.bytes": 6_000_000})
    producer.produce("huge", b"y" * 5_000_000)
    producer.produce("huge", b"small")
    assert producer.flush(DEADLINE_S) == 0
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=cluster.kafka,
        max_partition_fetch_bytes=1024,
        fetch_max_bytes=1024,
        consumer_timeout_ms=240_000,
    )
    consumer.assign([kafka.TopicPartition("huge", 0)])
    consumer.seek_to_beginning()
    assert [len(next(consumer).value) for _ in range(2)] == [5_000_000, 5]
    consumer.close()


def test_all_records_are_read_from_objects_after_a_restart(tmp_path: Path) -> None:
    small = {"log_cache_bytes_max": "8MiB", "block_cache_bytes_max": "1MiB"}
    value = bytes(range(256)) * 40
    with running_cluster(tmp_path, small) as cluster:
        create(cluster, "kept", 4)
        produce(cluster, "kept", [(b"%d" % n, b"%d-" % n + value) for n in range(3000)])
        before = [(m.partition(), m.offset(), m.value()) for m in read_all(cluster, "kept", 4)]
        assert len(before) == 3000
    with running_cluster(tmp_path, small) as cluster:
        after = [(m.partition(), m.offset(), m.value()) for m in read_all(cluster, "kept", 4)]
        assert sorted(after) == sorted(before)
        read = dict(cluster.telemetry.counters("ponor_object_store_bytes_total"))
        assert read[("read",)] > 3000 * len(value) * 3 // 4
        produce(cluster, "kept", [(b"%d" % n, b"more") for n in range(10)])
        assert len(read_all(cluster, "kept", 4)) == 3010


def test_a_producer_is_recognised_after_a_restart(tmp_path: Path) -> None:
    failed: list[Any] = []
    with running_cluster(tmp_path) as cluster:
        port = cluster.port
        create(cluster, "lived", 1)
        producer = confluent_kafka.Producer({"bootstrap.servers": cluster.kafka, "enable.idempotence": True})
        for number in range(100):
            producer.produce(
                "lived", b"%d" % number, on_delivery=lambda e, _: failed.append(e) if e else None
            )
        assert producer.flush(DEADLINE_S) == 0
    for number in range(100, 200):
        producer.produce("lived", b"%d" % number, on_delivery=lambda e, _: failed.append(e) if e else None)
    with running_cluster(tmp_path, port=port) as cluster:
        assert producer.flush(DEADLINE_S) == 0
        assert failed == []
        assert [int(m.value()) for m in read_all(cluster, "lived", 1)] == list(range(200))


def test_settings_of_topics_and_brokers_are_shown(cluster: RunningCluster) -> None:
    create(cluster, "configured", 1, **{"segment.bytes": "2000000", "retention.ms": "5000"})
    admin = AdminClient({"bootstrap.servers": cluster.kafka})
    topic = ConfigResource(ConfigResource.Type.TOPIC, "configured")
    broker = ConfigResource(ConfigResource.Type.BROKER, "65536")
    shown: dict[Any, Any] = {}
    for resource, future in admin.describe_configs([topic, broker]).items():
        shown[resource.restype.name] = {
            name: entry.value for name, entry in future.result(DEADLINE_S).items()
        }
    assert shown["TOPIC"]["segment.bytes"] == "2000000"
    assert shown["TOPIC"]["retention.ms"] == "5000"
    assert shown["TOPIC"]["max.message.bytes"] == "1048588"
    assert "ponor.object.store" in shown["BROKER"]
