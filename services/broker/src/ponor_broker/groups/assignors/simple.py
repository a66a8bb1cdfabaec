"""The `simple` assignor of share groups: every partition has a member, and members may share partitions."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from ponor_runtime.turns import Steps

from ponor_broker.groups.assignors.assignment_input import Assignment, Racks, Subscriber, Targets
from ponor_broker.groups.assignors.steps import StepBudget, sorted_in_steps
from ponor_broker.groups.assignors.subscribers import subscribers_by_topic

SIMPLE: Final = "simple"
_Partition: TypeAlias = tuple[bytes, int]


class SimpleAssignor:
    """Balances, among the subscribers of the same topics, the partitions per member and the members per
    partition; then keeps partitions where they are.

    With at least as many partitions as members, a partition has one member. With fewer, each partition has
    the same number of members, which is the smallest that gives every member a partition. Ties are broken by
    member id and topic id.
    """

    def __init__(self, assignable: Callable[[], Assignment]) -> None:
        """`assignable` returns the partitions that may be assigned, at the begin of a computation."""
        self._assignable = assignable

    @property
    def name(self) -> str:
        return SIMPLE

    def assign(
        self, members: Mapping[str, Subscriber], partition_counts: Mapping[bytes, int], racks: Racks | None
    ) -> Steps[Targets]:
        del racks
        budget = StepBudget()
        assignable = self._assignable()
        counts = {topic: count for topic, count in partition_counts.items() if topic in assignable}
        member_ids = yield from sorted_in_steps(members, budget, key=str)
        ordered = [members[member_id] for member_id in member_ids]
        subscribers = yield from subscribers_by_topic(ordered, counts, budget)
        topics_of: dict[int, tuple[Sequence[int], list[bytes]]] = {}
        for topic, positions in subscribers.items():
            # Topics with the same subscribers share one sequence of positions.
            topics_of.setdefault(id(positions), (positions, []))[1].append(topic)
        held: list[dict[bytes, set[int]]] = [{} for _ in ordered]
        for positions, topics in topics_of.values():
            partitions = [(topic, index) for topic in topics for index in sorted(assignable[topic])]
            if partitions:
                shared = _SharedTopics(ordered, positions, partitions, held)
                yield from shared.keep(topics, budget)
                yield from shared.fill(budget)
        return {
            member_id: {topic: frozenset(indexes) for topic, indexes in own.items()}
            for member_id, own in zip(member_ids, held, strict=True)
        }


@dataclass(slots=True)
class _Load:
    """Partitions of a member: among the shared topics, and of all topics so far."""

    here: int
    in_total: int


class _SharedTopics:
    """Topics with the same subscribers, during the computation."""

    def __init__(
        self,
        members: Sequence[Subscriber],
        positions: Sequence[int],
        partitions: Sequence[_Partition],
        held: list[dict[bytes, set[int]]],
    ) -> None:
        self._members = members
        self._held = held
        self._sharing = -(-len(positions) // len(partitions))
        """Members that each partition gets."""
        self._per_member, self._extra = divmod(self._sharing * len(partitions), len(positions))
        """Partitions that each member gets, and the number of members that get one more."""
        self._open = dict.fromkeys(partitions, self._sharing)
        """Members that a partition still needs."""
        self._loads = {position: _Load(0, sum(map(len, held[position].values()))) for position in positions}

    def keep(self, topics: Sequence[bytes], budget: StepBudget) -> Steps[None]:
        """Let members keep what they own, as far as the balance allows."""

        def owned_by(position: int) -> int:
            owned = self._members[position].owned
            return sum(len(owned.get(topic, ())) for topic in topics)

        for position in sorted(self._loads, key=lambda position: -owned_by(position)):
            quota = self._per_member + (self._extra > 0)
            for topic in topics:
                owned = self._members[position].owned.get(topic, frozenset())
                for index in sorted(owned):
                    if self._loads[position].here < quota and self._open.get((topic, index)):
                        self._add(position, (topic, index))
                if budget.spend(1, light_items=len(owned)):
                    yield
            self._extra -= self._loads[position].here > self._per_member

    def fill(self, budget: StepBudget) -> Steps[None]:
        """Give partitions that need members to those with the fewest partitions."""
        waiting = [(load.here, load.in_total, position) for position, load in self._loads.items()]
        heapq.heapify(waiting)
        for partition in self._open:
            holders: list[tuple[int, int, int]] = []
            while self._open[partition]:
                here, in_total, position = heapq.heappop(waiting)
                if partition[1] in self._held[position].get(partition[0], ()):
                    holders.append((here, in_total, position))
                else:
                    self._add(position, partition)
                    holders.append((here + 1, in_total + 1, position))
            for holder in holders:
                heapq.heappush(waiting, holder)
            if budget.spend(1 + len(holders)):
                yield

    def _add(self, position: int, partition: _Partition) -> None:
        self._held[position].setdefault(partition[0], set()).add(partition[1])
        self._open[partition] -= 1
        self._loads[position].here += 1
        self._loads[position].in_total += 1
