"""Objects in the store: their states, and stream set objects.

An object goes from PREPARED to COMMITTED to DESTROYED, or from PREPARED to DESTROYED. Finally its row is
deleted.
"""

from __future__ import annotations

from collections import defaultdict
from enum import IntEnum
from typing import Final, NamedTuple

from ponor.metadata.v1 import records_pb2 as records
from ponor_runtime.identity import NodeEpoch, NodeId, ObjectId, StreamId

from ponor_metadata.nouns import counters
from ponor_metadata.nouns.cluster import require_cluster
from ponor_metadata.nouns.nodes import NO_EPOCH, NO_NODE, NODES, is_current
from ponor_metadata.nouns.snapshot_leases import SNAPSHOTS, pinned_since_ms
from ponor_metadata.nouns.streams import RECLAIMS, STREAM_OBJECTS, STREAMS, StreamObjectRow, advance
from ponor_metadata.tables.columns import BLOBS, INTEGERS, TEXTS, Enums
from ponor_metadata.tables.ranges import PackedRanges
from ponor_metadata.tables.schema import FIRST_FIELD, Index, Noun, Schema, Section, View


class ObjectState(IntEnum):
    """The state of an object. The numbers are those of the snapshot format; an object's state only rises."""

    PREPARED = 1
    COMMITTED = 2
    DESTROYED = 3


class ObjectRow(NamedTuple):
    """An object that is in the store or may get there. Times are cluster time; 0 = not set in this state.

    Only PREPARED objects expire. Only DESTROYED objects have a time of destruction and may be claimed.
    """

    object_id: ObjectId
    state: ObjectState
    namespace: str
    bucket_index: int
    node_id: NodeId
    node_epoch: NodeEpoch
    expires_at_ms: int
    size_bytes: int
    committed_at_ms: int
    destroyed_at_ms: int
    claim_node_id: NodeId
    claim_node_epoch: NodeEpoch
    claimed_until_ms: int


class StreamSetObjectRow(NamedTuple):
    """A stream set object: pieces of many streams, from one node. `commit_order` rises with every commit."""

    object_id: ObjectId
    node_id: NodeId
    commit_order: int
    ranges: PackedRanges


def _awaited_state(row: ObjectRow) -> tuple[ObjectState, ...]:
    return () if row.state is ObjectState.COMMITTED else (row.state,)


def _due(row: ObjectRow) -> tuple[int, ObjectId]:
    due_ms = row.expires_at_ms if row.state is ObjectState.PREPARED else row.destroyed_at_ms
    return due_ms, row.object_id


OBJECTS_WAITING: Final[Index[ObjectState, ObjectRow]] = Index("waiting", _awaited_state, _due)
"""PREPARED objects by expiry, and DESTROYED objects by time of destruction; then by object id.

COMMITTED objects are not in the index.
"""
STREAM_SET_OBJECTS_AT: Final[Index[NodeId, StreamSetObjectRow]] = Index(
    "at_node", lambda row: (row.node_id,), lambda row: row.commit_order
)
"""A node's stream set objects in commit order."""
STREAM_SET_OBJECTS_WITH: Final[Index[StreamId, StreamSetObjectRow]] = Index(
    "with_stream", lambda row: row.ranges.decoded.stream_ids(), lambda row: row.commit_order
)
"""Stream set objects of all nodes that contain a piece of the stream, in commit order."""

_ORIGIN: Final = (Enums(ObjectState), TEXTS, INTEGERS, INTEGERS, INTEGERS)
IN_USE_SECTION: Final = Section(7, (INTEGERS, *_ORIGIN, INTEGERS, INTEGERS), name="objects in use")
"""Columns of PREPARED and COMMITTED objects: the first six fields, the size, and the expiry or the time of
the commit.
"""
DESTROYED_SECTION: Final = Section(8, (INTEGERS, *_ORIGIN, *[INTEGERS] * 7), name="destroyed objects")
OBJECTS: Final[Schema[ObjectId, ObjectRow]] = Schema(
    "objects", ObjectRow, FIRST_FIELD, (IN_USE_SECTION, DESTROYED_SECTION), (OBJECTS_WAITING,)
)
STREAM_SET_OBJECTS: Final[Schema[ObjectId, StreamSetObjectRow]] = Schema(
    "stream_set_objects",
    StreamSetObjectRow,
    FIRST_FIELD,
    (Section(10, (INTEGERS, INTEGERS, INTEGERS, BLOBS), weighed=(3,)),),
    (STREAM_SET_OBJECTS_AT, STREAM_SET_OBJECTS_WITH),
)


