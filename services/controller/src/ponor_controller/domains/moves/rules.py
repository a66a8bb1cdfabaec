"""Rules of moves for operations and `MoveDuty`: whether streams are closed, and which broker leads next."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

from ponor.metadata.v1 import records_pb2
from ponor_metadata.nouns.nodes import NODES, NodeRow
from ponor_metadata.nouns.streams import STREAMS, STREAMS_OF_PARTITION, StreamRow
from ponor_metadata.nouns.topics import PARTITIONS, MoveRow, PartitionRow
from ponor_metadata.tables.schema import View
from ponor_runtime.identity import NodeId

from ponor_controller.shared_rules import move_records
from ponor_controller.shared_rules.placement import candidates, is_live, led_counts, spread


def open_stream(view: View, topic_id: bytes, partition: int) -> StreamRow | None:
    """An open stream of the partition; None if all streams are closed, and therefore no broker can append."""
    streams = view[STREAMS].find(STREAMS_OF_PARTITION, (topic_id.hex(), str(partition)))
    return next((row for row in streams if row.open), None)


def holds_stream(view: View, node: NodeRow, move: MoveRow) -> bool:
    """Whether the node has an open stream of the partition, opened at the node's present epoch.

    A leader that waits for the recovery of the former leader's log has no open stream.
    """
    streams = view[STREAMS].find(STREAMS_OF_PARTITION, (move.topic_id.hex(), str(move.partition)))
    return any(
        row.open and (row.node_id, row.node_epoch) == (node.node_id, node.node_epoch) for row in streams
    )


def moving_partition(view: View, move: MoveRow) -> PartitionRow:
    """The partition of a move."""
    partition = view[PARTITIONS].get((move.topic_id, move.partition))
    assert partition is not None, "the partition of a move does not exist"
    assert partition.leader_id == move.source_id, "the source of a move does not lead the partition"
    return partition


def leader_to_elect(
    view: View,
    preferred: Sequence[NodeId],
    is_suspected: Callable[[NodeId], bool],
    *,
    without: Container[NodeId] = (),
) -> NodeId | None:
    """Choose the leader of a partition whose streams are closed.

    In this order: the first broker of `preferred` if it is live; another broker of `preferred` that is live
    and not draining; the candidate with the fewest partitions; a broker of `preferred` that is live and
    draining; None.
    """
    allowed = [node_id for node_id in preferred if node_id not in without]
    living = [node_id for node_id in allowed if is_live(view[NODES].get(node_id), is_suspected)]
    if living and living[0] == preferred[0]:
        return living[0]
    others = candidates(view, is_suspected, without=without)
    staying = [node_id for node_id in living if node_id in others]
    if staying:
        return staying[0]
    if others:
        return spread(led_counts(view, others), 1)[0]
    return living[0] if living else None


def keep_at_source(
    view: View, move: MoveRow, reason: str, is_suspected: Callable[[NodeId], bool]
) -> records_pb2.Record | None:
    """The record that ends a move in favour of its source.

    Open streams remain open. Closed streams can only be opened at a new epoch, so a leader is elected, the
    source if it is live. Returns None if the streams are closed and no broker is live.
    """
    if open_stream(view, move.topic_id, move.partition) is not None:
        return move_records.cancelled(move, reason)
    leader_id = leader_to_elect(view, (move.source_id, move.target_id), is_suspected)
    if leader_id is None:
        return None
    return move_records.elected(view, moving_partition(view, move), leader_id, move.traceparent)
