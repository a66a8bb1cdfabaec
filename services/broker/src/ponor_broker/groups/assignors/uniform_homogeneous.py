"""Uniform assignment if all members subscribe to the same topics.

Each member has a quota, which is the quotient of partitions and members, rounded down or up. A member above
its quota releases the difference, and members below theirs receive what has no owner. So the sizes differ by
at most one, and no other assignment with such sizes moves fewer partitions.
"""

from __future__ import annotations

from ponor_runtime.turns import Steps

from ponor_broker.groups.assignors.holdings import Holdings
from ponor_broker.groups.assignors.steps import StepBudget, sorted_in_steps


def assign_equal_subscriptions(holdings: Holdings, budget: StepBudget) -> Steps[None]:
    """Assign all free partitions, and balance the members."""
    quotas = yield from _quotas(holdings, budget)
    for member, quota in enumerate(quotas):
        excess = holdings.sizes[member] - quota
        if excess > 0:
            yield from _release(holdings, member, excess, budget)
        if budget.spend(1):
            yield
    yield from _hand_out(holdings, quotas, budget)


def _quotas(holdings: Holdings, budget: StepBudget) -> Steps[list[int]]:
    """Compute the number of partitions that each member will have.

    Members that have the larger number of partitions already come first, since this saves movements. Then the
    order of the members decides. Kafka considers only the order.
    """
    sizes = holdings.sizes
    total = sum(sizes) + sum(map(len, holdings.free.values()))
    minimum, extra = divmod(total, len(sizes))
    extra_for_large = min(extra, sum(map(minimum.__lt__, sizes)))
    extra_for_small = extra - extra_for_large
    quotas: list[int] = []
    for size in sizes:
        if size > minimum and extra_for_large:
            extra_for_large -= 1
            quotas.append(minimum + 1)
        elif size <= minimum and extra_for_small:
            extra_for_small -= 1
            quotas.append(minimum + 1)
        else:
            quotas.append(minimum)
        if budget.spend(1):
            yield
    return quotas


def _release(holdings: Holdings, member: int, excess: int, budget: StepBudget) -> Steps[None]:
    """Take partitions from a member, beginning with the last ones of its last topic."""
    topics = yield from sorted_in_steps(holdings.held[member], budget, key=bytes)
    for topic in reversed(topics):
        partitions = sorted(holdings.held[member][topic])
        kept = partitions[:-excess]
        released = partitions[-excess:]
        holdings.keep(member, topic, kept)
        holdings.free[topic].update(released)
        excess -= len(released)
        if budget.spend(2, light_items=len(partitions)):
            yield
        if not excess:
            return


def _hand_out(holdings: Holdings, quotas: list[int], budget: StepBudget) -> Steps[None]:
    """Give the free partitions, in order, to the members below their quota, in order."""
    member = 0
    for topic, free in holdings.free.items():
        partitions = sorted(free)
        start = 0
        while start < len(partitions):
            room = quotas[member] - holdings.sizes[member]
            if room:
                share = partitions[start : start + room]
                holdings.add(member, topic, share)
                start += len(share)
            else:
                member += 1
            if budget.spend(1):
                yield
        free.clear()
        if budget.spend(1, light_items=len(partitions)):
            yield
