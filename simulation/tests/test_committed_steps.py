"""Trace validation on small logs: a correct log is accepted, and each forbidden step is named."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from ponor.metadata.v1 import records_pb2 as records
from ponor_cluster_simulation.protocols.committed_steps import CommittedSteps, find_forbidden_steps
from ponor_cluster_simulation.protocols.objects import Phase
from ponor_metadata.tables.ranges import StreamPiece, encode_ranges
from ponor_runtime.identity import StreamId

BROKER, COLLECTOR = 1, 9
DELAY_MS = 100
R = records.Record


class Log:
    """Batches of a log; each call adds one operation of a node as one batch."""

    def __init__(self) -> None:
        self.batches: list[records.RecordBatch] = []
        self.now = 0
        self._requests = 0

    def add(self, *steps: records.Record, by: tuple[int, int] | None = None, after_ms: int = 1) -> Log:
        self.now += after_ms
        batch = records.RecordBatch(
            index=len(self.batches) + 1, term=1, cluster_time_ms=self.now, records=steps
        )
        if by is not None:
            self._requests += 1
            done = records.OperationCompleted(node_id=by[0], node_epoch=by[1], request_id=self._requests)
            batch.records.append(R(operation_completed=done))
        self.batches.append(batch)
        return self

    @property
    def forbidden(self) -> list[str]:
        return [str(each) for each in find_forbidden_steps(self.batches, destroy_delay_ms=DELAY_MS)]


def registered(node: int = BROKER, epoch: int = 1) -> records.Record:
    return R(node_registered=records.NodeRegistered(node_id=node, node_epoch=epoch))


def opened(epoch: int, node: int = BROKER, node_epoch: int = 1) -> records.Record:
    return R(
        stream_opened=records.StreamOpened(
            stream_id=5, stream_epoch=epoch, node_id=node, node_epoch=node_epoch
        )
    )


def closed(epoch: int) -> records.Record:
    return R(stream_closed=records.StreamClosed(stream_id=5, stream_epoch=epoch))


def prepared(object_id: int, node_epoch: int = 1, expires_at_ms: int = 1_000) -> records.Record:
    return R(
        objects_prepared=records.ObjectsPrepared(
            first_object_id=object_id,
            count=1,
            node_id=BROKER,
            node_epoch=node_epoch,
            expires_at_ms=expires_at_ms,
        )
    )


def committed(object_id: int, start: int, end: int, at_ms: int = 10) -> records.Record:
    return R(
        stream_object_committed=records.StreamObjectCommitted(
            object_id=object_id,
            size_bytes=1,
            stream_id=5,
            start_offset=start,
            end_offset=end,
            committed_at_ms=at_ms,
        )
    )


def set_committed(object_id: int, start: int, end: int, node: int = BROKER) -> records.Record:
    ranges = encode_ranges([StreamPiece(StreamId(5), start, end)])
    return R(
        stream_set_object_committed=records.StreamSetObjectCommitted(
            object_id=object_id, size_bytes=1, node_id=node, packed_ranges=ranges, committed_at_ms=10
        )
    )


def destroyed(object_id: int, at_ms: int) -> records.Record:
    return R(objects_destroyed=records.ObjectsDestroyed(object_ids=[object_id], destroyed_at_ms=at_ms))


def claimed(object_id: int, until_ms: int) -> records.Record:
    return R(
        objects_claimed=records.ObjectsClaimed(
            object_ids=[object_id], node_id=COLLECTOR, node_epoch=1, claimed_until_ms=until_ms
        )
    )


def removed(object_id: int) -> records.Record:
    return R(objects_removed=records.ObjectsRemoved(object_ids=[object_id]))


US, GC = (BROKER, 1), (COLLECTOR, 1)


def life() -> Log:
    """A broker with an open stream that holds [0, 10), and a collector."""
    log = Log().add(registered()).add(registered(COLLECTOR))
    log.add(R(stream_created=records.StreamCreated(stream_id=5)), by=US).add(opened(0), by=US)
    return log.add(prepared(1), by=US).add(committed(1, 0, 10), by=US)


def test_a_true_log_is_clean() -> None:
    log = life().add(prepared(2), by=US).add(set_committed(2, 10, 20), by=US)
    log.add(
        destroyed(1, log.now), R(stream_trimmed=records.StreamTrimmed(stream_id=5, start_offset=10)), by=US
    )
    log.add(registered(epoch=2)).add(closed(0), by=(BROKER, 2)).add(opened(1, node_epoch=2), by=(BROKER, 2))
    log.add(claimed(1, log.now + 200), by=GC, after_ms=DELAY_MS).add(removed(1), by=GC)
    steps = CommittedSteps(DELAY_MS)
    for batch in log.batches:
        assert steps.take(batch) == []
    assert steps.living_objects == {Phase.GONE: 1, Phase.COMMITTED: 1}
    assert steps.taken["stream_opened"] == 2
    assert log.forbidden == []


@pytest.mark.parametrize(
    ("add", "told"),
    [
        (lambda log: log.add(committed(1, 10, 20), by=US), "an object is committed in phase COMMITTED"),
        (lambda log: log.add(prepared(2), by=US).add(committed(2, 11, 20), by=US), "[11, 20) does not begin at the end of the stream, 10"),
        (lambda log: log.add(prepared(2), by=US).add(set_committed(2, 5, 20), by=US), "[5, 20) does not begin at the end of the stream, 10"),
        (lambda log: log.add(prepared(2, expires_at_ms=9), by=US).add(committed(2, 10, 20), by=US), "committed at 10, but its lease ended at 9"),
        (lambda log: log.add(prepared(2), by=US).add(closed(0), by=US).add(committed(2, 10, 11), by=US), "commits [10, 11) of a closed stream"),
        (lambda log: log.add(prepared(1), by=US), "an object id is assigned again, but its object is COMMITTED"),
        (lambda log: log.add(opened(1), by=US), "node 1 opens a stream at epoch 1, but it is open at epoch 0 of node 1"),
        (lambda log: log.add(closed(0), by=US).add(opened(0), by=US), "a stream is opened at epoch 0 after epoch 0"),
        (lambda log: log.add(closed(1), by=US), "a close names epoch 1, but the stream is at epoch 0"),
        (lambda log: log.add(closed(0), by=GC), "node 9 closes a stream that is open at node 1"),
        (lambda log: log.add(registered(epoch=2)).add(closed(0), by=US), "node 1 acts at node epoch 1, but its newest epoch is 2"),
        (lambda log: log.add(registered(epoch=2)).add(prepared(2), by=(BROKER, 2)), "node 1 acts at node epoch 1"),
        (lambda log: log.add(registered(epoch=1)), "node 1 registers at epoch 1 after epoch 1"),
        (lambda log: log.add(destroyed(1, log.now), by=US).add(claimed(1, log.now + 50), by=GC, after_ms=50), "the delay is 99"),
        (lambda log: log.add(prepared(2), by=US).add(claimed(2, 5_000), by=GC), "its lease ends at 1000"),
        (lambda log: log.add(claimed(1, 5_000), by=GC), "an object is claimed in phase COMMITTED"),
        (lambda log: log.add(destroyed(1, log.now), by=US).add(removed(1), by=GC), "(9, 1) removes an object, but the claim belongs to (-1, -1)"),
        (lambda log: log.add(removed(1), by=GC), "an object is removed in phase COMMITTED"),
        (lambda log: log.add(R(stream_trimmed=records.StreamTrimmed(stream_id=5, start_offset=11)), by=US), "trimmed to 11, which is outside of (0, 10]"),
        (lambda log: log.add(R(stream_deleted=records.StreamDeleted(stream_id=5)), by=US).add(closed(0), by=US), "stream 5 is deleted"),
        (lambda log: log.add(R(stream_created=records.StreamCreated(stream_id=5)), by=US), ("is created"
                                                                                           " twice")),
    ],
)  # fmt: skip
def test_a_forbidden_step_is_reported(add: Callable[[Log], Log], told: str) -> None:
    assert life().forbidden == []
    (found,) = add(life()).forbidden
    assert told in found


def test_a_request_is_done_once() -> None:
    log = life()
    log.batches.append(records.RecordBatch(index=len(log.batches) + 1, term=1, cluster_time_ms=log.now))
    log.batches[-1].records.append(log.batches[-2].records[-1])
    (found,) = log.forbidden
    assert "is executed twice" in found


def test_batches_follow_each_other() -> None:
    log = life()
    del log.batches[1]
    assert "batch 3, batch: follows batch 1" in log.forbidden
    log = life()
    log.batches[3].cluster_time_ms = 0
    assert any("has cluster time" in each for each in log.forbidden)


def test_a_process_commits_only_what_it_prepared_itself() -> None:
    log = life().add(prepared(2), by=US).add(registered(epoch=2)).add(committed(2, 10, 20), by=(BROKER, 2))
    (found,) = log.forbidden
    assert "node 1 at epoch 2 commits an object that node 1 prepared at epoch 1" in found
