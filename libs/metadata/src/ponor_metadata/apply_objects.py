"""Rules of apply for the life of objects: PREPARED -> COMMITTED -> DESTROYED -> gone, or PREPARED -> DESTROYED -> gone, never back."""

from __future__ import annotations

from ponor.metadata.v1 import records_pb2 as records
from ponor_runtime.identity import NodeEpoch, NodeId, ObjectId, StreamId

from ponor_metadata import counters
from ponor_metadata.apply_snapshots import is_pinned, pinned_since_ms
from ponor_metadata.apply_streams import advance
from ponor_metadata.ranges import PackedRanges
from ponor_metadata.rows import (
    NO_EPOCH,
    NO_NODE,
    ObjectRow,
    ObjectState,
    StreamObjectRow,
    StreamSetObjectRow,
)
from ponor_metadata.view import View, cluster_of, is_current


def objects_prepared(view: View, record: records.ObjectsPrepared) -> None:
    """A run of new ids, bound to the node and epoch that may commit them."""
    node_id = NodeId(record.node_id)
    assert is_current(view, node_id, record.node_epoch), f"node {node_id} epoch {record.node_epoch} is stale"
    counters.take(view, counters.OBJECT, record.first_object_id, record.count)
    for object_id in range(record.first_object_id, record.first_object_id + record.count):
        assert object_id not in view.objects, f"object {object_id} exists"
        view.objects.put(
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
    """The object belongs to its stream from now on."""
    stream_id = StreamId(record.stream_id)
    _commit(view, record.object_id, record.size_bytes, record.committed_at_ms)
    advance(view, stream_id, record.start_offset, record.end_offset)
    view.stream_objects.put(
        StreamObjectRow(ObjectId(record.object_id), stream_id, record.start_offset, record.end_offset)
    )


def stream_set_object_committed(view: View, record: records.StreamSetObjectCommitted) -> None:
    """The object belongs to its node from now on, after all that the node committed before."""
    node_id = NodeId(record.node_id)
    assert node_id in view.nodes, f"node {node_id} is unknown"
    _commit(view, record.object_id, record.size_bytes, record.committed_at_ms)
    ranges = PackedRanges(record.packed_ranges)
    assert len(ranges.decoded) > 0, f"object {record.object_id} holds nothing"
    for stream_id, start, end in ranges.decoded.runs():
        writer = advance(view, StreamId(stream_id), start, end).writer_of(end - 1)
        assert writer is None or writer == node_id, (
            f"stream {stream_id}: {end - 1} went through node {writer}, not {node_id}"
        )
    order = counters.next_value(view, counters.COMMIT_ORDER)
    counters.take(view, counters.COMMIT_ORDER, order)
    view.stream_set_objects.put(StreamSetObjectRow(ObjectId(record.object_id), node_id, order, ranges))


def objects_destroyed(view: View, record: records.ObjectsDestroyed) -> None:
    """Readers lose the objects, GC may delete them after the delay."""
    for object_id in map(ObjectId, record.object_ids):
        row = _object(view, object_id)
        assert row.state is not ObjectState.DESTROYED, f"object {object_id} is destroyed already"
        _destroy(view, row, record.destroyed_at_ms)


def objects_claimed(view: View, record: records.ObjectsClaimed) -> None:
    """One GC node at a time holds an object. A PREPARED one whose lease ran out is destroyed by being claimed."""
    node_id, node_epoch = NodeId(record.node_id), NodeEpoch(record.node_epoch)
    assert is_current(view, node_id, node_epoch), f"node {node_id} epoch {node_epoch} is stale"
    cluster = cluster_of(view)
    assert cluster is not None
    assert not cluster.incarnation_unconfirmed, f"incarnation {cluster.incarnation} waits for confirmation"
    pinned_ms = pinned_since_ms(view)
    for object_id in map(ObjectId, record.object_ids):
        row = _object(view, object_id)
        assert not is_pinned(row, pinned_ms), f"object {object_id} is read under a snapshot's lease"
        if row.state is ObjectState.PREPARED:
            assert row.expires_at_ms <= view.cluster_time_ms, f"object {object_id} may still be committed"
            row = _destroy(view, row, view.cluster_time_ms)
        assert row.state is ObjectState.DESTROYED, f"object {object_id} is in use"
        mine = (row.claim_node_id, row.claim_node_epoch) == (node_id, node_epoch)
        assert mine or row.claimed_until_ms <= view.cluster_time_ms, (
            f"object {object_id} is claimed by node {row.claim_node_id}"
        )
        view.objects.put(
            row._replace(
                claim_node_id=node_id,
                claim_node_epoch=node_epoch,
                claimed_until_ms=record.claimed_until_ms,
            )
        )


def objects_removed(view: View, record: records.ObjectsRemoved) -> None:
    """The store has them no more. Only what was destroyed and claimed can be removed."""
    for object_id in map(ObjectId, record.object_ids):
        row = _object(view, object_id)
        assert row.state is ObjectState.DESTROYED, f"object {object_id} is {row.state.name}"
        assert row.claim_node_id != NO_NODE, f"object {object_id} was never claimed"
        view.objects.delete(object_id)


def _commit(view: View, object_id: int, size_bytes: int, committed_at_ms: int) -> None:
    row = _object(view, ObjectId(object_id))
    assert row.state is ObjectState.PREPARED, f"object {object_id} is {row.state.name}, not PREPARED"
    assert size_bytes > 0, f"object {object_id} is empty"
    # Not by `_replace`: an upload commits hundreds of objects in one turn. What follows is as PREPARED objects have it.
    view.objects.put(
        ObjectRow(row.object_id, ObjectState.COMMITTED, *row[2:6], 0, size_bytes, committed_at_ms, *row[9:])
    )


def _destroy(view: View, row: ObjectRow, destroyed_at_ms: int) -> ObjectRow:
    destroyed = row._replace(state=ObjectState.DESTROYED, expires_at_ms=0, destroyed_at_ms=destroyed_at_ms)
    view.objects.put(destroyed)
    if row.object_id in view.stream_objects:
        view.stream_objects.delete(row.object_id)
    elif row.object_id in view.stream_set_objects:
        view.stream_set_objects.delete(row.object_id)
    return destroyed


def _object(view: View, object_id: ObjectId) -> ObjectRow:
    row = view.objects.get(object_id)
    assert row is not None, f"object {object_id} does not exist"
    return row
