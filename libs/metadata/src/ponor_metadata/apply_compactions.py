"""Rules of apply for compaction tasks: given to one worker after the other, renewed, ended (docs/design/compaction.md#tasks).

A task holds its sources: no object is replaced twice. That the outputs hold what the sources held is the leader's to check before it writes the batch in
which sources are destroyed, outputs committed and the task ended.
"""

from __future__ import annotations

from typing import Final

from ponor.metadata.v1 import records_pb2 as records
from ponor_runtime.identity import NodeEpoch, NodeId, ObjectId, StreamId

from ponor_metadata import counters
from ponor_metadata.rows import (
    NO_NODE,
    NO_STREAM,
    CompactionKind,
    CompactionRow,
    NodeRole,
    ObjectState,
)
from ponor_metadata.tables import COMPACTIONS_OF_SOURCE
from ponor_metadata.view import View, is_current

FIRST_TOKEN: Final = 1


def compaction_leased(view: View, record: records.CompactionLeased) -> None:
    """A new task, or one that goes to another worker: then without the sources that are gone."""
    row = _leased_row(record)
    name = f"compaction {row.task_id}"
    worker = view.nodes.get(row.worker_id)
    assert worker is not None, f"{name}: node {row.worker_id} is unknown"
    assert worker.role is NodeRole.COMPACTOR, f"{name}: node {row.worker_id} is no compactor"
    assert is_current(view, row.worker_id, row.worker_epoch), (
        f"{name}: node {row.worker_id} epoch {row.worker_epoch} is stale"
    )
    assert row.source_ids, f"{name}: nothing to replace"
    assert len(set(row.source_ids)) == len(row.source_ids), f"{name}: a source is named twice"
    present = view.compactions.get(row.task_id)
    if present is None:
        counters.take(view, counters.COMPACTION, row.task_id)
        assert row.token == FIRST_TOKEN, f"{name}: begins with token {row.token}"
    else:
        _require_same_task(view, present, row)
    for object_id in row.source_ids:
        _require_source(view, row, object_id)
    view.compactions.put(row)


def compaction_renewed(view: View, record: records.CompactionRenewed) -> None:
    """The lease ends later."""
    row = _row(view, record.task_id)
    assert record.leased_until_ms > row.leased_until_ms, f"compaction {row.task_id}: the lease would shrink"
    view.compactions.put(row._replace(leased_until_ms=record.leased_until_ms))


def compaction_ended(view: View, record: records.CompactionEnded) -> None:
    """What is left of the sources is free for another task."""
    view.compactions.delete(_row(view, record.task_id).task_id)


def _leased_row(record: records.CompactionLeased) -> CompactionRow:
    return CompactionRow(
        task_id=record.task_id,
        kind=CompactionKind(record.kind),
        node_id=NodeId(record.node_id),
        stream_id=StreamId(record.stream_id),
        source_ids=tuple(map(ObjectId, record.source_ids)),
        worker_id=NodeId(record.worker_id),
        worker_epoch=NodeEpoch(record.worker_epoch),
        token=record.token,
        leased_until_ms=record.leased_until_ms,
    )


def _require_same_task(view: View, present: CompactionRow, row: CompactionRow) -> None:
    name = f"compaction {row.task_id}"
    assert row.token == present.token + 1, f"{name}: token {row.token} does not follow {present.token}"
    assert row[1:4] == present[1:4], f"{name}: is another task now"
    left = tuple(each for each in present.source_ids if _is_committed(view, each))
    assert row.source_ids == left, f"{name}: its sources are {left}, not {row.source_ids}"


def _require_source(view: View, row: CompactionRow, object_id: ObjectId) -> None:
    name = f"compaction {row.task_id}"
    assert _is_committed(view, object_id), f"{name}: object {object_id} is not COMMITTED"
    held = view.compactions.find(COMPACTIONS_OF_SOURCE, object_id)
    assert all(each.task_id == row.task_id for each in held), (
        f"{name}: object {object_id} is a source of another"
    )
    if row.kind is CompactionKind.STREAM_OBJECTS:
        single = view.stream_objects.get(object_id)
        assert single is not None, f"{name}: object {object_id} is no stream object"
        assert (single.stream_id, row.node_id) == (row.stream_id, NO_NODE), (
            f"{name}: object {object_id} is of another stream"
        )
    else:
        several = view.stream_set_objects.get(object_id)
        assert several is not None, f"{name}: object {object_id} is no stream set object"
        assert (several.node_id, row.stream_id) == (row.node_id, NO_STREAM), (
            f"{name}: object {object_id} is of another node"
        )


def _is_committed(view: View, object_id: ObjectId) -> bool:
    row = view.objects.get(object_id)
    return row is not None and row.state is ObjectState.COMMITTED


def _row(view: View, task_id: int) -> CompactionRow:
    row = view.compactions.get(task_id)
    assert row is not None, f"compaction {task_id} is over"
    return row
