"""Rules of apply for partitions that are to be led by another broker, and for brokers that give theirs away.

A move changes no leader: until `PartitionChanged` ends it, the source leads at its epoch, and only `replicas` says where the partition goes.
"""

from __future__ import annotations

from ponor.metadata.v1 import records_pb2 as records
from ponor_runtime.identity import NodeId

from ponor_metadata.rows import MoveCause, MoveRow, NodeRole, PartitionRow
from ponor_metadata.view import View, is_current


def partition_move_begun(view: View, record: records.PartitionMoveBegun) -> None:
    """The leader is the one that gives the partition up; a partition moves once at a time."""
    key = (record.topic_id, record.partition)
    partition = _partition(view, *key)
    name = f"partition {record.partition} of {record.topic_id.hex()}"
    source_id, target_id = NodeId(record.source_id), NodeId(record.target_id)
    assert key not in view.moves, f"{name} moves already"
    assert source_id == partition.leader_id, f"{name} is led by {partition.leader_id}, not by {source_id}"
    assert target_id != source_id, f"{name} is at {target_id} already"
    target = view.nodes.get(target_id)
    assert target is not None, f"{name}: its target {target_id} is unknown"
    assert target.role is NodeRole.BROKER, f"{name}: its target {target_id} is no broker"
    assert not target.fenced, f"{name}: its target {target_id} is fenced"
    assert record.elect_at_ms >= record.begun_at_ms, f"{name}: elected before the move began"
    view.moves.put(
        MoveRow(
            topic_id=record.topic_id,
            partition=record.partition,
            source_id=source_id,
            target_id=target_id,
            begun_at_ms=record.begun_at_ms,
            elect_at_ms=record.elect_at_ms,
            cause=MoveCause(record.cause),
            reason=record.reason,
            traceparent=record.traceparent,
        )
    )
    view.partitions.put(partition._replace(replicas=(target_id,)))


def partition_move_cancelled(view: View, record: records.PartitionMoveCancelled) -> None:
    """The leader keeps the partition, at the epoch it has."""
    key = (record.topic_id, record.partition)
    partition = _partition(view, *key)
    assert key in view.moves, f"partition {record.partition} of {record.topic_id.hex()} does not move"
    view.moves.delete(key)
    view.partitions.put(partition._replace(replicas=(partition.leader_id,)))


def node_drain_set(view: View, record: records.NodeDrainSet) -> None:
    """Said by, or of, a process that lives: a fenced one has nothing to give away."""
    node_id = NodeId(record.node_id)
    assert is_current(view, node_id, record.node_epoch), f"node {node_id} epoch {record.node_epoch} is stale"
    node = view.nodes.get(node_id)
    assert node is not None
    assert node.role is NodeRole.BROKER, f"node {node_id} is no broker"
    view.nodes.put(node._replace(draining=record.draining))


def _partition(view: View, topic_id: bytes, number: int) -> PartitionRow:
    partition = view.partitions.get((topic_id, number))
    assert partition is not None, f"partition {number} of {topic_id.hex()} does not exist"
    return partition
