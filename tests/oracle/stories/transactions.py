"""Transactional producers: both generations, errors, administration."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from ponor_kafka.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from ponor_kafka.messages.describe_transactions import DescribeTransactionsRequest
from ponor_kafka.messages.end_txn import EndTxnRequest
from ponor_kafka.messages.find_coordinator import FindCoordinatorRequest
from ponor_kafka.messages.init_producer_id import InitProducerIdRequest
from ponor_kafka.messages.list_transactions import ListTransactionsRequest
from ponor_kafka.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

from tests.oracle.asking import committed, fetch, idempotent, list_offsets, produce
from tests.oracle.narrator import READY_S_MAX, Narrator, Only, SetUpFailedError, Topic
from tests.oracle.story import story

TRANSACTION: Final = 1
TIMEOUT_MS: Final = 600_000


class Producer:
    """A transactional id with the id and epoch of its producer."""

    def __init__(self, k: Narrator, name: str, *, version: int = 4) -> None:
        self.k = k
        self.name = name
        _wait(lambda: self._code() == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, "its coordinator is ready")
        begun = k.ask(InitProducerIdRequest(name, TIMEOUT_MS), version, "a new transactional id")
        self.producer_id, self.producer_epoch = begun.producer_id, begun.producer_epoch

    def _code(self) -> int:
        found = self.k.quietly(FindCoordinatorRequest(self.name, TRANSACTION), 3).error_code
        return int(found or self._described().error_code)

    def _described(self) -> Any:
        return self.k.quietly(DescribeTransactionsRequest([self.name]), 0).transaction_states[0]

    def has_ended(self) -> None:
        """Set-up: wait until every marker is written."""
        _wait(lambda: self._described().transaction_state.startswith("Complete"), "the transaction ended")

    def add(self, topics: dict[str, list[int]], version: int, note: str, *, epoch: int | None = None) -> None:
        """Add partitions as a client of generation 1."""
        rows = [AddPartitionsToTxnTopic(name, indexes) for name, indexes in topics.items()]
        epoch = self.producer_epoch if epoch is None else epoch
        request = AddPartitionsToTxnRequest((), self.name, self.producer_id, epoch, rows)
        self.k.ask(request, version, note)

    def row(
        self, topics: dict[str, list[int]], *, verify_only: bool = False, epoch: int | None = None
    ) -> AddPartitionsToTxnTransaction:
        """A row of a request of a partition's leader."""
        rows = [AddPartitionsToTxnTopic(name, indexes) for name, indexes in topics.items()]
        epoch = self.producer_epoch if epoch is None else epoch
        return AddPartitionsToTxnTransaction(self.name, self.producer_id, epoch, verify_only, rows)

    def write(
        self, topic: Topic, sequence: int, version: int, note: str, *, partition: int = 0, **settings: Any
    ) -> None:
        """Produce a transactional batch."""
        # Kafka begins a segment with a marker that is much newer than the records before.
        now_ms = int(time.time() * 1000)
        records = idempotent(self, sequence, at=now_ms, transactional=True, **settings)
        request = produce(topic, records, partition=partition, transactional_id=self.name)
        self.k.ask(request, version, note)

    def end(self, version: int, note: str, *, commits: bool = True, epoch: int | None = None) -> Any:
        """Commit or abort."""
        epoch = self.producer_epoch if epoch is None else epoch
        return self.k.ask(EndTxnRequest(self.name, self.producer_id, epoch, commits), version, note)

    def finish(self, note: str, *, commits: bool = True) -> None:
        """End a transaction of generation 2, and continue with the next epoch."""
        self.producer_epoch = self.end(5, note, commits=commits).producer_epoch
        self.has_ended()