def objects_prepared(view: View, record: records.ObjectsPrepared) -> None:
    """Reserve a run of object ids. Only this node at this epoch may commit them."""
    node_id = NodeId(record.node_id)
    assert is_current(view, node_id, record.node_epoch), f"node {node_id} epoch {record.node_epoch} is stale"
    counters.take(view, counters.OBJECT, record.first_object_id, record.count)
    objects = view[OBJECTS]
    for object_id in range(record.first_object_id, record.first_object_id + record.count):
        assert object_id not in objects, f"object {object_id} already exists"
        objects.put(
            ObjectRow(
                object_id=ObjectId(object_id),
                state=ObjectState.PREPARED,
                namespace=record.namespace,
                bucket_index=record.bucket_index,
                node_id=node_id,
                node_epoch=NodeEpoch(record.node_epoch),
                expires_at_ms=record.expires_at_ms,
                size_bytes=0,
                committed_at_ms=0,
                destroyed_at_ms=0,
                claim_node_id=NO_NODE,
                claim_node_epoch=NO_EPOCH,
                claimed_until_ms=0,
            )
        )


def stream_object_committed(view: View, record: records.StreamObjectCommitted) -> None:
    """Commit a stream object."""
    stream_id = StreamId(record.stream_id)
    _commit(view, record.object_id, record.size_bytes, record.committed_at_ms)
    advance(view, stream_id, record.start_offset, record.end_offset)
    view[STREAM_OBJECTS].put(
        StreamObjectRow(ObjectId(record.object_id), stream_id, record.start_offset, record.end_offset)
    )


def stream_set_object_committed(view: View, record: records.StreamSetObjectCommitted) -> None:
    """Commit a stream set object. Its commit order is above that of all earlier commits of its node."""
    node_id = NodeId(record.node_id)
    assert node_id in view[NODES], f"node {node_id} is unknown"
    _commit(view, record.object_id, record.size_bytes, record.committed_at_ms)
    ranges = PackedRanges(record.packed_ranges)
    assert len(ranges.decoded) > 0, f"object {record.object_id} has no ranges"
    for stream_id, start, end in ranges.decoded.runs():
        writer = advance(view, StreamId(stream_id), start, end).writer_of(end - 1)
        assert writer is None or writer == node_id, (
            f"stream {stream_id}: node {writer} wrote offset {end - 1}, not node {node_id}"
        )
    order = counters.next_value(view, counters.COMMIT_ORDER)
    counters.take(view, counters.COMMIT_ORDER, order)
    view[STREAM_SET_OBJECTS].put(StreamSetObjectRow(ObjectId(record.object_id), node_id, order, ranges))


def objects_destroyed(view: View, record: records.ObjectsDestroyed) -> None:
    """Hide the objects from readers. The garbage collector may delete them after `destroy_delay_ms`."""
    for object_id in map(ObjectId, record.object_ids):
        row = _object(view, object_id)
        assert row.state is not ObjectState.DESTROYED, f"object {object_id} is already destroyed"
        _destroy(view, row, record.destroyed_at_ms)


