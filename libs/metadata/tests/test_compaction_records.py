"""Compaction tasks hold their sources, one task per object; snapshot leases keep objects that are destroyed
under them.
"""

from __future__ import annotations

import pytest
from ponor.metadata.v1 import records_pb2 as pb
from ponor_metadata.nouns import counters
from ponor_metadata.nouns.cluster import CONTROLLER_BITS
from ponor_metadata.nouns.compactions import (
    COMPACTIONS,
    COMPACTIONS_OF_SOURCE,
    COMPACTIONS_OF_WORKER,
    CompactionKind,
    CompactionRow,
)
from ponor_metadata.nouns.counters import COUNTERS
from ponor_metadata.nouns.nodes import NO_NODE
from ponor_metadata.nouns.snapshot_leases import SNAPSHOTS, SnapshotRow
from ponor_metadata.nouns.streams import NO_STREAM, STREAMS
from ponor_runtime.identity import NodeEpoch

from libs.metadata.tests.metadata_kit import (
    COMPACTOR,
    GC_NODE,
    NODE_A,
    NODE_B,
    Log,
    batch_of,
    claimed,
    compaction_ended,
    compaction_leased,
    compaction_renewed,
    created,
    destroyed,
    obj,
    opened,
    prepared,
    record,
    registered,
    snapshot_leased,
    snapshot_released,
    snapshot_renewed,
    so,
    sso,
    stream,
    trimmed,
)

S1, S2 = stream(1), stream(2)
STREAM_OBJECTS = int(CompactionKind.STREAM_OBJECTS)
STREAMS_OF_B = [opened(S2, 1, NODE_B)]


def written() -> Log:
    """Set objects 1 and 2 of node A, set object 3 of node B, stream objects 4 and 5 of stream 1; 6 to 9 are
    prepared for the worker.
    """
    log = Log()
    log.commit(registered(COMPACTOR, role=2), registered(GC_NODE, role=3))
    log.commit(created(S1), created(S2), opened(S1, 1), opened(S2, 1, NODE_B))
    log.commit(prepared(obj(1), 2), prepared(obj(3), 1, NODE_B), prepared(obj(4), 2))
    log.commit(prepared(obj(6), 4, COMPACTOR))
    log.commit(sso(obj(1), (S1, 0, 5)), sso(obj(3), (S2, 0, 3), node_id=NODE_B))
    log.commit(sso(obj(2), (S1, 5, 9)), so(obj(4), S1, 9, 12), so(obj(5), S1, 12, 14))
    return log


def refused(log: Log, *records: pb.Record, match: str) -> None:
    batch = batch_of(records, log.image.index + 1, log.image.cluster_time_ms)
    with pytest.raises(AssertionError, match=match):
        log.image.replay(batch.SerializeToString())


def test_a_task_is_leased_to_one_worker_after_another_and_ends_with_its_commit() -> None:
    log = written()
    log.commit(compaction_leased(1, obj(1), obj(2), until_ms=50))
    row = CompactionRow(
        1,
        CompactionKind.SET_OBJECTS,
        NODE_A,
        NO_STREAM,
        (obj(1), obj(2)),
        COMPACTOR,
        NodeEpoch(1),
        1,
        50,
    )
    assert list(log.image[COMPACTIONS].find(COMPACTIONS_OF_SOURCE, obj(2))) == [row]
    log.commit(compaction_renewed(1, 80))
    log.commit(registered(COMPACTOR, 2, role=2))
    again = compaction_leased(1, obj(1), obj(2), token=2, worker_epoch=2, until_ms=90)
    log.commit(again)
    (held,) = log.image[COMPACTIONS].find(COMPACTIONS_OF_WORKER, COMPACTOR)
    assert (held.token, held.worker_epoch, held.leased_until_ms) == (2, 2, 90)
    log.commit(prepared(obj(10), 1, COMPACTOR, 2))
    log.commit(destroyed(obj(1), obj(2)), sso(obj(10), (S1, 0, 9)), compaction_ended(1))
    assert not log.image[COMPACTIONS].find(COMPACTIONS_OF_SOURCE, obj(1))
    stream_row = log.image[STREAMS].get(S1)
    assert stream_row is not None
    assert stream_row.end_offset == 14, "replacing old data moves no end"


def test_a_task_that_is_leased_again_has_no_trimmed_sources() -> None:
    log = written()
    log.commit(compaction_leased(1, obj(1), obj(2)))
    log.commit(trimmed(S1, 6), destroyed(obj(1)))
    refused(log, compaction_leased(1, obj(1), obj(2), token=2), match="its sources are")
    log.commit(compaction_leased(1, obj(2), token=2))
    assert not log.image[COMPACTIONS].find(COMPACTIONS_OF_SOURCE, obj(1))


