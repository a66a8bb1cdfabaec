"""Compaction tasks: lease to a worker, renew, lease to another worker, end (docs/design/compaction.md#tasks).

An object is a source of at most one task, so no object is replaced twice. The leader checks that the outputs
contain what the sources contained before it proposes the batch that destroys the sources, commits the outputs
and ends the task.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

from ponor.metadata.v1 import records_pb2 as records
from ponor_runtime.identity import NodeEpoch, NodeId, ObjectId, StreamId

from ponor_metadata.nouns import counters
from ponor_metadata.nouns.nodes import NO_NODE, NODES, NodeRole, is_current
from ponor_metadata.nouns.objects import OBJECTS, STREAM_SET_OBJECTS, ObjectState
from ponor_metadata.nouns.streams import NO_STREAM, STREAM_OBJECTS
from ponor_metadata.tables.columns import INTEGERS, Enums, Lists
from ponor_metadata.tables.schema import FIRST_FIELD, Index, Noun, Schema, Section, View

FIRST_TOKEN: Final = 1


class CompactionKind(IntEnum):
    """What a compaction does; the same numbers as in ponor.metadata.v1.CompactionKind."""

    SET_OBJECTS = 1
    FORCE_SPLIT = 2
    STREAM_OBJECTS = 3


class CompactionRow(NamedTuple):
    """A task: a worker replaces stream set objects of `node_id`, or stream objects of `stream_id`.

    The unused one of the two fields is `NO_NODE` or `NO_STREAM`. `token` is the number of leases so far.
    After its lease expires, a worker keeps the task until another worker leases it. A source may be destroyed
    already, if all of its data was trimmed or deleted in the meantime.
    """

    task_id: int
    kind: CompactionKind
    node_id: NodeId
    stream_id: StreamId
    source_ids: tuple[ObjectId, ...]
    worker_id: NodeId
    worker_epoch: NodeEpoch
    token: int
    leased_until_ms: int


COMPACTIONS_OF_SOURCE: Final[Index[ObjectId, CompactionRow]] = Index(
    "of_source", lambda row: row.source_ids, lambda row: row.task_id
)
"""The task of which an object is a source: at most one."""
COMPACTIONS_OF_WORKER: Final[Index[NodeId, CompactionRow]] = Index(
    "of_worker", lambda row: (row.worker_id,), lambda row: row.task_id
)
"""Tasks by the worker that leased the task last, in the order of task ids."""
COMPACTIONS: Final[Schema[int, CompactionRow]] = Schema(
    "compactions",
    CompactionRow,
    FIRST_FIELD,
    (
        Section(
            19,
            (
                INTEGERS,
                Enums(CompactionKind),
                INTEGERS,
                INTEGERS,
                Lists(INTEGERS),
                *[INTEGERS] * 4,
            ),
            weighed=(4,),
        ),
    ),
    (COMPACTIONS_OF_SOURCE, COMPACTIONS_OF_WORKER),
)


def compaction_leased(view: View, record: records.CompactionLeased) -> None:
    """Lease a new task, or a present task to another worker, without the sources that were destroyed in the
    meantime.
    """
    row = _leased_row(record)
    name = f"compaction {row.task_id}"
    worker = view[NODES].get(row.worker_id)
    assert worker is not None, f"{name}: node {row.worker_id} is unknown"
    assert worker.role is NodeRole.COMPACTOR, f"{name}: node {row.worker_id} is not a compactor"
    assert is_current(view, row.worker_id, row.worker_epoch), (
        f"{name}: node {row.worker_id} epoch {row.worker_epoch} is stale"
    )
    assert row.source_ids, f"{name}: nothing to replace"
    assert len(set(row.source_ids)) == len(row.source_ids), f"{name}: a source is named twice"
    present = view[COMPACTIONS].get(row.task_id)
    if present is None:
        counters.take(view, counters.COMPACTION, row.task_id)
        assert row.token == FIRST_TOKEN, (
            f"{name}: its first token is {row.token}, not the first token of a task"
        )
    else:
        _require_same_task(view, present, row)
    for object_id in row.source_ids:
        _require_source(view, row, object_id)
    view[COMPACTIONS].put(row)


def compaction_renewed(view: View, record: records.CompactionRenewed) -> None:
    """Extend the lease of a task."""
    row = _row(view, record.task_id)
    assert record.leased_until_ms > row.leased_until_ms, (
        f"compaction {row.task_id}: the renewal does not extend the lease"
    )
    view[COMPACTIONS].put(row._replace(leased_until_ms=record.leased_until_ms))


def compaction_ended(view: View, record: records.CompactionEnded) -> None:
    """End a task. Another task may then have its remaining sources."""
    view[COMPACTIONS].delete(_row(view, record.task_id).task_id)


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
    assert row[1:4] == present[1:4], f"{name}: its kind, node or stream differs from the present task"
    left = tuple(each for each in present.source_ids if _is_committed(view, each))
    assert row.source_ids == left, f"{name}: its sources are {left}, not {row.source_ids}"


def _require_source(view: View, row: CompactionRow, object_id: ObjectId) -> None:
    name = f"compaction {row.task_id}"
    assert _is_committed(view, object_id), f"{name}: object {object_id} is not COMMITTED"
    held = view[COMPACTIONS].find(COMPACTIONS_OF_SOURCE, object_id)
    assert all(each.task_id == row.task_id for each in held), (
        f"{name}: object {object_id} is a source of another compaction"
    )
    if row.kind is CompactionKind.STREAM_OBJECTS:
        single = view[STREAM_OBJECTS].get(object_id)
        assert single is not None, f"{name}: object {object_id} is not a stream object"
        assert (single.stream_id, row.node_id) == (row.stream_id, NO_NODE), (
            f"{name}: object {object_id} is of another stream"
        )
    else:
        several = view[STREAM_SET_OBJECTS].get(object_id)
        assert several is not None, f"{name}: object {object_id} is not a stream set object"
        assert (several.node_id, row.stream_id) == (row.node_id, NO_STREAM), (
            f"{name}: object {object_id} is of another node"
        )


def _is_committed(view: View, object_id: ObjectId) -> bool:
    row = view[OBJECTS].get(object_id)
    return row is not None and row.state is ObjectState.COMMITTED


def _row(view: View, task_id: int) -> CompactionRow:
    row = view[COMPACTIONS].get(task_id)
    assert row is not None, f"compaction {task_id} has ended or does not exist"
    return row


def _check(view: View) -> None:
    following = counters.next_value(view, counters.COMPACTION)
    sources: dict[ObjectId, int] = {}
    for task in view[COMPACTIONS]:
        name = f"compaction {task.task_id}"
        assert 0 < task.task_id < following, f"{name}: its id was never assigned"
        assert task.token > 0, f"{name}: its token says that no worker was assigned"
        worker = view[NODES].get(task.worker_id)
        assert worker is not None, f"{name}: its worker is unknown"
        is_late = worker.node_epoch > task.worker_epoch or worker.role is NodeRole.NONE
        assert is_late or worker.role is NodeRole.COMPACTOR, f"{name}: its worker is not a compactor"
        assert worker.node_epoch >= task.worker_epoch, f"{name}: the epoch of its worker was never assigned"
        of_stream = task.kind is CompactionKind.STREAM_OBJECTS
        assert (task.node_id == NO_NODE) == of_stream == (task.stream_id != NO_STREAM), (
            f"{name}: {task.kind.name} of node {task.node_id}, stream {task.stream_id}"
        )
        for object_id in task.source_ids:
            other = sources.setdefault(object_id, task.task_id)
            assert other == task.task_id, f"{name}: object {object_id} is a source of {other} too"
            _check_source(view, task, object_id)


def _check_source(view: View, task: CompactionRow, object_id: ObjectId) -> None:
    row = view[OBJECTS].get(object_id)
    if row is None or row.state is ObjectState.DESTROYED:
        return  # all data of the source was trimmed or deleted in the meantime
    name = f"compaction {task.task_id}: source {object_id}"
    assert row.state is ObjectState.COMMITTED, f"{name} is {row.state.name}"
    single, several = view[STREAM_OBJECTS].get(object_id), view[STREAM_SET_OBJECTS].get(object_id)
    assert single is None or single.stream_id == task.stream_id, f"{name}: of stream {single}"
    assert several is None or several.node_id == task.node_id, f"{name}: of another node"


NOUN: Final = Noun(
    schemas=(COMPACTIONS,), rules=(compaction_leased, compaction_renewed, compaction_ended), check=_check
)
