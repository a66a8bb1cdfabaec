"""The `range` assignor: contiguous ranges of each topic."""

from __future__ import annotations

from collections.abc import Mapping

from ponor_runtime.turns import Steps

from ponor_broker.groups.assignors.assignment_input import Racks, Subscriber, Targets
from ponor_broker.groups.assignors.steps import StepBudget, sorted_in_steps
from ponor_broker.groups.assignors.subscribers import subscribers_by_topic


class RangeAssignor:
    """Divides the partitions of each topic into one range per subscriber, in the order of the members.

    Topics with the same subscribers and equally many partitions are divided at the same places, so that
    members can join them. Static members come first, ordered by instance id, so a member that restarts under
    another member id keeps its place. As in Kafka, the order alone keeps partitions where they are: previous
    targets and racks have no influence.
    """

    @property
    def name(self) -> str:
        return "range"

    def assign(
        self, members: Mapping[str, Subscriber], partition_counts: Mapping[bytes, int], racks: Racks | None
    ) -> Steps[Targets]:
        del racks
        budget = StepBudget()

        def place(member_id: str) -> tuple[bool, str, str]:
            instance_id = members[member_id].instance_id
            return instance_id is None, instance_id or "", member_id

        member_ids = yield from sorted_in_steps(members, budget, key=place)
        ordered = [members[member_id] for member_id in member_ids]
        subscribers = yield from subscribers_by_topic(ordered, partition_counts, budget)
        targets: Targets = {member_id: {} for member_id in member_ids}
        ranges: dict[tuple[int, int], list[frozenset[int]]] = {}
        for topic, positions in subscribers.items():
            division = (partition_counts[topic], len(positions))
            if division not in ranges:
                ranges[division] = yield from _divide(*division, budget)
            # Members beyond the last partition receive nothing.
            for position, partitions in zip(positions, ranges[division], strict=False):
                targets[member_ids[position]][topic] = partitions
                if budget.spend(1):
                    yield
        return targets


def _divide(partition_count: int, member_count: int, budget: StepBudget) -> Steps[list[frozenset[int]]]:
    """Divide partitions into ranges whose lengths differ by at most one, the longer ones first.

    Returns fewer ranges than members if there are fewer partitions.
    """
    minimum, extra = divmod(partition_count, member_count)
    ranges: list[frozenset[int]] = []
    start = 0
    for position in range(min(member_count, partition_count)):
        end = start + minimum + (position < extra)
        ranges.append(frozenset(range(start, end)))
        if budget.spend(1, light_items=end - start):
            yield
        start = end
    return ranges
