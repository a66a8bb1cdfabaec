"""Partitions at hand: those of one broker whose weight is about what is wanted.

What lives here: an order of the picture's partitions for one goal, and bounded looks into it. Whether a move is worth it is the planner's business.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterator, Sequence
from typing import Final

from ponor_runtime.identity import NodeId

from ponor_controller.domains.balancing.goals import Goal
from ponor_controller.domains.balancing.loads import PartitionKey
from ponor_controller.domains.balancing.picture import MovablePartition

TRIFLE: Final = 1 / 64
"""A partition below this part of a goal's smallest unevenness is not worth a move for that goal."""
TRIED_PARTITIONS_MAX: Final = 16
"""So many partitions are tried for a pair of brokers."""
RETURNED_PARTITIONS_MAX: Final = 32
"""So many are tried in return for one of them."""


class Shelves:
    """Movable partitions of each broker by their weight for one goal, ordinary and internal ones apart."""

    def __init__(self, goal: Goal, movable: Sequence[MovablePartition]) -> None:
        self._trifle = goal.unevenness_min * TRIFLE
        self._partitions: dict[tuple[NodeId, bool], list[MovablePartition]] = {}
        for partition in movable:
            self._partitions.setdefault((partition.source_id, partition.internal), []).append(partition)
        for partitions in self._partitions.values():
            partitions.sort(key=lambda each: (goal.weight(each), -max(each.traffic), each.key))
        self._weights = {
            shelf: [goal.weight(each) for each in partitions]
            for shelf, partitions in self._partitions.items()
        }

    def near(
        self, source_id: NodeId, wanted: float, *, internal: bool, without: Container[PartitionKey]
    ) -> Iterator[MovablePartition]:
        """At most `TRIED_PARTITIONS_MAX` whose weights are nearest to what is wanted, on both sides of it; of equal weights those with the least traffic."""
        shelf = (source_id, internal)
        if shelf not in self._partitions:
            return
        partitions, weights = self._partitions[shelf], self._weights[shelf]
        first = bisect_left(weights, self._trifle)
        above = bisect_right(weights, max(wanted, weights[min(first, len(weights) - 1)]))
        below = above - 1
        found = 0
        while found < TRIED_PARTITIONS_MAX and (below >= first or above < len(partitions)):
            take_below = above >= len(partitions) or (
                below >= first and wanted - weights[below] <= weights[above] - wanted
            )
            partition = partitions[below if take_below else above]
            below, above = (below - 1, above) if take_below else (below, above + 1)
            if partition.key not in without:
                found += 1
                yield partition

    def lightest(self, node_id: NodeId, *, without: Container[PartitionKey]) -> Iterator[MovablePartition]:
        """At most `RETURNED_PARTITIONS_MAX` ordinary ones with the least weight; of equal weights those with the most of other traffic."""
        found = 0
        for partition in self._partitions.get((node_id, False), ()):
            if found == RETURNED_PARTITIONS_MAX:
                return
            if partition.key not in without:
                found += 1
                yield partition
