"""Choose brokers for partitions by the number of partitions that each broker leads.

These rules apply to new topics, failover, drains and moves. The balancer also considers traffic.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping

from ponor_metadata.nouns.nodes import NODES, NodeRole, NodeRow
from ponor_metadata.nouns.topics import MOVES, MOVES_FROM, MOVES_TO, PARTITIONS, PARTITIONS_LED_BY
from ponor_metadata.tables.schema import View
from ponor_runtime.identity import NodeId


def is_live(node: NodeRow | None, is_suspected: Callable[[NodeId], bool]) -> bool:
    """Whether the node is a broker that is neither fenced nor suspected."""
    return (
        node is not None
        and node.role is NodeRole.BROKER
        and not node.fenced
        and not is_suspected(node.node_id)
    )


def candidates(
    view: View, is_suspected: Callable[[NodeId], bool], *, without: Container[NodeId] = ()
) -> list[NodeId]:
    """Brokers that may get partitions (live and not draining), sorted by node id."""
    return [
        row.node_id
        for row in view[NODES]
        if row.node_id not in without and is_live(row, is_suspected) and not row.draining
    ]


def led_counts(view: View, brokers: Iterable[NodeId]) -> dict[NodeId, int]:
    """The number of partitions that each broker leads after all present moves."""
    return {
        node_id: len(view[PARTITIONS].find(PARTITIONS_LED_BY, node_id))
        + len(view[MOVES].find(MOVES_TO, node_id))
        - len(view[MOVES].find(MOVES_FROM, node_id))
        for node_id in brokers
    }


def spread(counts: Mapping[NodeId, int], count: int) -> list[NodeId]:
    """Choose brokers for `count` partitions, round-robin, beginning with the broker with the fewest (ties by
    node id).

    Without round-robin a new broker would get all partitions of a topic, and all of its traffic.

    Raises:
        ValueError: `counts` is empty.
    """
    if not counts:
        raise ValueError("no broker is available for partitions")
    order = sorted(counts, key=lambda node_id: (counts[node_id], node_id))
    return [order[i % len(order)] for i in range(count)]