def test_stream_objects_are_replaced_by_one() -> None:
    log = written()
    log.commit(
        compaction_leased(1, obj(4), obj(5), kind=STREAM_OBJECTS, node_id=NO_NODE, stream_id=S1),
        compaction_leased(2, obj(1), obj(2)),
    )
    log.commit(destroyed(obj(4), obj(5)), so(obj(6), S1, 9, 14), compaction_ended(1))
    assert [row.task_id for row in log.image[COMPACTIONS]] == [2]


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ([compaction_leased(1, obj(1)), compaction_leased(2, obj(1))], "a source of another"),
        ([compaction_leased(1, obj(1)), compaction_leased(1, obj(1))], "token 1 does not follow 1"),
        ([compaction_leased(1, obj(1)), compaction_leased(1, obj(1), token=3)], "token 3 does not follow 1"),
        ([compaction_leased(1, obj(1)), compaction_leased(1, obj(1), obj(2), token=2)], "its sources are"),
        (
            [compaction_leased(1, obj(1)), compaction_leased(1, obj(1), token=2, kind=2)],
            "differs from the present task",
        ),
        ([compaction_leased(1, obj(1), token=2)], "its first token is 2"),
        ([compaction_leased(1)], "nothing to replace"),
        ([compaction_leased(1, obj(1), obj(1))], "named twice"),
        ([compaction_leased(1, obj(3))], "of another node"),
        ([compaction_leased(1, obj(4))], "not a stream set object"),
        ([compaction_leased(1, obj(6))], "not COMMITTED"),
        ([compaction_leased(1, obj(99))], "not COMMITTED"),
        ([trimmed(S1, 5), destroyed(obj(1)), compaction_leased(1, obj(1))], "not COMMITTED"),
        (
            [compaction_leased(1, obj(4), kind=STREAM_OBJECTS, node_id=NO_NODE, stream_id=S2)],
            "of another stream",
        ),
        (
            [compaction_leased(1, obj(1), kind=STREAM_OBJECTS, node_id=NO_NODE, stream_id=S1)],
            "not a stream object",
        ),
        ([compaction_leased(1, obj(1), worker_id=NODE_A)], "not a compactor"),
        ([compaction_leased(1, obj(1), worker_epoch=2)], "is stale"),
        ([compaction_leased(1, obj(1)), compaction_renewed(1, 1_000)], "does not extend the lease"),
        ([compaction_renewed(1, 1_000)], "has ended or does not exist"),
        ([compaction_ended(1)], "has ended or does not exist"),
        (
            [compaction_leased(1, obj(1)), compaction_ended(1), compaction_leased(1, obj(1))],
            "was assigned before",
        ),
    ],
)
def test_a_record_that_would_replace_an_object_twice_breaks_an_invariant(
    records: list[pb.Record], words: str
) -> None:
    refused(written(), *records, match=words)


def test_a_set_object_has_data_of_its_own_node_only() -> None:
    log = written()
    log.commit(compaction_leased(1, obj(1), obj(2)))
    batch = (destroyed(obj(1), obj(2), obj(3)), sso(obj(6), (S1, 0, 9), (S2, 0, 3)), compaction_ended(1))
    refused(log, *batch, match="wrote offset")


# Snapshots


def test_an_object_destroyed_under_a_lease_is_claimed_after_the_lease_ended() -> None:
    log = written()
    log.commit(trimmed(S1, 5), destroyed(obj(1), at_ms=100), at_ms=100)
    log.commit(snapshot_leased(1, log.image.index, 101, 200), at_ms=101)
    log.commit(snapshot_leased(2, log.image.index, 105, 200), at_ms=105)
    assert log.image[SNAPSHOTS].get(1) == SnapshotRow(1, "a reader", log.image.index - 2, 101, 200)
    log.commit(trimmed(S1, 9), destroyed(obj(2), at_ms=105), at_ms=105)
    log.commit(claimed(obj(1)))
    refused(log, claimed(obj(2)), match="kept for a snapshot lease")
    log.commit(snapshot_renewed(1, 300), snapshot_released(2))
    refused(log, claimed(obj(2)), match="kept for a snapshot lease")
    log.commit(snapshot_released(1))
    log.commit(claimed(obj(2)))


def test_an_object_that_was_never_committed_is_not_pinned_by_a_lease() -> None:
    log = written()
    log.commit(snapshot_leased(1, log.image.index, log.image.cluster_time_ms))
    log.commit(claimed(obj(6), until_ms=9_000), at_ms=2_000)


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ([snapshot_leased(1, 1 << 20, 0)], "not below the present index"),
        ([snapshot_leased(1, 1, 1 << 40, 1 << 41)], "after the cluster time"),
        ([snapshot_leased(1, 1, 0), snapshot_leased(1, 1, 0)], "was assigned before"),
        ([snapshot_leased(1, 1, 0, 10), snapshot_renewed(1, 10)], "does not extend the lease"),
        ([snapshot_renewed(1, 10)], "has ended or does not exist"),
        ([snapshot_released(1)], "has ended or does not exist"),
    ],
)
def test_an_invalid_lease_breaks_an_invariant(records: list[pb.Record], words: str) -> None:
    refused(written(), *records, match=words)


def test_a_raised_incarnation_moves_the_counters_of_tasks_and_leases() -> None:
    log = written()
    log.commit(record(incarnation_raised=pb.IncarnationRaised(incarnation=1)))
    assert counters.COMPACTION not in log.image[COUNTERS], "a log without one has no row of it"
    log.commit(compaction_leased(1, obj(1)))
    log.commit(record(incarnation_raised=pb.IncarnationRaised(incarnation=2)))
    assert counters.next_value(log.image, counters.COMPACTION) == (2 << CONTROLLER_BITS) << counters.RUN_BITS
