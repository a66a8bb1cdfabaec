"""The next partitions that leave a draining broker.

What lives here: the choice, as a pure function of rows. A wave is bounded, so that a source closes what it was told to before it is told more; it is filled up once half of it has
arrived, so that a source finds many at once and closes them together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ponor_metadata.nouns.nodes import NODES, NodeRow
from ponor_metadata.nouns.topics import MOVES, MOVES_FROM, PARTITIONS, PARTITIONS_LED_BY, PartitionRow
from ponor_metadata.tables.schema import View
from ponor_runtime.identity import NodeId

from ponor_controller.shared_rules.placement import spread


def draining_brokers(view: View) -> list[NodeRow]:
    """Brokers that drain and still lead something, by node id."""
    return [
        row
        for row in view[NODES]
        if row.draining and not row.fenced and view[PARTITIONS].find(PARTITIONS_LED_BY, row.node_id)
    ]


def next_wave(
    view: View,
    source_id: NodeId,
    counts: dict[NodeId, int],
    in_flight_max: int,
    may_move: Callable[[PartitionRow], bool],
) -> list[tuple[PartitionRow, NodeId]]:
    """Partitions that begin to move now, with their targets.

    Args:
        view: as the leader sees it.
        source_id: the broker that drains.
        counts: how many partitions each possible target has or will have; moves that begin are added.
        in_flight_max: moves that may be under way from one source.
        may_move: whether a partition may be tried now; one whose move has just been cancelled waits a little.
    """
    under_way = len(view[MOVES].find(MOVES_FROM, source_id))
    if 2 * under_way > in_flight_max:
        return []
    chosen: list[PartitionRow] = []
    for partition in view[PARTITIONS].find(PARTITIONS_LED_BY, source_id):
        if len(chosen) == in_flight_max - under_way:
            break
        if (partition.topic_id, partition.partition) not in view[MOVES] and may_move(partition):
            chosen.append(partition)
    targets: Sequence[NodeId] = spread(counts, len(chosen))
    for target_id in targets:
        counts[target_id] += 1
    return list(zip(chosen, targets, strict=True))
