"""Records that only brokers have: our own client fetches the same records as a consumer, between
any two offsets.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pyarrow as pa
import pytest
from ponor_kafka.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from ponor_spark.clip import Clip
from ponor_spark.decode.schema import FULL, HEADERS
from ponor_spark.errors import OptionError, PonorSparkError
from ponor_spark.kafka_client import METADATA_VERSION, BrokerConnection, KafkaClient, TopicReplacedError
from ponor_spark.snapshot import PartitionSnapshot
from ponor_spark.split import TailSplit
from ponor_spark.split_reading import read_split
from ponor_spark.tail import parse_addresses, tail_ends

from tests.integration.cluster_in_process import running_cluster
from tests.spark.kafka_rows import (
    CODECS,
    KafkaRow,
    assorted,
    consumed,
    create_topic,
    delete_records,
    produce,
    spark_rows,
)

COLUMNS = [*FULL.names, HEADERS]
NEVER = {"upload_interval_ms": "3600000"}
"""Nothing is uploaded, so all records are only at the broker."""


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_cluster(tmp_path_factory.mktemp("cluster"), NEVER) as cluster:
        for codec in CODECS:
            create_topic(cluster.kafka, codec)
            produce(cluster.kafka, codec, assorted(300, 1, seed=1), codec)
        yield cluster.kafka


def rows_of(batches: Iterator[pa.RecordBatch]) -> list[KafkaRow]:
    return spark_rows([row for batch in batches for row in batch.to_pylist()])


def tail(kafka: str, topic: str, start: int, end: int, *, topic_id: bytes | None = None) -> TailSplit:
    found = topic_id if topic_id is not None else id_of(kafka, topic)
    return TailSplit(Clip(topic, 0, start, end), found, (kafka,), lease_id=1)


def id_of(kafka: str, topic: str) -> bytes:
    connection = BrokerConnection(*parse_addresses([kafka])[0])
    request = MetadataRequest([MetadataRequestTopic(name=topic)])
    found = connection.call(request, METADATA_VERSION, MetadataResponse).topics[0].topic_id
    connection.close()
    return found


@pytest.mark.parametrize("codec", CODECS)
def test_the_tail_equals_the_records_of_a_consumer(kafka: str, codec: str) -> None:
    seen = consumed(kafka, codec)
    assert rows_of(read_split(tail(kafka, codec, 0, 300), COLUMNS)) == seen
    for start, end in ((17, 299), (299, 300), (123, 124)):
        assert rows_of(read_split(tail(kafka, codec, start, end), COLUMNS)) == seen[start:end]
    assert rows_of(read_split(tail(kafka, codec, 5, 5), COLUMNS)) == []


def test_the_ends_are_the_high_watermarks(kafka: str) -> None:
    partitions = [PartitionSnapshot(codec, id_of(kafka, codec), 0, 0, 0, ()) for codec in CODECS]
    ends = tail_ends(partitions, brokers=(kafka,), read_committed=False)
    assert ends == {(codec, 0): 300 for codec in CODECS}
    assert tail_ends([], brokers=(), read_committed=True) == {}


def test_a_recreated_topic_is_not_the_tail(kafka: str) -> None:
    with pytest.raises(TopicReplacedError, match="deleted and recreated"):
        list(read_split(tail(kafka, "zstd", 0, 300, topic_id=uuid.uuid4().bytes), COLUMNS))


def test_a_log_start_beyond_the_tail_is_reported(kafka: str) -> None:
    create_topic(kafka, "trimmed")
    produce(kafka, "trimmed", assorted(50, 1, seed=2))
    delete_records(kafka, "trimmed", {0: 20})
    with pytest.raises(PonorSparkError, match=r"trimmed 0: the log start moved past.*load\(\) again"):
        list(read_split(tail(kafka, "trimmed", 10, 50), COLUMNS))
    assert [row.offset for row in rows_of(read_split(tail(kafka, "trimmed", 20, 50), COLUMNS))] == list(
        range(20, 50)
    )


def test_brokers_that_do_not_answer_are_named_with_a_remedy() -> None:
    client = KafkaClient([("127.0.0.1", 1)], pause=lambda _: None)
    with pytest.raises(PonorSparkError, match=r"127.0.0.1:1: .*refused.*check kafka.bootstrap.servers"):
        client.end_offset("t", bytes(16), 0, read_committed=False)


@pytest.mark.parametrize("brokers", [(), ("host",), ("host:port",), (":9092",)])
def test_invalid_addresses_are_named(brokers: tuple[str, ...]) -> None:
    with pytest.raises(OptionError, match=r"kafka.bootstrap.servers"):
        parse_addresses(brokers)