def objects_claimed(view: View, record: records.ObjectsClaimed) -> None:
    """Give the objects to one garbage collector. The claim makes an expired PREPARED object DESTROYED."""
    node_id, node_epoch = NodeId(record.node_id), NodeEpoch(record.node_epoch)
    assert is_current(view, node_id, node_epoch), f"node {node_id} epoch {node_epoch} is stale"
    cluster = require_cluster(view)
    assert not cluster.incarnation_unconfirmed, f"incarnation {cluster.incarnation} waits for confirmation"
    pinned_ms = pinned_since_ms(view)
    for object_id in map(ObjectId, record.object_ids):
        row = _object(view, object_id)
        assert not is_pinned(row, pinned_ms), f"object {object_id} is kept for a snapshot lease"
        if row.state is ObjectState.PREPARED:
            assert row.expires_at_ms <= view.cluster_time_ms, f"object {object_id} may still be committed"
            row = _destroy(view, row, view.cluster_time_ms)
        assert row.state is ObjectState.DESTROYED, f"object {object_id} is in use"
        mine = (row.claim_node_id, row.claim_node_epoch) == (node_id, node_epoch)
        assert mine or row.claimed_until_ms <= view.cluster_time_ms, (
            f"object {object_id} is claimed by node {row.claim_node_id}"
        )
        view[OBJECTS].put(
            row._replace(
                claim_node_id=node_id,
                claim_node_epoch=node_epoch,
                claimed_until_ms=record.claimed_until_ms,
            )
        )


def objects_removed(view: View, record: records.ObjectsRemoved) -> None:
    """Delete the rows of objects that the store no longer contains. They must be destroyed and claimed."""
    for object_id in map(ObjectId, record.object_ids):
        row = _object(view, object_id)
        assert row.state is ObjectState.DESTROYED, f"object {object_id} is {row.state.name}"
        assert row.claim_node_id != NO_NODE, f"object {object_id} was never claimed"
        view[OBJECTS].delete(object_id)


def is_pinned(row: ObjectRow, since_ms: int | None) -> bool:
    """Return whether a destroyed object is kept for readers. `since_ms`: see `pinned_since_ms`.

    An object that was never committed has no size and no reader can need it, so it is not kept.
    """
    return since_ms is not None and row.size_bytes > 0 and row.destroyed_at_ms >= since_ms


def _commit(view: View, object_id: int, size_bytes: int, committed_at_ms: int) -> None:
    row = _object(view, ObjectId(object_id))
    assert row.state is ObjectState.PREPARED, f"object {object_id} is {row.state.name}, not PREPARED"
    assert size_bytes > 0, f"object {object_id} has no bytes"
    # `_replace` is too slow here, because an upload commits hundreds of objects in one step. row[9:] keeps
    # the values of the PREPARED row.
    view[OBJECTS].put(
        ObjectRow(row.object_id, ObjectState.COMMITTED, *row[2:6], 0, size_bytes, committed_at_ms, *row[9:])
    )


def _destroy(view: View, row: ObjectRow, destroyed_at_ms: int) -> ObjectRow:
    destroyed = row._replace(state=ObjectState.DESTROYED, expires_at_ms=0, destroyed_at_ms=destroyed_at_ms)
    view[OBJECTS].put(destroyed)
    if row.object_id in view[STREAM_OBJECTS]:
        view[STREAM_OBJECTS].delete(row.object_id)
    elif row.object_id in view[STREAM_SET_OBJECTS]:
        view[STREAM_SET_OBJECTS].delete(row.object_id)
    return destroyed


def _object(view: View, object_id: ObjectId) -> ObjectRow:
    row = view[OBJECTS].get(object_id)
    assert row is not None, f"object {object_id} does not exist"
    return row


def _check(view: View) -> None:
    counters.check_below(view, counters.OBJECT, (row.object_id for row in view[OBJECTS]))
    orders = [row.commit_order for row in view[STREAM_SET_OBJECTS]]
    assert len(set(orders)) == len(orders), "two stream set objects have the same commit order"
    assert not orders or max(orders) < counters.next_value(view, counters.COMMIT_ORDER)
    _check_references(view)
    _check_coverage(view)
    _check_reclaims(view)
    _check_pins(view)


