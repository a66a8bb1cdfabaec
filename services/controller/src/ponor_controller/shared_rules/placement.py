"""Where partitions go: which brokers may get some, and who gets how many.

What lives here: pure choices by number of partitions, shared by new topics, failover, drain and whoever needs another target. What traffic says is the balancer's business.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping

from ponor_metadata.nouns.nodes import NODES, NodeRole, NodeRow
from ponor_metadata.nouns.topics import MOVES, MOVES_FROM, MOVES_TO, PARTITIONS, PARTITIONS_LED_BY
from ponor_metadata.tables.schema import View
from ponor_runtime.identity import NodeId


def is_live(node: NodeRow | None, is_suspected: Callable[[NodeId], bool]) -> bool:
    """Whether this is a broker that has its rights and is heard."""
    return (
        node is not None
        and node.role is NodeRole.BROKER
        and not node.fenced
        and not is_suspected(node.node_id)
    )


def candidates(
    view: View, is_suspected: Callable[[NodeId], bool], *, without: Container[NodeId] = ()
) -> list[NodeId]:
    """Brokers that may get partitions: live, and not giving theirs away; by node id."""
    return [
        row.node_id
        for row in view[NODES]
        if row.node_id not in without and is_live(row, is_suspected) and not row.draining
    ]


def led_counts(view: View, brokers: Iterable[NodeId]) -> dict[NodeId, int]:
    """How many partitions each will lead once all that move have arrived."""
    return {
        node_id: len(view[PARTITIONS].find(PARTITIONS_LED_BY, node_id))
        + len(view[MOVES].find(MOVES_TO, node_id))
        - len(view[MOVES].find(MOVES_FROM, node_id))
        for node_id in brokers
    }


def spread(counts: Mapping[NodeId, int], count: int) -> list[NodeId]:
    """Brokers for `count` partitions: in turn, those with the fewest first (ties by node id).

    In turn, and not all to whoever has the fewest: a broker that is new would get all the traffic of a topic at once.

    Raises:
        ValueError: there is no broker.
    """
    if not counts:
        raise ValueError("no broker to place partitions at")
    order = sorted(counts, key=lambda node_id: (counts[node_id], node_id))
    return [order[i % len(order)] for i in range(count)]
