"""The `uniform` assignor: equal numbers of partitions, few movements."""

from __future__ import annotations

from collections.abc import Mapping

from ponor_runtime.turns import Steps

from ponor_broker.groups.assignors.assignment_input import Racks, Subscriber, Targets
from ponor_broker.groups.assignors.holdings import retained_holdings
from ponor_broker.groups.assignors.steps import StepBudget, sorted_in_steps
from ponor_broker.groups.assignors.subscribers import subscribers_by_topic
from ponor_broker.groups.assignors.uniform_heterogeneous import assign_different_subscriptions
from ponor_broker.groups.assignors.uniform_homogeneous import assign_equal_subscriptions


class UniformAssignor:
    """Balances the number of partitions per member, then keeps partitions where they are.

    Ties are broken by member id and topic id. Racks have no influence, as in Kafka 4.
    """

    @property
    def name(self) -> str:
        return "uniform"

    def assign(
        self, members: Mapping[str, Subscriber], partition_counts: Mapping[bytes, int], racks: Racks | None
    ) -> Steps[Targets]:
        del racks
        budget = StepBudget()
        member_ids = yield from sorted_in_steps(members, budget, key=str)
        ordered = [members[member_id] for member_id in member_ids]
        subscribers = yield from subscribers_by_topic(ordered, partition_counts, budget)
        holdings = yield from retained_holdings(ordered, subscribers, partition_counts, budget)
        if all(len(positions) == len(ordered) for positions in subscribers.values()):
            if subscribers:
                yield from assign_equal_subscriptions(holdings, budget)
        else:
            yield from assign_different_subscriptions(
                ordered, subscribers, partition_counts, holdings, budget
            )
        return dict(zip(member_ids, holdings.held, strict=True))
