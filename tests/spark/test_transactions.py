"""Spark with `read_committed` on transactions that real clients wrote: committed, aborted and open ones."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import confluent_kafka
import pytest
from ponor_spark.jobs.command import spark_app
from typer.testing import CliRunner

from tests.spark.kafka_rows import WAIT_S, KafkaRow, Sent, consumed, create_topic, ends, produce
from tests.spark.topics_cluster import TopicsCluster

pytestmark = pytest.mark.timeout(900)
COMMITTED = "kafka.isolation.level", "read_committed"
PER_TRANSACTION = 5


def test_committed_rows_are_read_from_fresh_and_from_compacted_objects(topics: TopicsCluster) -> None:
    create_topic(topics.kafka, "txn-rows", partitions=2)
    with _producers(topics, "rows") as producers:
        open_one, *ending = producers
        uploaded: set[int] = set()
        for number in range(6):
            _write_a_round(topics, ending, number)
            topics.until_in_objects("txn-rows")
            uploaded |= _objects(topics, "txn-rows")
        _begin(open_one, "txn-rows", "open")
        produce(topics.kafka, "txn-rows", [Sent(at, None, b"behind the open one") for at in (0, 1)])
        fresh = _same_as_a_consumer(topics, "txn-rows")
        assert {_kind(row) for row in fresh} == {"plain", "committed"}
        everything = topics.same_as_a_consumer("txn-rows")
        assert {_kind(row) for row in everything} == {"plain", "committed", "aborted", "open", "behind"}
        _until_compacted(topics, "txn-rows", uploaded)
        assert _same_as_a_consumer(topics, "txn-rows") == fresh
        open_one.commit_transaction(WAIT_S)
        rows = _same_as_a_consumer(topics, "txn-rows")
        assert {_kind(row) for row in rows} == {"plain", "committed", "open", "behind"}


def test_a_log_that_was_cleaned_has_the_committed_rows(topics: TopicsCluster) -> None:
    config = {
        "cleanup.policy": "compact",
        "segment.ms": "200",
        "min.cleanable.dirty.ratio": "0.01",
        "max.compaction.lag.ms": "400",
    }
    create_topic(topics.kafka, "txn-cleaned", partitions=2, config=config)
    deadline = time.monotonic() + WAIT_S
    with _producers(topics, "cleaned") as (_, *ending):
        number = 0
        while len(consumed(topics.kafka, "txn-cleaned")) >= 20 * number:
            assert time.monotonic() < deadline, "the cleaner does not clean"
            _write_a_round(topics, ending, number, topic="txn-cleaned")
            number += 1
            time.sleep(0.3)
    rows = _same_as_a_consumer(topics, "txn-cleaned")
    assert {_kind(row) for row in rows} == {"plain", "committed"}


def test_the_audit_counts_what_transactions_leave_out(topics: TopicsCluster) -> None:
    create_topic(topics.kafka, "txn-audit", partitions=2)
    with _producers(topics, "audit") as (_, *ending):
        for number in range(2):
            _write_a_round(topics, ending, number, topic="txn-audit")
        _same_as_a_consumer(topics, "txn-audit")
    words = [
        "verify",
        "txn-audit",
        "-O",
        "=".join(COMMITTED),
        "--against-broker",
        "--bootstrap",
        topics.kafka,
    ]
    done = CliRunner().invoke(spark_app, [*words, "-o", "json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    partitions = json.loads(done.stdout)["partitions"]
    counts = {
        name: sum(each[name] for each in partitions)
        for name in ("rows", "consumer_rows", "aborted_records", "control_batches", "problem_count")
    }
    rows = 2 * 2 * (PER_TRANSACTION + 1)
    assert counts == {
        "rows": rows,
        "consumer_rows": rows,
        "aborted_records": 2 * 2 * PER_TRANSACTION,
        "control_batches": 2 * 2 * 2,
        "problem_count": 0,
    }
    said = CliRunner().invoke(spark_app, words, catch_exceptions=False).stdout
    assert "; 20 aborted records and 8 control batches are not included" in said


@contextmanager
def _producers(topics: TopicsCluster, name: str) -> Iterator[list[Any]]:
    """Three transactional producers."""
    producers = [
        confluent_kafka.Producer(
            {
                "bootstrap.servers": topics.kafka,
                "transactional.id": f"spark-{name}-{at}",
                "transaction.timeout.ms": 900_000,
            }
        )
        for at in range(3)
    ]
    for producer in producers:
        producer.init_transactions(WAIT_S)
    yield producers


def _write_a_round(
    topics: TopicsCluster, producers: list[Any], number: int, *, topic: str = "txn-rows"
) -> None:
    """Write a committed and an aborted transaction, which overlap, and records without one between them."""
    committed, aborted = producers if number % 2 else producers[::-1]
    _begin(committed, topic, "committed")
    _begin(aborted, topic, "aborted")
    produce(topics.kafka, topic, [Sent(at, b"plain", b"plain") for at in (0, 1)])
    aborted.abort_transaction(WAIT_S)
    committed.commit_transaction(WAIT_S)


def _begin(producer: Any, topic: str, kind: str) -> None:
    producer.begin_transaction()
    for partition in (0, 1):
        for number in range(PER_TRANSACTION):
            producer.produce(
                topic, partition=partition, key=b"%d" % number, value=f"{kind} {number}".encode()
            )
    assert producer.flush(WAIT_S) == 0


def _kind(row: KafkaRow) -> str:
    assert row.value is not None
    return row.value.decode().partition(" ")[0]


def _same_as_a_consumer(topics: TopicsCluster, topic: str) -> list[KafkaRow]:
    """Wait until Spark returns the rows of a consumer with `read_committed`; return them.

    Objects show the last stable offset of the last checkpoint, and a cleaning may end between two reads.
    """
    deadline = time.monotonic() + WAIT_S
    while True:
        topics.until_in_objects(topic)
        wanted = consumed(topics.kafka, topic, read_committed=True)
        rows = topics.rows(topic, **{COMMITTED[0].replace(".", "__"): COMMITTED[1]})
        if rows == wanted:
            return rows
        stable = {at: end for at, (_, end) in ends(topics.kafka, topic, read_committed=True).items()}
        assert all(row.offset < stable[row.partition] for row in rows)
        assert time.monotonic() < deadline, f"{topic}: {len(rows)} rows, a consumer has {len(wanted)}"
        time.sleep(0.2)


def _objects(topics: TopicsCluster, topic: str) -> set[int]:
    """The objects that hold the topic's data."""
    snapshot = topics.snapshot(topic)
    return {
        piece.object_id
        for partition in snapshot.partitions
        for segment in partition.segments
        for piece in snapshot.pieces_of(segment.stream_id, 0, 1 << 62)
    }


def _until_compacted(topics: TopicsCluster, topic: str, uploaded: set[int]) -> None:
    """Wait until compaction has replaced most of these objects. The last ones may wait for more to join."""
    deadline = time.monotonic() + WAIT_S
    while len(left := uploaded & _objects(topics, topic)) > len(uploaded) // 2:
        assert time.monotonic() < deadline, f"{left} of {uploaded} are not compacted"
        time.sleep(0.3)
