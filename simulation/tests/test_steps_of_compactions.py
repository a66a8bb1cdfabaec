"""Trace validation of compactions and snapshot leases on small logs, and the ledger's comparison of
stored bytes.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from ponor.metadata.v1 import records_pb2 as records
from ponor_cluster_simulation.invariants.ledger import Ledger
from ponor_cluster_simulation.invariants.registry import Checks, InvariantBrokenError
from ponor_cluster_simulation.protocols.committed_steps import find_forbidden_steps
from ponor_runtime.identity import ObjectId, StreamEpoch, StreamId
from ponor_simulation.object_store import SimBucket
from s3stream.objects.keys import object_key
from s3stream.objects.writer import ObjectWriter
from s3stream.records import StreamRecord

R = records.Record
US, ONE, TWO, GC = (1, 1), (21, 1), (22, 1), (9, 1)
NAMESPACE = "00000000-0000-0000-0000-000000000001"
STREAM = 5
Piece = tuple[int, int, int]
"""Object, first offset, end."""


def encoded(object_id: int, start: int, end: int, text: str, block_bytes_max: int) -> bytes:
    """An object with offsets of the stream, one record each."""
    writer = ObjectWriter(ObjectId(object_id), block_bytes_max=block_bytes_max)
    for offset in range(start, end):
        payload = f"{offset}{text}".encode()
        writer.add(StreamRecord(StreamId(STREAM), StreamEpoch(0), offset, 1, 0, payload))
    return b"".join(writer.finish().buffers)


class Log:
    """Batches of a log, and the bucket. Object 1 holds [0, 2) of the stream, object 2 [2, 4); there
    are two compactors.
    """

    def __init__(self) -> None:
        self.batches: list[records.RecordBatch] = []
        self.bucket = SimBucket()
        self.block_bytes_max = 1
        """For objects committed from now on; one block per record."""
        for node in (US, ONE, TWO, GC):
            self.add(R(node_registered=records.NodeRegistered(node_id=node[0], node_epoch=node[1])))
        self.add(R(stream_created=records.StreamCreated(stream_id=STREAM)), by=US)
        opened = records.StreamOpened(stream_id=STREAM, stream_epoch=0, node_id=US[0], node_epoch=US[1])
        self.add(R(stream_opened=opened), by=US)
        for piece in ((1, 0, 2), (2, 2, 4)):
            self.prepare(piece[0], US).add(self.committed(piece), by=US)

    def add(self, *steps: records.Record, by: tuple[int, int] | None = None, at_ms: int = 0) -> Log:
        index = len(self.batches) + 1
        batch = records.RecordBatch(index=index, term=1, cluster_time_ms=at_ms or index, records=steps)
        if by is not None:
            done = records.OperationCompleted(node_id=by[0], node_epoch=by[1], request_id=index)
            batch.records.append(R(operation_completed=done))
        self.batches.append(batch)
        return self

    def prepare(self, object_id: int, by: tuple[int, int]) -> Log:
        prepared = records.ObjectsPrepared(
            first_object_id=object_id, count=1, node_id=by[0], node_epoch=by[1], namespace=NAMESPACE
        )
        prepared.expires_at_ms = 1_000
        return self.add(R(objects_prepared=prepared), by=by)

    def committed(self, piece: Piece, text: str = "") -> records.Record:
        """The record of a commit; the object is put into the bucket."""
        object_id, start, end = piece
        data = encoded(object_id, start, end, text, self.block_bytes_max)
        self.bucket.objects[object_key(NAMESPACE, ObjectId(object_id))] = data
        made = records.StreamObjectCommitted(
            object_id=object_id, size_bytes=len(data), stream_id=STREAM, start_offset=start, end_offset=end
        )
        return R(stream_object_committed=made)

    def lease(self, by: tuple[int, int], *sources: int, task: int = 1, token: int = 1) -> Log:
        leased = records.CompactionLeased(
            task_id=task, kind=records.COMPACTION_KIND_STREAM_OBJECTS, node_id=-1, stream_id=STREAM
        )
        leased.source_ids.extend(sources)
        leased.worker_id, leased.worker_epoch = by
        leased.token, leased.leased_until_ms = token, len(self.batches) + 3
        return self.add(R(compaction_leased=leased), by=by)

    def swap(
        self, by: tuple[int, int], sources: list[int], *outputs: Piece, task: int = 1, text: str = ""
    ) -> Log:
        for output in outputs:
            self.prepare(output[0], by)
        destroyed = records.ObjectsDestroyed(object_ids=sources, destroyed_at_ms=len(self.batches) + 1)
        return self.add(
            R(objects_destroyed=destroyed),
            *(self.committed(output, text) for output in outputs),
            R(compaction_ended=records.CompactionEnded(task_id=task)),
            by=by,
        )

    def trim(self, start: int, *dead: int) -> Log:
        steps = [R(stream_trimmed=records.StreamTrimmed(stream_id=STREAM, start_offset=start))]
        if dead:
            steps.append(R(objects_destroyed=records.ObjectsDestroyed(object_ids=dead, destroyed_at_ms=1)))
        return self.add(*steps, by=US)

    def read(self) -> Log:
        """Lease a snapshot of the newest index."""
        now_ms = len(self.batches)
        leased = records.SnapshotLeased(lease_id=1, index=now_ms, begun_at_ms=now_ms, leased_until_ms=1_000)
        return self.add(R(snapshot_leased=leased))

    def close(self) -> Log:
        return self.add(R(snapshot_released=records.SnapshotReleased(lease_id=1)))

    def claim(self, *object_ids: int) -> Log:
        claimed = records.ObjectsClaimed(object_ids=object_ids, node_id=GC[0], node_epoch=GC[1])
        claimed.claimed_until_ms = 1_000
        return self.add(R(objects_claimed=claimed), by=GC)

    @property
    def forbidden(self) -> list[str]:
        return [str(each) for each in find_forbidden_steps(self.batches)]

    def ledger(self, *, is_closed: bool = True) -> Ledger:
        """A ledger that has checked all batches. `is_closed`: readers requested the ends of their leases."""
        ledger = Ledger(Checks(), self.bucket, 0, pinned_bytes_max=10_000)
        ledger.snapshots.is_closed = lambda _: is_closed
        for batch in self.batches:
            ledger.batch(batch)
        return ledger


def joined() -> Log:
    return Log().lease(ONE, 1, 2).swap(ONE, [1, 2], (3, 0, 4))


def test_a_stream_continues_after_its_objects_are_replaced() -> None:
    log = joined().prepare(4, US)
    log.add(log.committed((4, 4, 5)), by=US)
    assert log.forbidden == []
    ledger = log.ledger()
    assert [tuple(piece) for piece in ledger.streams.streams[STREAM].pieces] == [(3, 0, 4), (4, 4, 5)]
    assert sum(ledger.compactions.swaps.values()) == 1


def test_a_concurrent_trim_is_allowed() -> None:
    """The first source is trimmed completely, and the output still contains it."""
    log = Log().lease(ONE, 1, 2).trim(2, 1).swap(ONE, [2], (3, 0, 4))
    assert log.forbidden == []
    assert log.ledger().compactions.over_some == 1


def test_a_task_that_is_given_back_frees_its_sources() -> None:
    log = Log().lease(ONE, 1, 2).add(R(compaction_ended=records.CompactionEnded(task_id=1)), by=ONE)
    log.lease(TWO, 1, 2, task=2).swap(TWO, [1, 2], (3, 0, 4), task=2)
    assert log.forbidden == []
    log.ledger()


@pytest.mark.parametrize(
    ("log", "told"),
    [
        (lambda: Log().lease(ONE, 1, 2).swap(ONE, [1, 2], (3, 0, 3)), "lack the ranges [(3, 4)] of"),
        (lambda: Log().lease(ONE, 1).swap(ONE, [1], (3, 0, 4)), "[(2, 4)], which no source contains"),
        (lambda: Log().lease(ONE, 1, 2).swap(ONE, [1, 2], (3, 0, 3), (4, 2, 4)), "(0, 3) and (2, 4) of"),
        (lambda: Log().lease(ONE, 1, 2).swap(ONE, [1], (3, 0, 4)), "replaced the objects [2], but"),
        (lambda: Log().lease(ONE, 1, 2).swap(TWO, [1, 2], (3, 0, 4)), "commits with token None the task"),
        (lambda: joined().swap(ONE, [3], (4, 0, 4)), "compaction 1 ends twice"),
        (lambda: Log().lease(ONE, 1, 2).lease(TWO, 1, 2, token=2), "has it until"),
        (lambda: Log().lease(ONE, 1, 2).lease(TWO, 2, task=2), "objects [2] are sources of another task"),
        (lambda: joined().lease(TWO, 1, task=2), "a compaction, but its phase is DESTROYED"),
        (lambda: Log().read().lease(ONE, 1, 2).swap(ONE, [1, 2], (3, 0, 4)).claim(1), "snapshot lease began"),
        (lambda: Log().close(), "lease 1 ends twice"),
    ],
)  # fmt: skip
def test_a_forbidden_step_is_reported(log: Callable[[], Log], told: str) -> None:
    (found,) = log().forbidden[:1]
    assert told in found


def test_an_ended_lease_keeps_nothing() -> None:
    log = Log().read().lease(ONE, 1, 2).swap(ONE, [1, 2], (3, 0, 4)).close().claim(1)
    assert log.forbidden == []
    log.ledger()


def test_only_the_ledger_detects_changed_bytes() -> None:
    log = Log().lease(ONE, 1, 2).swap(ONE, [1, 2], (3, 0, 4), text="!")
    assert log.forbidden == []
    with pytest.raises(InvariantBrokenError, match=r"invariant 26 .* is not that of the sources"):
        log.ledger()


def test_objects_of_a_leased_image_are_not_claimed() -> None:
    log = Log().read().lease(ONE, 1, 2).swap(ONE, [1, 2], (3, 0, 4)).claim(1)
    with pytest.raises(
        InvariantBrokenError, match=r"invariant 36 .* object 1 was claimed, and lease 1 reads"
    ):
        log.ledger()


def test_a_lease_ends_early_only_if_its_reader_requests_it() -> None:
    log = Log().read().close()
    with pytest.raises(InvariantBrokenError, match=r"invariant 36 .* until 1000 ended at"):
        log.ledger(is_closed=False)
    log.ledger()


def test_adjacent_blocks_may_be_joined() -> None:
    log = Log().lease(ONE, 1, 2)
    log.block_bytes_max = 10_000
    log.swap(ONE, [1, 2], (3, 0, 4))
    assert sum(log.ledger().compactions.swaps.values()) == 1


def test_the_trimmed_part_of_a_joined_block_may_come_from_a_removed_source() -> None:
    log = Log().lease(ONE, 1, 2).trim(2, 1)
    log.block_bytes_max = 10_000
    log.swap(ONE, [2], (3, 0, 4))
    assert log.ledger().compactions.over_some == 1


def test_a_block_that_contradicts_its_index_is_detected_at_the_swap() -> None:
    log = Log().lease(ONE, 1, 2).swap(ONE, [1, 2], (3, 0, 4))
    key = object_key(NAMESPACE, ObjectId(3))
    data = log.bucket.objects[key]
    log.bucket.objects[key] = data.replace(b"2", b"!", 1)
    with pytest.raises(InvariantBrokenError, match=r"invariant 26 .* cannot be read"):
        log.ledger()
