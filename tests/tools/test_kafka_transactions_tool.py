"""kafka-transactions.sh, unmodified: its tables about Ponor are those about a real Kafka."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import confluent_kafka
import pytest

from tests.peers.artifacts import CLIENT_VERSIONS
from tests.tools.ecosystem import PATIENCE_S, create_topic, read_records, wait_no_open_transactions
from tests.tools.java_programs import Output, tool, transactional

pytestmark = [pytest.mark.usefixtures("kafka_tools"), pytest.mark.timeout(1_800)]

COMMAND = "org.apache.kafka.tools.TransactionsCommand"
OWN = frozenset(
    {"ProducerId", "LatestCoordinatorEpoch", "LastTimestamp", "CurrentTransactionStartTimeMs"}
    | {"TransactionDurationMs"}
)
"""Columns whose numbers each cluster chooses."""
NONE = frozenset({"-1", "None"})

Table = list[dict[str, str]]


class Clusters:
    """Ponor and Kafka, with the same content."""

    def __init__(self, ponor: str, kafka: str) -> None:
        self.addresses = (ponor, kafka)

    def run(self, *words: str, code: int = 0) -> list[Output]:
        """Run a command on both."""
        with ThreadPoolExecutor(2) as pool:
            running = [
                pool.submit(tool, COMMAND, "--bootstrap-server", address, *words, code=code)
                for address in self.addresses
            ]
        return [each.result() for each in running]

    def table(self, *words: str) -> Table:
        """Run a command on both; the tables must be alike. Return it."""
        ponor, kafka = (_table(output) for output in self.run(*words))
        assert ponor == kafka
        return ponor

    def refused(self, *words: str) -> str:
        """Run a command on both, which must fail alike. Return its error."""
        ponor, kafka = (
            output.err.replace(address, "BROKER")
            for output, address in zip(self.run(*words, code=1), self.addresses, strict=True)
        )
        assert ponor == kafka
        return ponor

    def begin(self, topic: str, transactional_id: str, partitions: Sequence[int]) -> list[Producer]:
        """Write three records to each partition, in a transaction that stays open."""
        producers = [Producer(address, transactional_id) for address in self.addresses]
        for producer in producers:
            producer.begin(topic, partitions)
        return producers

    def wait_ended(self, topic: str) -> None:
        """Wait until neither has an open transaction."""
        for address in self.addresses:
            wait_no_open_transactions(address, topic)

    def wait_state(self, transactional_id: str, state: str) -> dict[str, str]:
        """Wait until the id has a state at both; return its row, which must be alike."""
        words = ("describe", "--transactional-id", transactional_id)
        deadline = time.monotonic() + PATIENCE_S
        while True:
            ponor, kafka = (_table(output) for output in self.run(*words))
            if {row["TransactionState"] for row in (*ponor, *kafka)} == {state}:
                assert ponor == kafka
                return ponor[0]
            assert time.monotonic() < deadline, (transactional_id, state)


class Producer:
    """A transactional producer of librdkafka."""

    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        settings = {"bootstrap.servers": bootstrap, "transactional.id": transactional_id}
        self._producer = confluent_kafka.Producer({**settings, "transaction.timeout.ms": 600_000})
        self._producer.init_transactions(PATIENCE_S)

    def begin(self, topic: str, partitions: Sequence[int]) -> None:
        """Write three records to each partition; the transaction stays open."""
        self._producer.begin_transaction()
        for partition in partitions:
            for number in range(3):
                self._producer.produce(topic, f"{number}", partition=partition)
        assert self._producer.flush(PATIENCE_S) == 0

    def commit(self) -> None:
        """Commit the transaction."""
        self._producer.commit_transaction(PATIENCE_S)


@pytest.fixture
def clusters(ponor: str, kafka: str) -> Clusters:
    return Clusters(ponor, kafka)


def _table(output: Output) -> Table:
    """Rows of a table, with what each cluster chooses as "some" or "none"."""
    header, *lines = (line.replace("65536", "1").split() for line in output.lines)
    rows = [dict(zip(header, line, strict=False)) for line in lines]
    return sorted(({name: _plain(name, value) for name, value in row.items()} for row in rows), key=str)


def _plain(name: str, value: str) -> str:
    if name == "TopicPartitions":
        return ",".join(sorted(value.split(",")))
    if name not in OWN:
        return value
    return "none" if value in NONE else "some"


def test_transactions_and_producers_are_listed_and_described(clusters: Clusters) -> None:
    for address in clusters.addresses:
        create_topic(address, "shown", 3)
    for producer in clusters.begin("shown", "shown-ended", [0, 1]):
        producer.commit()
    for producer in (ended := clusters.begin("shown", "shown-again", [0, 2])):
        producer.commit()
        producer.begin("shown", [1])
    opened = clusters.begin("shown", "shown-open", [0, 1])
    clusters.wait_state("shown-ended", "CompleteCommit")
    pattern = ("--transactional-id-pattern", "shown-.*")
    listed = {row["TransactionalId"]: row["TransactionState"] for row in clusters.table("list", *pattern)}
    assert listed == {"shown-ended": "CompleteCommit", "shown-again": "Ongoing", "shown-open": "Ongoing"}
    assert clusters.table("list", *pattern, "--duration-filter", "600000") == []
    (described,) = clusters.table("describe", "--transactional-id", "shown-open")
    assert described["TopicPartitions"] == "shown-0,shown-1"
    assert "shown-unknown" in clusters.refused("describe", "--transactional-id", "shown-unknown")
    for partition in range(2):
        words = ("--topic", "shown", "--partition", str(partition))
        assert clusters.table("describe-producers", *words)
    assert ended
    assert opened


def test_each_transaction_of_generation_2_raises_the_epoch(clusters: Clusters) -> None:
    for address in clusters.addresses:
        create_topic(address, "raised", 3)
        transactional(CLIENT_VERSIONS[-1], address, "raised", "commit", "abort", "commit")
    described = clusters.wait_state("raised", "CompleteCommit")
    assert described["ProducerEpoch"] == "3"
    (producer,) = clusters.table("describe-producers", "--topic", "raised", "--partition", "0")
    assert producer["ProducerEpoch"] == "3"


def test_open_transactions_are_not_hanging_and_can_be_aborted(clusters: Clusters) -> None:
    for address in clusters.addresses:
        create_topic(address, "aborted", 2)
    producers = clusters.begin("aborted", "aborted-by-hand", [0, 1])
    search = ("--topic", "aborted", "--max-transaction-timeout", "0")
    assert clusters.table("find-hanging", *search) == []
    assert clusters.table("find-hanging", *search, "--partition", "1") == []
    assert "--topic" in clusters.refused("find-hanging")
    place = ("--topic", "aborted", "--partition", "0")
    clusters.refused("abort", *place)
    clusters.refused("abort", *place, "--start-offset", "1")
    clusters.run("abort", *place, "--start-offset", "0")
    (aborted,) = clusters.table("describe-producers", *place)
    assert aborted["CurrentTransactionStartOffset"] == "None"
    for producer in producers:
        producer.commit()
    clusters.wait_ended("aborted")
    ponor, kafka = ([value for _, value in read_records(each, "aborted")] for each in clusters.addresses)
    assert ponor == kafka == ["0", "1", "2"]


def test_a_transactional_id_is_terminated_by_force(clusters: Clusters) -> None:
    for address in clusters.addresses:
        create_topic(address, "forced", 1)
    producers = clusters.begin("forced", "forced-id", [0])
    clusters.run("forceTerminateTransaction", "--transactionalId", "forced-id")
    clusters.wait_ended("forced")
    for producer in producers:
        with pytest.raises(confluent_kafka.KafkaException):
            producer.commit()
    clusters.wait_state("forced-id", "Empty")
    clusters.run("forceTerminateTransaction", "--transactionalId", "forced-unknown")
    clusters.table("list", "--transactional-id-pattern", "forced-.*")
    assert read_records(clusters.addresses[0], "forced") == []