def _wait(is_done: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + READY_S_MAX
    while not is_done():
        if time.monotonic() > deadline:
            raise SetUpFailedError(f"not in time: {what}")
        time.sleep(0.02)


@story("Transactions of generation 1, in all versions")
def transactions_generation_1(k: Narrator) -> None:
    topic = k.topic("txn-one", 4)
    one = Producer(k, "txn-one")
    one.write(topic, 0, 9, "a batch without a transaction")
    one.write(topic, 0, 11, "likewise, of a client with newer errors")
    for version in range(4):
        one.add({topic.name: [version]}, version, "a partition")
    one.add({topic.name: [0, 1]}, 3, "partitions that were added before")
    for partition in range(4):
        one.write(topic, 0, 9 + partition % 3, "the first batch of a partition", partition=partition)
    one.write(topic, 1, 9, "the next batch")
    k.ask(fetch(topic, 0, isolation=1), 12, "read_committed sees nothing")
    k.ask(list_offsets(topic, -1, isolation=1), 7, "the last stable offset")
    for version in range(5):
        one.end(version, "an end", commits=bool(version % 2))
        one.has_ended()
        one.end(version, "the same end again", commits=bool(version % 2))
        one.end(version, "the other end", commits=not version % 2)
        one.add({topic.name: [0]}, 3, "the next transaction")
        one.write(topic, 2 + version, 9, "its batch")
    k.ask(fetch(topic, 0, isolation=1), 12, "aborted and open transactions")
    k.ask(fetch(topic, 0), 12, "everything")


@story("Requests of transactions that are refused")
def transactions_refused(k: Narrator) -> None:
    topic = k.topic("txn-refused", 2)
    one = Producer(k, "txn-refused")
    for version in range(4):
        one.add({topic.name: [0], "txn-missing": [0]}, version, "an unknown topic")
        one.add({topic.name: [0], "__consumer_offsets": [0]}, version, "an internal topic")
        one.add({topic.name: [0, 9]}, version, "an unknown partition")
        one.add({topic.name: [0]}, version, "another epoch", epoch=one.producer_epoch + 1)
    for version in range(6):
        one.end(version, "another epoch", epoch=one.producer_epoch + 1)
        one.end(version, "a commit without a transaction")
    for version in range(5):
        name = "txn-unknown" if version % 2 else ""
        k.ask(AddOffsetsToTxnRequest(name, one.producer_id, 0, "g"), version, "no such transactional id")
        k.ask(EndTxnRequest(name, one.producer_id, 0, True), version, "no such transactional id")
        k.ask(AddOffsetsToTxnRequest(one.name, one.producer_id, 5, "g"), version, "another epoch")
    records = idempotent(one, 0, transactional=True)
    k.ask(produce(topic, records), 9, "a transactional batch without a transactional id")
    plain = produce(topic, idempotent(one, 0), transactional_id=one.name)
    k.ask(plain, 9, "a batch that is not transactional")
    for version in range(6):
        for timeout_ms in (0, -1, 900_001):
            k.ask(InitProducerIdRequest("txn-timeout", timeout_ms), version, f"a timeout of {timeout_ms} ms")
    for version in (3, 4, 5):
        again = InitProducerIdRequest(one.name, TIMEOUT_MS, one.producer_id, 7)
        k.ask(again, version, "an epoch that the producer never had")


@story("Offsets of groups in transactions, in all versions")
def transactions_with_offsets(k: Narrator) -> None:
    topic = k.topic("txn-offsets")
    one = Producer(k, "txn-offsets", version=5)
    group = "txn-offsets-group"
    k.ask(_offsets(one, group, topic, 7), 3, "without a transaction")
    k.ask(_offsets(one, group, topic, 7), 4, "likewise, of a client with newer errors")
    for version in range(5):
        request = AddOffsetsToTxnRequest(one.name, one.producer_id, one.producer_epoch, group)
        k.ask(request, version, "a group")
        k.ask(_offsets(one, group, topic, 10 + version), version, "an offset")
        k.ask(committed(group, topic, 7, 0), 7, "it is not visible")
        one.end(4, "an end", commits=version != 2)
        one.has_ended()
        k.settle()
        k.ask(committed(group, topic, 7, 0), 7, "after the end")
    k.ask(_offsets(one, group, topic, 20), 5, "generation 2 adds the group")
    k.ask(_offsets(one, group, topic, 20, epoch=5), 5, "another epoch")
    one.finish("a commit")
    k.settle()
    k.ask(committed(group, topic, 7, 0), 7, "after the end")
    k.ask(_offsets(one, group, topic, 30, generation=3), 5, "a generation of a group without members")
    k.ask(_offsets(one, group, topic, 30, member="m"), 5, "an unknown member")


def _offsets(
    producer: Producer,
    group: str,
    topic: Topic,
    offset: int,
    *,
    epoch: int | None = None,
    generation: int = -1,
    member: str = "",
) -> TxnOffsetCommitRequest:
    row = TxnOffsetCommitRequestTopic(topic.name, partitions=[TxnOffsetCommitRequestPartition(0, offset)])
    its_epoch = producer.producer_epoch if epoch is None else epoch
    return TxnOffsetCommitRequest(
        producer.name, group, producer.producer_id, its_epoch, generation, member, None, [row]
    )


@story("Transactions of generation 2")
def transactions_generation_2(k: Narrator) -> None:
    topic = k.topic("txn-two", 2)
    two = Producer(k, "txn-two", version=5)
    for version in (12, 13):
        two.write(topic, 0, version, "the partition is added", partition=version - 12)
    two.write(topic, 1, 12, "the next batch")
    before = two.producer_epoch
    two.finish("a commit")
    two.end(5, "the same end again", epoch=before)
    two.end(5, "the other end", epoch=before, commits=False)
    two.write(topic, 2, 12, "a batch of the old epoch", epoch=before)
    two.write(topic, 1, 12, "the new epoch does not begin at 0")
    two.write(topic, 0, 12, "the new epoch")
    two.finish("an abort", commits=False)
    two.end(5, "a commit of nothing")
    two.finish("an abort of nothing", commits=False)
    two.write(topic, 0, 12, "the epoch after it")
    k.ask(fetch(topic, 0, isolation=1), 12, "committed, aborted and open")
    k.ask(fetch(topic, 0, partition=1, isolation=1), 12, "committed")


@story("AddPartitionsToTxn of leaders")
def transactions_of_leaders(k: Narrator) -> None:
    topic = k.topic("txn-leaders", 3)
    for version in (4, 5):
        one = Producer(k, f"txn-leaders-{version}", version=5)

        def ask(note: str, *rows: AddPartitionsToTxnTransaction, version: int = version) -> None:
            k.ask(AddPartitionsToTxnRequest(rows), version, note)

        ask("verification without a transaction", one.row({topic.name: [0]}, verify_only=True))
        ask("a partition", one.row({topic.name: [0]}))
        ask("verification of two partitions", one.row({topic.name: [0, 1]}, verify_only=True))
        ask("another epoch", one.row({topic.name: [0]}, epoch=9))
        ask("an unknown partition", one.row({topic.name: [0, 9]}))
        ask("an internal topic", one.row({"__consumer_offsets": [0]}))
        topics = [AddPartitionsToTxnTopic(topic.name, [2])]
        other = AddPartitionsToTxnTransaction("txn-unknown", one.producer_id, 0, False, topics)
        ask("two transactional ids", one.row({topic.name: [1]}), other)


@story("A producer with an open transaction is replaced")
def transactions_fenced(k: Narrator) -> None:
    topic = k.topic("txn-fenced")
    old = Producer(k, "txn-fenced", version=5)
    old.write(topic, 0, 12, "an open transaction")
    k.ask(InitProducerIdRequest(old.name, TIMEOUT_MS), 5, "it is aborted first")
    old.has_ended()
    k.ask(InitProducerIdRequest(old.name, TIMEOUT_MS), 5, "a newer producer")
    old.write(topic, 1, 12, "a batch of the older one")
    for version in range(6):
        old.end(version, "an end of the older one")
    for version in (1, 2):
        old.add({topic.name: [0]}, version, "a partition of the older one")
    for version in (3, 4, 5):
        again = InitProducerIdRequest(old.name, TIMEOUT_MS, old.producer_id, old.producer_epoch)
        k.ask(again, version, "the older one continues")
    k.ask(fetch(topic, 0, isolation=1), 12, "the aborted transaction")


@story("Transactional ids are found, described and listed")
def transactions_administration(k: Narrator) -> None:
    topic = k.topic("txn-listed")
    idle, busy = Producer(k, "txn-listed-idle"), Producer(k, "txn-listed-busy")
    busy.add({topic.name: [0]}, 3, "an open transaction")
    for version in range(1, 7):
        one = FindCoordinatorRequest(idle.name, TRANSACTION)
        two = FindCoordinatorRequest("", TRANSACTION, [idle.name, busy.name])
        request = two if version >= 4 else one
        k.ask(request, version, "the coordinator")
    k.ask(DescribeTransactionsRequest([idle.name, busy.name, "txn-unknown"]), 0, "three ids")
    k.ask(DescribeTransactionsRequest([]), 0, "none")
    mine = Only("transaction_states", "transactional_id", "txn-listed")
    for version in range(3):
        for states in ([], ["Ongoing"], ["Ongoing", "Nowhere"], ["Nowhere"], ["ongoing"]):
            k.ask(ListTransactionsRequest(states), version, f"states {states}", only=mine)
        ids = [busy.producer_id]
        k.ask(ListTransactionsRequest([], ids), version, "a producer id", only=mine)
    for duration_ms in (-1, 0, 10_000_000):
        k.ask(ListTransactionsRequest([], [], duration_ms), 1, f"longer than {duration_ms} ms", only=mine)
    for pattern in ("txn-listed-b.*", "", "listed", "(", "txn-listed-idle|nothing"):
        k.ask(ListTransactionsRequest([], [], -1, pattern), 2, f"pattern {pattern}", only=mine)
