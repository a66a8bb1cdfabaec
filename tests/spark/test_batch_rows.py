"""Rows of `spark.read` equal those of a Kafka consumer over the same range, for all kinds of
records and logs.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from datetime import UTC, datetime

import pytest

from tests.spark.kafka_rows import (
    CODECS,
    WAIT_S,
    KafkaRow,
    Sent,
    assorted,
    consumed,
    create_topic,
    delete_records,
    ends,
    produce,
)
from tests.spark.topics_cluster import TopicsCluster

pytestmark = pytest.mark.timeout(900)
PARTITIONS = 3
START_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def plain(topics: TopicsCluster) -> str:
    """A topic of 900 records in two uploads, 10 ms apart."""
    create_topic(topics.kafka, "plain", PARTITIONS)
    produce(topics.kafka, "plain", assorted(450, PARTITIONS, seed=5, start_ms=START_MS))
    topics.until_in_objects("plain")
    produce(topics.kafka, "plain", assorted(450, PARTITIONS, seed=6, start_ms=START_MS + 4500), "zstd")
    topics.until_in_objects("plain")
    return "plain"


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_gives_the_rows_of_a_consumer(topics: TopicsCluster, codec: str) -> None:
    topic = f"codec-{codec}"
    create_topic(topics.kafka, topic, PARTITIONS)
    produce(topics.kafka, topic, assorted(600, PARTITIONS, seed=3), codec)
    rows = topics.same_as_a_consumer(topic)
    assert len(rows) == 600
    assert {row.key is None for row in rows} == {row.value is None for row in rows} == {True, False}
    assert any(row.headers and row.headers[-1] == ("a", b"3") for row in rows)


def test_the_schema_is_that_of_sparks_kafka_connector(topics: TopicsCluster, plain: str) -> None:
    expected = (
        "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp,"
        " timestampType int"
    )
    ddl = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in topics.load(plain).schema)
    assert ddl == expected
    headers = topics.load(plain, includeHeaders=True).schema["headers"].dataType.simpleString()
    assert headers == "array<struct<key:string,value:binary>>"


def test_columns_are_selected_by_schema_or_option(topics: TopicsCluster, plain: str) -> None:
    seen = Counter((row.offset, row.value) for row in consumed(topics.kafka, plain))
    for frame in (
        topics.load(plain, schema="offset bigint, value binary"),
        topics.load(plain, columns="offset,value"),
    ):
        rows = frame.collect()
        assert rows[0].__fields__ == ["offset", "value"]
        assert Counter((row.offset, None if row.value is None else bytes(row.value)) for row in rows) == seen
    assert topics.load(plain, schema="timestampType int").count() == seen.total()


def test_options_select_offsets_and_partitions(topics: TopicsCluster, plain: str) -> None:
    seen = consumed(topics.kafka, plain)
    starting = json.dumps({plain: {"0": 7, "1": -2, "2": 299}})
    ending = json.dumps({plain: {"0": 200, "1": 1, "2": -1}})
    wanted = {0: range(7, 200), 1: range(1), 2: range(299, 300)}
    rows = topics.rows(plain, startingOffsets=starting, endingOffsets=ending)
    assert rows == [row for row in seen if row.offset in wanted[row.partition]]
    assigned = topics.rows(plain, assign=json.dumps({plain: [2, 0]}))
    assert assigned == [row for row in seen if row.partition in {0, 2}]


def test_options_select_timestamps(topics: TopicsCluster, plain: str) -> None:
    seen = consumed(topics.kafka, plain)
    first, last = START_MS + 2_005, START_MS + 6_001
    rows = topics.rows(plain, startingTimestamp=first, endingTimestamp=last)
    assert rows == [row for row in seen if first <= row.timestamp_ms < last]
    each = {str(partition): first + partition * 500 for partition in range(PARTITIONS)}
    rows = topics.rows(plain, startingOffsetsByTimestamp=json.dumps({plain: each}))
    assert rows == [row for row in seen if row.timestamp_ms >= each[str(row.partition)]]


def test_a_pattern_reads_all_matching_topics(topics: TopicsCluster) -> None:
    for number in range(2):
        create_topic(topics.kafka, f"many-{number}")
        produce(topics.kafka, f"many-{number}", assorted(20, 1, seed=number))
        topics.until_in_objects(f"many-{number}")
    both = consumed(topics.kafka, "many-0") + consumed(topics.kafka, "many-1")
    assert topics.rows("", subscribePattern="many-.*") == both
    assert topics.rows("many-0,many-1") == both
    assert topics.rows("", subscribePattern="nothing-is-called-so") == []


def test_rows_have_the_timestamp_type_of_the_broker(topics: TopicsCluster) -> None:
    create_topic(topics.kafka, "appended", config={"message.timestamp.type": "LogAppendTime"})
    produce(topics.kafka, "appended", assorted(50, 1, seed=8), "lz4")
    rows = topics.same_as_a_consumer("appended")
    assert {row.timestamp_type for row in rows} == {1}
    stamps = [row.timestamp for row in topics.load("appended").collect()]
    assert all(
        abs((stamp.replace(tzinfo=UTC) - datetime.now(UTC)).total_seconds()) < 3_600 for stamp in stamps
    )


def test_an_empty_topic_and_an_empty_range_have_no_rows(topics: TopicsCluster, plain: str) -> None:
    create_topic(topics.kafka, "empty", PARTITIONS)
    assert topics.rows("empty") == []
    assert topics.load("empty").count() == 0
    nothing = json.dumps({plain: {"0": 5, "1": 5, "2": 5}})
    assert topics.rows(plain, startingOffsets=nothing, endingOffsets=nothing) == []


def test_a_moved_log_start_is_respected(topics: TopicsCluster) -> None:
    create_topic(topics.kafka, "trimmed", PARTITIONS)
    produce(topics.kafka, "trimmed", assorted(300, PARTITIONS, seed=9))
    topics.until_in_objects("trimmed")
    delete_records(topics.kafka, "trimmed", {0: 33, 1: 100})
    deadline = time.monotonic() + WAIT_S
    while min(each.log_start_offset for each in topics.snapshot("trimmed").partitions[:2]) == 0:
        assert time.monotonic() < deadline, "the new log start does not reach the objects"
        time.sleep(0.1)
    rows = topics.same_as_a_consumer("trimmed")
    assert [sum(row.partition == partition for row in rows) for partition in range(PARTITIONS)] == [
        67,
        0,
        100,
    ]


def test_a_compacted_topic_has_the_rows_of_its_log(topics: TopicsCluster) -> None:
    config = {
        "cleanup.policy": "compact",
        "segment.ms": "200",
        "min.cleanable.dirty.ratio": "0.01",
        "max.compaction.lag.ms": "400",
    }
    create_topic(topics.kafka, "compacted", config=config)
    for turn in range(3):
        keyed = [Sent(0, f"key-{n % 7}".encode(), f"{turn}:{n}".encode() * 10) for n in range(200)]
        produce(topics.kafka, "compacted", keyed, CODECS[turn])
        time.sleep(0.4)
    produce(topics.kafka, "compacted", [Sent(0, b"last", b"last")])
    deadline = time.monotonic() + WAIT_S
    while len(consumed(topics.kafka, "compacted")) > 300:
        assert time.monotonic() < deadline, "the cleaner does not clean"
        time.sleep(0.2)
        produce(topics.kafka, "compacted", [Sent(0, b"last", b"last")])
    time.sleep(1)
    rows = _steady(topics, "compacted")
    (_, end) = ends(topics.kafka, "compacted")[0]
    assert len(rows) < end
    assert {row.key for row in rows} == {f"key-{n}".encode() for n in range(7)} | {b"last"}


def _steady(topics: TopicsCluster, topic: str) -> list[KafkaRow]:
    """The same rows before and after Spark's read, as a consumer sees them, prove that nothing was
    cleaned in between.
    """
    deadline = time.monotonic() + WAIT_S
    while True:
        topics.until_in_objects(topic)
        before = consumed(topics.kafka, topic)
        rows = topics.rows(topic)
        if rows == before == consumed(topics.kafka, topic):
            return rows
        assert time.monotonic() < deadline, "Spark and the consumer do not agree"
