"""`ponor transaction` against a running cluster: what it shows, and aborts by id and by partition."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from ponor_kafka.internal_topics import TRANSACTIONS_TOPIC

from tests.e2e.load.cluster import LocalCluster, ponor
from tests.e2e.scenarios import create_topic

WAIT_S = 120.0


@pytest.mark.timeout(600)
def test_transactions_are_listed_and_aborted(tmp_path: Path) -> None:
    settings = {"transaction_topic_partitions": 4}
    with LocalCluster(tmp_path, settings=settings, arguments=["--brokers", "2"]) as cluster:
        create_topic(cluster, "orders", 2)
        _check_abort_of_an_id(cluster)
        _check_abort_of_a_hanging_transaction(cluster)


def _check_abort_of_an_id(cluster: LocalCluster) -> None:
    producer = _open(cluster, "payments-7", "aborted")
    (listed,) = _rows(cluster, "list", "--state", "ongoing", "--id-pattern", "payments-.*")
    assert listed["transactional_id"] == "payments-7"
    assert _rows(cluster, "list", "--longer-than", "3600") == []
    described = _rows(cluster, "describe", "payments-7")
    assert (described["state"], described["partitions"]) == ("Ongoing", ["orders-0", "orders-1"])
    opened = _rows(cluster, "open", "orders")
    assert [(row["partition"], row["transactional_id"], row["hanging"]) for row in opened] == [
        (0, "payments-7", False),
        (1, "payments-7", False),
    ]
    hanging = ("--topic", "orders", "--partition", "0", "--start-offset", "0")
    assert "use `ponor transaction abort payments-7`" in _refusal(cluster, "abort", *hanging)
    assert _rows(cluster, "abort", "payments-7")["partitions"] == ["orders-0", "orders-1"]
    assert _rows(cluster, "open") == []
    assert "has no open transaction" in _refusal(cluster, "abort", "payments-7")
    with pytest.raises(confluent_kafka.KafkaException) as raised:
        producer.commit_transaction(WAIT_S)
    assert raised.value.args[0].fatal(), "the abort fenced the producer"


def _check_abort_of_a_hanging_transaction(cluster: LocalCluster) -> None:
    _open(cluster, "lost", "hanging", partitions=[1])
    # The coordinator forgets the transaction.
    cluster.run("topic", "delete", TRANSACTIONS_TOPIC)
    (hanging,) = _rows(cluster, "open", "--hanging")
    assert (hanging["topic"], hanging["partition"], hanging["transactional_id"]) == ("orders", 1, None)
    place = ("--topic", "orders", "--partition", "1", "--start-offset")
    assert "no open transaction starts at" in _refusal(cluster, "abort", *place, "99")
    done = _rows(cluster, "abort", *place, str(hanging["start_offset"]))
    assert done["producer_id"] == hanging["producer_id"]
    assert _rows(cluster, "open") == []
    producer = _open(cluster, "later", "committed", partitions=[1])
    producer.commit_transaction(WAIT_S)
    assert _committed(cluster) == "committed\n"


def _open(
    cluster: LocalCluster, transactional_id: str, value: str, partitions: list[int] | None = None
) -> confluent_kafka.Producer:
    """Send a record to each partition in a transaction that stays open."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": cluster.bootstrap, "transactional.id": transactional_id}
    )
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    for partition in [0, 1] if partitions is None else partitions:
        producer.produce("orders", value, partition=partition)
    assert producer.flush(WAIT_S) == 0
    return producer


def _committed(cluster: LocalCluster) -> str:
    """Return the values of `orders` that a reader of committed records gets."""
    words = ["topic", "consume", "orders", "--from-beginning", "--no-follow"]
    command = [ponor(), *words, "--bootstrap", cluster.bootstrap]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _rows(cluster: LocalCluster, *words: str) -> Any:
    return json.loads(cluster.run("transaction", *words, "-o", "json"))


def _refusal(cluster: LocalCluster, *words: str) -> str:
    """Return the error of a command that must fail."""
    command = [ponor(), "transaction", *words, "--bootstrap", cluster.bootstrap]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    return line
