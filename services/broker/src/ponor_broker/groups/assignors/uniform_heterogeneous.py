"""Uniform assignment if members subscribe to different topics.

Free partitions go to the subscriber with the fewest partitions. Then partitions move, topic by topic, from
the subscriber with the most partitions to the one with the fewest, while this improves the balance. As in
Kafka, no single movement can then improve the result. Unlike in Kafka, a member gives up what it received in
this computation before what it owned.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import Final

from ponor_runtime.turns import Steps

from ponor_broker.groups.assignors.assignment_input import Subscriber
from ponor_broker.groups.assignors.holdings import Holdings
from ponor_broker.groups.assignors.steps import StepBudget, batches, sorted_in_steps
from ponor_broker.groups.assignors.subscribers import Subscribers

BALANCE_ROUNDS_MAX: Final = 16
"""Passes over all topics, as in Kafka. Most groups need one, and a second one that finds nothing to move.

If subscriptions overlap in a chain, a movement may have to pass through many members, one in each round. A
group that needs more rounds continues in its next computation.
"""


def assign_different_subscriptions(
    members: Sequence[Subscriber],
    subscribers: Subscribers,
    partition_counts: Mapping[bytes, int],
    holdings: Holdings,
    budget: StepBudget,
) -> Steps[None]:
    """Assign all free partitions, and balance the members.

    Topics with many partitions per subscriber come first, then those with few subscribers, because the topics
    that follow can still compensate them.
    """

    def constraint(topic: bytes) -> tuple[float, int, bytes]:
        count = len(subscribers[topic])
        return -partition_counts[topic] / count, count, topic

    topics = yield from sorted_in_steps(subscribers, budget, key=constraint)
    assignment = _Assignment(members, subscribers, holdings, budget)
    for topic in topics:
        if holdings.free[topic]:
            yield from assignment.hand_out(topic)
        if budget.spend(1):
            yield
    movable = [topic for topic in topics if len(subscribers[topic]) > 1]
    balanced = 0
    for _ in range(BALANCE_ROUNDS_MAX):
        for topic in movable:
            # The last movement was so many topics ago that all are balanced.
            if balanced == len(movable):
                return
            has_moved = yield from assignment.balance(topic)
            balanced = 1 if has_moved else balanced + 1


class _Assignment:
    def __init__(
        self,
        members: Sequence[Subscriber],
        subscribers: Subscribers,
        holdings: Holdings,
        budget: StepBudget,
    ) -> None:
        self._members = members
        self._subscribers = subscribers
        self._holdings = holdings
        self._budget = budget

    def hand_out(self, topic: bytes) -> Steps[None]:
        """Give each free partition of a topic to the subscriber with the fewest partitions."""
        partitions = sorted(self._holdings.free[topic])
        # A subscriber receives a second partition only when all before it in this order have received one.
        receivers = self._by_size(topic)[: len(partitions)]
        if self._budget.spend(1, light_items=len(partitions) + 4 * len(self._subscribers[topic])):
            yield
        gained: dict[int, list[int]] = {}
        for batch in batches(partitions):
            for partition in batch:
                size, rank, member = receivers[0]
                gained.setdefault(member, []).append(partition)
                heapq.heapreplace(receivers, (size + 1, rank, member))
            if self._budget.spend(2 * len(batch)):
                yield
        self._holdings.free[topic].clear()
        yield from self._add(topic, gained)

    def balance(self, topic: bytes) -> Steps[bool]:
        """Move partitions of a topic between its subscribers. Return whether any partition moved.

        A member never gives and receives: every movement goes from a member to one with at least two
        partitions fewer, and the difference between giver and receiver never grows.
        """
        members = self._subscribers[topic]
        sizes = [self._holdings.sizes[member] for member in members]
        if self._budget.spend(1, light_items=len(members)):
            yield
        if max(sizes) - min(sizes) <= 1:
            return False
        held = self._holdings.held
        receivers = self._by_size(topic)
        givers = [
            (-size, -rank, member) for size, rank, member in reversed(receivers) if topic in held[member]
        ]
        if self._budget.spend(1, light_items=8 * len(members)):
            yield
        kept: dict[int, list[int]] = {}
        gained: dict[int, list[int]] = {}
        while givers and -givers[0][0] - receivers[0][0] >= 2:
            negative_size, negative_rank, giver = givers[0]
            size, rank, receiver = receivers[0]
            if giver not in kept:
                kept[giver] = self._by_duration(giver, topic)
            gained.setdefault(receiver, []).append(kept[giver].pop())
            heapq.heapreplace(receivers, (size + 1, rank, receiver))
            if kept[giver]:
                heapq.heapreplace(givers, (negative_size + 1, negative_rank, giver))
            else:
                heapq.heappop(givers)
            if self._budget.spend(4):
                yield
        for member, partitions in kept.items():
            self._holdings.keep(member, topic, partitions)
            if self._budget.spend(1, light_items=len(partitions)):
                yield
        yield from self._add(topic, gained)
        return bool(gained)

    def _by_size(self, topic: bytes) -> list[tuple[int, int, int]]:
        """Return the size, rank and position of each subscriber, ascending; this is also a heap.

        The rank breaks ties: the smaller member of the beginning comes first, then the member's position.
        """
        sizes = self._holdings.sizes
        ordered = sorted(self._subscribers[topic], key=sizes.__getitem__)
        return [(sizes[member], rank, member) for rank, member in enumerate(ordered)]

    def _by_duration(self, member: int, topic: bytes) -> list[int]:
        """Return a member's partitions of a topic: first those of its previous target, then the others."""
        held = self._holdings.held[member][topic]
        owned = self._members[member].owned.get(topic, frozenset())
        return sorted(held & owned) + sorted(held - owned)

    def _add(self, topic: bytes, gained: dict[int, list[int]]) -> Steps[None]:
        for member, partitions in gained.items():
            self._holdings.add(member, topic, partitions)
            if self._budget.spend(1, light_items=len(partitions)):
                yield
