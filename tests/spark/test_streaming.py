"""Micro-batches: every row once, in the batch with its offsets, across limits, restarts, failures,
new partitions, lost offsets and recreated topics.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions
from pyspark.errors import StreamingQueryException

from tests.spark.kafka_rows import (
    WAIT_S,
    KafkaRow,
    assorted,
    consumed,
    create_topic,
    delete_records,
    delete_topic,
    produce,
    spark_rows,
)
from tests.spark.topics_cluster import TopicsCluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.timeout(900)
PARTITIONS = 2


@dataclass
class Runs:
    """A query of one checkpoint, run repeatedly; rows of each batch by its number: a repeated batch
    replaces the first attempt.
    """

    topics: TopicsCluster
    topic: str
    checkpoint: Path
    batches: dict[int, list[KafkaRow]] = field(default_factory=dict)
    progress: list[dict[str, Any]] = field(default_factory=list)

    def available_now(self, after: Callable[[int], None] = lambda _: None, **options: Any) -> None:
        """Process everything available. `after` is called after every batch, before Spark commits it."""

        def take(frame: DataFrame, number: int) -> None:
            self.batches[number] = spark_rows(frame.collect())
            after(number)

        frame = self.topics.stream(self.topic, includeHeaders=True, **options)
        writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(self.checkpoint))
        query = writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(600), "the query does not end"
        finally:
            query.stop()
        self.progress += [json.loads(each.json) for each in query.recentProgress]

    @property
    def rows(self) -> list[KafkaRow]:
        """Rows of all batches."""
        return sorted(
            (row for rows in self.batches.values() for row in rows),
            key=lambda row: (row.topic, row.partition, row.offset),
        )

    @property
    def sizes(self) -> list[int]:
        """Rows of each batch that had some."""
        return [len(rows) for _, rows in sorted(self.batches.items()) if rows]


def filled(topics: TopicsCluster, topic: str, count: int, seed: int = 1) -> None:
    """Produce this many more records, and wait until they are in objects."""
    produce(topics.kafka, topic, assorted(count, PARTITIONS, seed=seed), "zstd")
    topics.until_in_objects(topic)


def test_each_run_returns_new_rows(topics: TopicsCluster, tmp_path: Path) -> None:
    create_topic(topics.kafka, "stream-runs", PARTITIONS)
    runs = Runs(topics, "stream-runs", tmp_path)
    filled(topics, "stream-runs", 100)
    runs.available_now()
    assert runs.rows == consumed(topics.kafka, "stream-runs")
    runs.available_now()
    assert runs.sizes == [100]
    filled(topics, "stream-runs", 60, seed=2)
    runs.available_now()
    assert runs.sizes == [100, 60]
    assert runs.rows == consumed(topics.kafka, "stream-runs")
    offsets = runs.progress[-1]["sources"][0]
    assert offsets["endOffset"]["stream-runs"] == {"0": 80, "1": 80}
    assert offsets["latestOffset"]["stream-runs"] == {"0": 80, "1": 80}


def test_a_limit_divides_batches_and_the_end_is_fixed(topics: TopicsCluster, tmp_path: Path) -> None:
    """Records that arrive during the query are left to the next one."""
    create_topic(topics.kafka, "stream-limit", PARTITIONS)
    filled(topics, "stream-limit", 100)
    runs = Runs(topics, "stream-limit", tmp_path)
    more: list[int] = []

    def produce_more(number: int) -> None:
        if not more:
            more.append(number)
            filled(topics, "stream-limit", 40, seed=3)

    runs.available_now(produce_more, maxOffsetsPerTrigger=30, minOffsetsPerTrigger=20)
    assert runs.sizes == [30, 30, 30, 10]
    runs.available_now(maxOffsetsPerTrigger=30)
    assert runs.sizes == [30, 30, 30, 10, 30, 10]
    assert runs.rows == consumed(topics.kafka, "stream-limit")


def test_a_failed_batch_is_read_again_unchanged(topics: TopicsCluster, tmp_path: Path) -> None:
    create_topic(topics.kafka, "stream-again", PARTITIONS)
    filled(topics, "stream-again", 90)
    runs = Runs(topics, "stream-again", tmp_path)

    def fail(number: int) -> None:
        if number == 1:
            raise RuntimeError("the sink is full")

    with pytest.raises(StreamingQueryException, match="the sink is full"):
        runs.available_now(fail, maxOffsetsPerTrigger=40)
    first_attempt = runs.batches[1]
    filled(topics, "stream-again", 50, seed=4)
    runs.available_now(maxOffsetsPerTrigger=1000)
    assert runs.batches[1] == first_attempt
    assert runs.sizes == [40, 40, 60]
    assert runs.rows == consumed(topics.kafka, "stream-again")


def test_new_partitions_and_topics_are_read_from_their_beginning(
    topics: TopicsCluster, tmp_path: Path
) -> None:
    create_topic(topics.kafka, "appear-a", 1)
    produce(topics.kafka, "appear-a", assorted(30, 1, seed=1))
    topics.until_in_objects("appear-a")
    runs = Runs(topics, "", tmp_path)
    runs.available_now(subscribePattern="appear-.*")
    admin = AdminClient({"bootstrap.servers": topics.kafka})
    admin.create_partitions([NewPartitions("appear-a", 2)])["appear-a"].result(WAIT_S)
    create_topic(topics.kafka, "appear-b", 1)
    produce(topics.kafka, "appear-b", assorted(20, 1, seed=2))
    topics.until_in_objects("appear-b")
    _produce_to_new_partition(topics, "appear-a")
    runs.available_now(subscribePattern="appear-.*")
    assert runs.sizes == [30, 40]
    assert runs.rows == consumed(topics.kafka, "appear-a") + consumed(topics.kafka, "appear-b")


def _produce_to_new_partition(topics: TopicsCluster, topic: str) -> None:
    records = [each for each in assorted(40, 2, seed=3) if each.partition == 1]
    produce(topics.kafka, topic, records)
    topics.until_in_objects(topic)


def test_lost_offsets_fail_the_query_or_are_skipped(topics: TopicsCluster, tmp_path: Path) -> None:
    create_topic(topics.kafka, "stream-lost", PARTITIONS)
    filled(topics, "stream-lost", 40)
    runs = Runs(topics, "stream-lost", tmp_path)
    runs.available_now()
    filled(topics, "stream-lost", 100, seed=2)
    delete_records(topics.kafka, "stream-lost", {0: 45})
    deadline = time.monotonic() + WAIT_S
    while topics.snapshot("stream-lost").partitions[0].log_start_offset < 45:
        assert time.monotonic() < deadline, "the new log start does not reach the objects"
        time.sleep(0.1)
    with pytest.raises(StreamingQueryException, match=r"failOnDataLoss: stream-lost 0 begins at 45.*20"):
        runs.available_now()
    runs.available_now(failOnDataLoss=False)
    offsets = [row.offset for row in runs.rows if row.partition == 0]
    assert offsets == [*range(20), *range(45, 70)]
    assert [row.offset for row in runs.rows if row.partition == 1] == list(range(70))


def test_a_recreated_topic_is_data_loss(topics: TopicsCluster, tmp_path: Path) -> None:
    """The new topic soon has more records than the old one had: its offsets alone would not show it."""
    create_topic(topics.kafka, "stream-anew", PARTITIONS)
    filled(topics, "stream-anew", 40)
    runs = Runs(topics, "stream-anew", tmp_path)
    runs.available_now()
    delete_topic(topics.kafka, "stream-anew")
    create_topic(topics.kafka, "stream-anew", PARTITIONS)
    filled(topics, "stream-anew", 100, seed=9)
    with pytest.raises(StreamingQueryException, match="topic stream-anew was deleted and recreated"):
        runs.available_now()
    before = len(runs.rows)
    runs.available_now(failOnDataLoss=False)
    assert len(runs.rows) == before + 100
    last = runs.batches[max(runs.batches)]
    assert last == consumed(topics.kafka, "stream-anew")


def test_a_stream_continues_without_a_deleted_topic(topics: TopicsCluster, tmp_path: Path) -> None:
    for name in ("stream-kept", "stream-gone"):
        create_topic(topics.kafka, name, PARTITIONS)
        filled(topics, name, 40)
    runs = Runs(topics, "stream-kept,stream-gone", tmp_path)
    runs.available_now()
    assert len(runs.rows) == 80
    delete_topic(topics.kafka, "stream-gone")
    filled(topics, "stream-kept", 30, seed=3)
    with pytest.raises(Exception, match="there is no topic stream-gone"):
        runs.available_now()
    runs.available_now(failOnDataLoss=False)
    assert len(runs.rows) == 110
    create_topic(topics.kafka, "stream-gone", PARTITIONS)
    filled(topics, "stream-gone", 50, seed=5)
    runs.available_now(failOnDataLoss=False)
    assert len(runs.rows) == 160
    assert runs.batches[max(runs.batches)] == consumed(topics.kafka, "stream-gone")


def test_a_misspelt_topic_is_refused_with_any_data_loss_setting(
    topics: TopicsCluster, tmp_path: Path
) -> None:
    with pytest.raises(StreamingQueryException, match="there is no topic stream-nowhere"):
        Runs(topics, "stream-nowhere", tmp_path).available_now(failOnDataLoss=False)


def test_a_stream_reads_the_tail_and_continues_in_objects(topics: TopicsCluster, tmp_path: Path) -> None:
    create_topic(topics.kafka, "stream-tail", PARTITIONS)
    runs = Runs(topics, "stream-tail", tmp_path)
    for seed in range(3):
        produce(topics.kafka, "stream-tail", assorted(30, PARTITIONS, seed=seed), "lz4")
        runs.available_now(tail="broker")
        assert runs.rows == consumed(topics.kafka, "stream-tail")
    assert runs.sizes == [30, 30, 30]


@pytest.mark.parametrize("trigger", ["as soon as possible", "200 milliseconds"])
def test_everything_available_is_processed(topics: TopicsCluster, tmp_path: Path, trigger: str) -> None:
    """Records in objects before the call of processAllAvailable() are in a batch when it returns."""
    topic = f"stream-all-{len(trigger)}"
    create_topic(topics.kafka, topic, PARTITIONS)
    taken: list[KafkaRow] = []
    frame = topics.stream(topic, includeHeaders=True)
    writer = frame.writeStream.foreachBatch(lambda rows, _: taken.extend(spark_rows(rows.collect())))
    if trigger[0].isdigit():
        writer = writer.trigger(processingTime=trigger)
    query = writer.option("checkpointLocation", str(tmp_path)).start()
    try:
        for turn in range(3):
            filled(topics, topic, 20, seed=turn)
            query.processAllAvailable()
            assert len(taken) == 20 * (turn + 1)
    finally:
        query.stop()
    assert sorted(taken, key=lambda row: (row.partition, row.offset)) == consumed(topics.kafka, topic)
