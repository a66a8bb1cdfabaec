"""Subscribers of each topic."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import TypeAlias

from ponor_runtime.turns import Steps

from ponor_broker.groups.assignors.assignment_input import Subscriber
from ponor_broker.groups.assignors.steps import StepBudget, batches, sorted_in_steps

Subscribers: TypeAlias = dict[bytes, Sequence[int]]
"""Positions of the subscribed members, ascending, by topic id. The topics are sorted by id.

Topics with the same subscribers share one sequence.
"""


def subscribers_by_topic(
    members: Sequence[Subscriber], partition_counts: Mapping[bytes, int], budget: StepBudget
) -> Steps[Subscribers]:
    """Find the subscribers of each topic that has a partition count.

    Members with equal subscriptions are handled together, because most groups have few different ones. Arrays
    hold the numbers, since the release of many large lists would take longer than a step.
    """
    members_by_subscription: dict[frozenset[bytes], list[int]] = {}
    for position, member in enumerate(members):
        members_by_subscription.setdefault(member.topics, []).append(position)
        if budget.spend(1, light_items=len(member.topics)):
            yield
    numbers_by_topic = yield from _subscription_numbers(members_by_subscription, partition_counts, budget)
    classes = list(members_by_subscription.values())
    topics = yield from sorted_in_steps(numbers_by_topic, budget, key=bytes)
    shared: dict[bytes, Sequence[int]] = {}
    subscribers: Subscribers = {}
    for topic in topics:
        numbers = numbers_by_topic[topic]
        key = numbers.tobytes()
        positions = shared.get(key)
        if positions is None:
            ascending = sorted(chain.from_iterable(classes[number] for number in numbers))
            positions = shared[key] = array("I", ascending)
            if budget.spend(len(positions)):
                yield
        subscribers[topic] = positions
        if budget.spend(1, light_items=len(numbers)):
            yield
    return subscribers


def _subscription_numbers(
    subscriptions: Iterable[frozenset[bytes]], partition_counts: Mapping[bytes, int], budget: StepBudget
) -> Steps[dict[bytes, array[int]]]:
    """Return the numbers of the subscriptions that contain each topic, ascending."""
    numbers_by_topic: dict[bytes, array[int]] = {}
    for number, subscription in enumerate(subscriptions):
        for batch in batches(subscription):
            for topic in batch:
                if topic in numbers_by_topic:
                    numbers_by_topic[topic].append(number)
                elif topic in partition_counts:
                    numbers_by_topic[topic] = array("I", (number,))
            if budget.spend(len(batch)):
                yield
    return numbers_by_topic
