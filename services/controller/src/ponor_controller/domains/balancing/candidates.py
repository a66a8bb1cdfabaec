"""Candidates for moves: the partitions of each broker, sorted by their weight for one goal."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterator, Sequence
from typing import Final

from ponor_runtime.identity import NodeId

from ponor_controller.domains.balancing.cluster_load import MovablePartition
from ponor_controller.domains.balancing.goals import Goal
from ponor_controller.domains.balancing.loads import PartitionKey

SMALLEST_SHARE: Final = 1 / 64
"""A partition is not moved for a goal if its weight is below this share of the goal's `unevenness_min`."""
TRIED_PARTITIONS_MAX: Final = 16
"""Partitions tried for a pair of brokers."""
RETURNED_PARTITIONS_MAX: Final = 32
"""Partitions that are tried as the one that moves back in a swap."""


class Candidates:
    """Movable partitions of each broker, sorted by weight for one goal. Internal partitions are kept
    separately.
    """

    def __init__(self, goal: Goal, movable: Sequence[MovablePartition]) -> None:
        self._weight_min = goal.unevenness_min * SMALLEST_SHARE
        self._partitions: dict[tuple[NodeId, bool], list[MovablePartition]] = {}
        for partition in movable:
            self._partitions.setdefault((partition.source_id, partition.internal), []).append(partition)
        for partitions in self._partitions.values():
            partitions.sort(key=lambda each: (goal.weight(each), -max(each.traffic), each.key))
        self._weights = {
            key: [goal.weight(each) for each in partitions] for key, partitions in self._partitions.items()
        }

    def near(
        self, source_id: NodeId, wanted: float, *, internal: bool, without: Container[PartitionKey]
    ) -> Iterator[MovablePartition]:
        """At most `TRIED_PARTITIONS_MAX` partitions whose weights are nearest to `wanted`. Partitions of
        equal weight are ordered by traffic.
        """
        key = (source_id, internal)
        if key not in self._partitions:
            return
        partitions, weights = self._partitions[key], self._weights[key]
        first = bisect_left(weights, self._weight_min)
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
        """At most `RETURNED_PARTITIONS_MAX` ordinary partitions of the lowest weight. Of equal weights, the
        busiest comes first.
        """
        found = 0
        for partition in self._partitions.get((node_id, False), ()):
            if found == RETURNED_PARTITIONS_MAX:
                return
            if partition.key not in without:
                found += 1
                yield partition