def _check_references(view: View) -> None:
    referenced: dict[ObjectId, str] = {}
    for stream_object in view[STREAM_OBJECTS]:
        referenced[stream_object.object_id] = f"stream {stream_object.stream_id}"
    for set_object in view[STREAM_SET_OBJECTS]:
        assert set_object.object_id not in referenced, (
            f"object {set_object.object_id}: is a stream object and a stream set object"
        )
        assert set_object.node_id in view[NODES], f"object {set_object.object_id}: its node is unknown"
        referenced[set_object.object_id] = f"node {set_object.node_id}"
    for row in view[OBJECTS]:
        committed = row.state is ObjectState.COMMITTED
        assert committed == (row.object_id in referenced), (
            f"object {row.object_id} is {row.state.name}, referenced by {referenced.get(row.object_id)}"
        )
        assert not committed or row.size_bytes > 0, f"object {row.object_id}: committed without a size"
        assert row.namespace, f"object {row.object_id}: without an origin namespace"
        assert row.bucket_index >= 0, f"object {row.object_id}: without a bucket"
        claimed = row.claim_node_id != NO_NODE
        assert not claimed or row.state is ObjectState.DESTROYED, (
            f"object {row.object_id}: claimed while in use"
        )
    for object_id, holder in referenced.items():
        assert object_id in view[OBJECTS], f"{holder}: its object {object_id} has no row"


def _check_coverage(view: View) -> None:
    """Check that the objects contain every offset in [start, end) of a stream exactly once. Stream set
    objects may also contain lower offsets.
    """
    pieces: dict[StreamId, list[tuple[int, int, NodeId | None]]] = defaultdict(list)
    for stream_object in view[STREAM_OBJECTS]:
        piece = (stream_object.start_offset, stream_object.end_offset, None)
        pieces[stream_object.stream_id].append(piece)
    for set_object in view[STREAM_SET_OBJECTS]:
        for each in set_object.ranges.decoded:
            pieces[each.stream_id].append((each.start_offset, each.end_offset, set_object.node_id))
    for stream in view[STREAMS]:
        covered = None
        for start, end, node_id in sorted(pieces.pop(stream.stream_id, []), key=lambda piece: piece[:2]):
            name = f"stream {stream.stream_id} at {start}"
            assert covered is None or start >= covered, f"{name}: two objects contain the same offset"
            if end > stream.start_offset:
                expected = max(stream.start_offset, covered or 0)
                assert start <= expected, f"{name}: no object contains offset {expected}"
                writer = stream.range_at(end - 1)
                assert writer is not None, f"{name}: no range of the stream contains its offsets"
                assert node_id is None or node_id == writer.node_id, f"{name}: another node wrote the range"
            covered = end
        if stream.start_offset < stream.end_offset:
            assert covered == stream.end_offset, (
                f"stream {stream.stream_id}: no object contains offset {covered}"
            )


def _check_reclaims(view: View) -> None:
    """Check that each object without live data contains a piece of a stream in the reclaims table."""
    held: dict[ObjectId, list[tuple[StreamId, int]]] = {
        row.object_id: [(row.stream_id, row.end_offset)] for row in view[STREAM_OBJECTS]
    }
    for several in view[STREAM_SET_OBJECTS]:
        held[several.object_id] = [(each.stream_id, each.end_offset) for each in several.ranges.decoded]
    for object_id, pieces in held.items():
        live = any(
            (stream := view[STREAMS].get(stream_id)) is not None and end > stream.start_offset
            for stream_id, end in pieces
        )
        assert live or any(stream_id in view[RECLAIMS] for stream_id, _ in pieces), (
            f"object {object_id} contains no live data, and none of its streams waits for a reclaim"
        )


def _check_pins(view: View) -> None:
    since_ms = min((lease.begun_at_ms for lease in view[SNAPSHOTS]), default=None)
    if since_ms is None:
        return
    for row in view[OBJECTS]:
        claimed = row.claim_node_id != NO_NODE
        assert not claimed or not row.size_bytes or row.destroyed_at_ms <= since_ms, (
            f"object {row.object_id}: claimed, but kept for a snapshot lease"
        )


NOUN: Final = Noun(
    schemas=(OBJECTS, STREAM_SET_OBJECTS),
    rules=(
        objects_prepared,
        stream_object_committed,
        stream_set_object_committed,
        objects_destroyed,
        objects_claimed,
        objects_removed,
    ),
    check=_check,
)
