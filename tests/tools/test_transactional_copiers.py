"""Four of Kafka's TransactionalMessageCopiers in one group, of both generations of transactions. They
and brokers are killed, copiers are replaced, and partitions move. Each record is copied exactly once, and
no transaction stays open.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from ponor_cli.clients.kafka_client import KafkaClient
from ponor_cli.clients.reassignments import places_of

from tests.e2e.load.cluster import LocalCluster
from tests.peers.artifacts import PeerMissingError, clients
from tests.tools.copiers import Copier
from tests.tools.ecosystem import (
    PATIENCE_S,
    create_topic,
    end_offsets,
    read_partitions,
    wait_no_open_transactions,
    write_properties,
)
from tests.tools.java_programs import tool

pytestmark = [pytest.mark.usefixtures("kafka_tools"), pytest.mark.timeout(1_800)]

TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"
VERIFIABLE_PRODUCER = "org.apache.kafka.tools.VerifiableProducer"
VERSIONS = (("2.8.2",), ("3.9.1", "4.3.1"), ("4.3.1", "2.8.2"), ("4.3.1",))
"""Each start of a copier uses the next version of its client; 4.3.1 uses generation 2."""
PARTITIONS = len(VERSIONS)
RECORDS = 3_000
TRANSACTION_TIMEOUT_MS = 10_000


@pytest.fixture(scope="session", autouse=True)
def java_clients() -> None:
    try:
        for version in {version for versions in VERSIONS for version in versions}:
            assert clients(version).class_path
    except PeerMissingError as error:
        pytest.skip(str(error))


def until(copiers: Sequence[Copier], holds: Callable[[], bool], what: str) -> None:
    """Wait, and start the copiers that have ended again: each ends when it has reached the end of its
    partitions, or when its transaction exceeded the timeout.
    """
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        for copier in copiers:
            if not copier.is_running:
                copier.start()
        assert time.monotonic() < deadline, (what, [copier.said() for copier in copiers])
        time.sleep(0.2)


def test_copiers_copy_every_record_once_through_kills(brokers: LocalCluster, tmp_path: Path) -> None:
    bootstrap = brokers.bootstrap
    for topic in ("copied-in", "copied-out"):
        create_topic(bootstrap, topic, PARTITIONS)
    _seed(bootstrap, "copied-in", tmp_path)
    words = ["--broker-list", bootstrap, "--input-topic", "copied-in", "--output-topic", "copied-out"]
    words += ["--consumer-group", "copiers", "--transaction-size", "20", "--enable-random-aborts"]
    words += ["--transaction-timeout", str(TRANSACTION_TIMEOUT_MS)]
    copiers = [Copier(tmp_path, f"copier-{at}", versions, *words) for at, versions in enumerate(VERSIONS)]

    def has_copied(part: float) -> Callable[[], bool]:
        return lambda: sum(end_offsets(bootstrap, "copied-out", "read_committed")) > part * RECORDS

    try:
        for at, copier in enumerate(copiers):
            until(copiers, has_copied((at + 1) / 10), f"part {at} of the copy")
            if at % 2 == 0:
                copier.kill()
                assert brokers.kill("broker", at // 2)
            else:
                copier.stop()
        until(copiers, has_copied(0.5), "half of the copy")
        for copier in copiers:
            copier.kill()
        # The coordinator aborts what they left open.
        wait_no_open_transactions(bootstrap, "copied-out", "__consumer_offsets")
        assert _hanging(bootstrap) == []
        for copier in copiers:
            copier.start()
            copier.resume()
        for topic in ("copied-out", "__consumer_offsets", "__transaction_state"):
            _move(brokers, topic)
        until(copiers, lambda: _is_copied(bootstrap), "the copy")
        until(copiers, lambda: all(copier.is_alone for copier in copiers), "the end of replaced copiers")
    finally:
        for copier in copiers:
            copier.kill_all()
    wait_no_open_transactions(bootstrap, "copied-out", "__consumer_offsets")
    # Also in the same order: a partition has one copier at a time.
    assert read_partitions(bootstrap, "copied-out") == read_partitions(bootstrap, "copied-in")


def _seed(bootstrap: str, topic: str, directory: Path) -> None:
    """Write numbers with Kafka's VerifiableProducer."""
    settings = write_properties(directory / "producer", {"enable.idempotence": "true", "retries": 1_000_000})
    words = ("--topic", topic, "--max-messages", str(RECORDS), "--command-config", str(settings))
    tool(VERIFIABLE_PRODUCER, "--bootstrap-server", bootstrap, *words)
    assert sum(map(len, read_partitions(bootstrap, topic))) == RECORDS


def _move(brokers: LocalCluster, topic: str) -> None:
    """Move the first partition to another broker."""
    with KafkaClient(brokers.bootstrap) as client:
        home = places_of(client, [topic])[0].leader_id
    nodes = [row["node_id"] for row in brokers.describe()["processes"] if row["role"] == "broker"]
    away = next(node for node in nodes if node != home)
    brokers.run("partition", "move", topic, "0", "--to", str(away), "--wait")


def _is_copied(bootstrap: str) -> bool:
    return sum(map(len, read_partitions(bootstrap, "copied-out"))) >= RECORDS


def _hanging(bootstrap: str) -> list[str]:
    """Run kafka-transactions find-hanging; return the lines after its header."""
    words = ("find-hanging", "--topic", "copied-out", "--max-transaction-timeout", "0")
    header, *found = tool(TRANSACTIONS, "--bootstrap-server", bootstrap, *words).lines
    assert header.split()[:2] == ["Topic", "Partition"]
    return found
