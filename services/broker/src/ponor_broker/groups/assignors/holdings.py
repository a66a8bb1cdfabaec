"""Partitions that members keep from their previous targets, and those that have no owner."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ponor_runtime.turns import Steps

from ponor_broker.groups.assignors.assignment_input import Subscriber
from ponor_broker.groups.assignors.steps import BATCH_ITEMS, StepBudget

_NONE: frozenset[int] = frozenset()


@dataclass(slots=True)
class Holdings:
    """An assignment during its computation. Members are numbered by their position.

    Attributes:
        held: Partitions by member and topic id, without empty sets.
        sizes: Number of partitions by member.
        free: Partitions without an owner by topic id, in the order of the topics.
    """

    held: list[dict[bytes, frozenset[int]]]
    sizes: list[int]
    free: dict[bytes, set[int]]

    def add(self, member: int, topic: bytes, partitions: Sequence[int]) -> None:
        """Give free partitions to a member. The caller removes them from `free`."""
        held = self.held[member]
        held[topic] = held.get(topic, _NONE).union(partitions)
        self.sizes[member] += len(partitions)

    def keep(self, member: int, topic: bytes, partitions: Iterable[int]) -> None:
        """Reduce a member's partitions of a topic to a part of them."""
        held = self.held[member]
        kept = frozenset(partitions)
        self.sizes[member] -= len(held[topic]) - len(kept)
        if kept:
            held[topic] = kept
        else:
            del held[topic]


def retained_holdings(
    members: Sequence[Subscriber],
    topics: Iterable[bytes],
    partition_counts: Mapping[bytes, int],
    budget: StepBudget,
) -> Steps[Holdings]:
    """Let each member keep what it owns of its subscribed topics.

    If several members own a partition, the first one keeps it.
    """
    free: dict[bytes, set[int]] = {}
    for topic in topics:
        partitions = free[topic] = set()
        count = partition_counts[topic]
        for start in range(0, count, BATCH_ITEMS):
            partitions.update(range(start, min(start + BATCH_ITEMS, count)))
            if budget.spend(1, light_items=BATCH_ITEMS):
                yield
    holdings = Holdings(held=[], sizes=[], free=free)
    for member in members:
        held: dict[bytes, frozenset[int]] = {}
        size = 0
        for topic, owned in member.owned.items():
            available = free.get(topic)
            if available and topic in member.topics:
                kept = owned if owned <= available else owned & available
                if kept:
                    available -= kept
                    held[topic] = kept
                    size += len(kept)
            if budget.spend(1, light_items=2 * len(owned)):
                yield
        holdings.held.append(held)
        holdings.sizes.append(size)
        if budget.spend(1):
            yield
    return holdings
