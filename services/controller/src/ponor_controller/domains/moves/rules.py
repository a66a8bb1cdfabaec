"""What holds while a partition moves: whether its streams are closed, and who may lead it next.

What lives here: pure questions about a view, asked by requests and by the driver alike, so that both end a move in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

from ponor.metadata.v1 import records_pb2
from ponor_metadata.nouns.nodes import NODES, NodeRow
from ponor_metadata.nouns.streams import STREAMS, STREAMS_OF_PARTITION, StreamRow
from ponor_metadata.nouns.topics import PARTITIONS, MoveRow, PartitionRow
from ponor_metadata.tables.schema import View
from ponor_runtime.identity import NodeId

from ponor_controller.shared_rules import move_records as changes
from ponor_controller.shared_rules.placement import candidates, is_live, led_counts, spread


def open_stream(view: View, topic_id: bytes, partition: int) -> StreamRow | None:
    """A stream of the partition that somebody holds open; None when all are closed, and nobody can append."""
    streams = view[STREAMS].find(STREAMS_OF_PARTITION, (topic_id.hex(), str(partition)))
    return next((row for row in streams if row.open), None)


def holds_stream(view: View, node: NodeRow, move: MoveRow) -> bool:
    """Whether this life of a node holds a stream of the partition open. A leader that still waits for the recovery of the log before holds none."""
    streams = view[STREAMS].find(STREAMS_OF_PARTITION, (move.topic_id.hex(), str(move.partition)))
    return any(
        row.open and (row.node_id, row.node_epoch) == (node.node_id, node.node_epoch) for row in streams
    )


def moving_partition(view: View, move: MoveRow) -> PartitionRow:
    """The partition of a move."""
    partition = view[PARTITIONS].get((move.topic_id, move.partition))
    assert partition is not None, "a move ends with its topic"
    assert partition.leader_id == move.source_id, "a move ends with its source's leadership"
    return partition


def electee(
    view: View,
    preferred: Sequence[NodeId],
    is_suspected: Callable[[NodeId], bool],
    *,
    without: Container[NodeId] = (),
) -> NodeId | None:
    """Who leads a partition whose streams are closed.

    The first of `preferred` that lives; the others of them only if they keep their partitions; then whoever has the fewest; then one that drains, which gives the partition away
    again. None when no broker lives.
    """
    living = [
        node_id
        for node_id in preferred
        if node_id not in without and is_live(view[NODES].get(node_id), is_suspected)
    ]
    if living and living[0] == preferred[0]:
        return living[0]
    others = candidates(view, is_suspected, without=without)
    staying = [node_id for node_id in living if node_id in others]
    if staying:
        return staying[0]
    if others:
        return spread(led_counts(view, others), 1)[0]
    return living[0] if living else None


def kept_by_source(
    view: View, move: MoveRow, reason: str, is_suspected: Callable[[NodeId], bool]
) -> records_pb2.Record | None:
    """The record that leaves the partition where it is.

    Streams that are open go on as before. Once they are closed, only a new epoch opens them again: an election, of the source if it lives. None when no broker lives.
    """
    if open_stream(view, move.topic_id, move.partition) is not None:
        return changes.cancelled(move, reason)
    leader_id = electee(view, (move.source_id, move.target_id), is_suspected)
    if leader_id is None:
        return None
    return changes.elected(view, moving_partition(view, move), leader_id, move.traceparent)
