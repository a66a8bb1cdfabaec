"""Trace validation of moves, failovers and write-ahead logs, on small logs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from ponor.metadata.v1 import records_pb2 as records
from ponor_cluster_simulation.protocols.committed_steps import find_forbidden_steps

TOPIC = bytes(16)
OLD, NEW = (1, 1), (2, 1)
R = records.Record


class Log:
    """Batches of a log; each call adds one batch, as an operation if a caller is given."""

    def __init__(self) -> None:
        self.batches: list[records.RecordBatch] = []

    def add(self, *steps: records.Record, by: tuple[int, int] | None = None) -> Log:
        index = len(self.batches) + 1
        batch = records.RecordBatch(index=index, term=1, cluster_time_ms=index, records=steps)
        if by is not None:
            done = records.OperationCompleted(node_id=by[0], node_epoch=by[1], request_id=index)
            batch.records.append(R(operation_completed=done))
        self.batches.append(batch)
        return self

    @property
    def forbidden(self) -> list[str]:
        return [str(each) for each in find_forbidden_steps(self.batches)]


def led_by(node: int, epoch: int) -> records.Record:
    changed = records.PartitionChanged(topic_id=TOPIC, partition=0, leader_id=node, leader_epoch=epoch)
    return R(partition_changed=changed)


def begun(source: int, target: int) -> records.Record:
    moved = records.PartitionMoveBegun(topic_id=TOPIC, partition=0, source_id=source, target_id=target)
    return R(partition_move_begun=moved)


def cancelled() -> records.Record:
    return R(partition_move_cancelled=records.PartitionMoveCancelled(topic_id=TOPIC, partition=0))


def opened(epoch: int, by: tuple[int, int]) -> records.Record:
    stream = records.StreamOpened(stream_id=5, stream_epoch=epoch, node_id=by[0], node_epoch=by[1])
    return R(stream_opened=stream)


def closed(epoch: int) -> records.Record:
    return R(stream_closed=records.StreamClosed(stream_id=5, stream_epoch=epoch))


def fenced(who: tuple[int, int]) -> records.Record:
    return R(node_fenced=records.NodeFenced(node_id=who[0], node_epoch=who[1]))


def wal_opened(who: tuple[int, int]) -> records.Record:
    return R(wal_opened=records.WalOpened(node_id=who[0], wal_epoch=who[1]))


def assigned(owner: tuple[int, int], recoverer: tuple[int, int], token: int = 1) -> records.Record:
    told = records.WalRecoveryAssigned(
        node_id=owner[0],
        wal_epoch=owner[1],
        recoverer_id=recoverer[0],
        recoverer_epoch=recoverer[1],
        token=token,
    )
    return R(wal_recovery_assigned=told)


def trimmed(owner: tuple[int, int], sequence: int) -> records.Record:
    return R(wal_trimmed=records.WalTrimmed(node_id=owner[0], wal_epoch=owner[1], trim_sequence=sequence))


def wal_closed(owner: tuple[int, int], end: int) -> records.Record:
    return R(wal_closed=records.WalClosed(node_id=owner[0], wal_epoch=owner[1], end_sequence=end))


def served() -> Log:
    """Two brokers with logs in the store; the old one serves a partition with one stream at epoch 0."""
    log = Log()
    for node, epoch in (OLD, NEW):
        log.add(R(node_registered=records.NodeRegistered(node_id=node, node_epoch=epoch)))
    log.add(wal_opened(OLD), by=OLD).add(wal_opened(NEW), by=NEW).add(led_by(1, 0))
    tags = {"topic": TOPIC.hex(), "partition": "0"}
    log.add(R(stream_created=records.StreamCreated(stream_id=5, tags=tags)), by=OLD)
    return log.add(opened(0, OLD), by=OLD)


def test_a_move_and_a_failover_are_allowed() -> None:
    log = served().add(begun(1, 2)).add(cancelled()).add(begun(1, 2), by=NEW)
    log.add(trimmed(OLD, 3), by=OLD).add(closed(0), by=OLD).add(led_by(2, 1), by=OLD).add(
        opened(1, NEW), by=NEW
    )
    log.add(fenced(NEW), assigned(NEW, OLD), led_by(1, 2)).add(trimmed(NEW, 1), by=OLD)
    log.add(closed(1), by=OLD).add(wal_closed(NEW, 2), by=OLD).add(opened(2, OLD), by=OLD)
    assert log.forbidden == []


@pytest.mark.parametrize(
    ("add", "told"),
    [
        (lambda log: log.add(led_by(2, 1)), "node 2 is elected at epoch 1 while node 1 holds streams open"),
        (lambda log: log.add(closed(0), by=OLD).add(led_by(2, 0)), "epoch 0 of node 2 follows epoch 0 of"),
        (lambda log: log.add(begun(1, 2)).add(begun(1, 2)), "the partition already moves to 2"),
        (lambda log: log.add(begun(2, 1)), "a move from 2 begins, but 1 leads the partition"),
        (lambda log: log.add(begun(1, 1)), "1 already leads the partition"),
        (lambda log: log.add(cancelled()), "a move is cancelled, but the partition does not move"),
        (lambda log: log.add(wal_opened(OLD), by=OLD), "a log is opened twice"),
        (lambda log: log.add(assigned(OLD, NEW)), "its owner may still commit"),
        (lambda log: log.add(fenced(OLD), assigned(OLD, NEW, token=2)), "recovery token 2 follows token 0"),
        (lambda log: log.add(trimmed(OLD, 1), by=NEW), "changes the log of (1, 1), but is neither its owner"),
        (lambda log: log.add(trimmed(OLD, 2), by=OLD).add(trimmed(OLD, 2), by=OLD), "already trimmed to 2"),
        (lambda log: log.add(wal_closed(OLD, 1), by=OLD), "a log is closed while its stream 5 is open"),
        (lambda log: log.add(closed(0), by=NEW), "node 2 closes a stream that is open at node 1"),
        (lambda log: log.add(fenced(OLD)).add(closed(0), by=NEW), ("node 2 closes a stream that is open at"
                                                                  " node 1")),
        (lambda log: log.add(trimmed(OLD, 2), closed(0), wal_closed(OLD, 1), by=OLD), "a log is closed at 1, but it is trimmed to 2"),  # noqa: E501
    ],
)  # fmt: skip
def test_a_forbidden_step_is_reported(add: Callable[[Log], Log], told: str) -> None:
    assert served().forbidden == []
    found = add(served()).forbidden
    assert told in found[0]
