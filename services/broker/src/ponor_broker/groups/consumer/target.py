"""The computation of a group's target assignment: its input, and the installation of its result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from ponor_runtime.turns import Steps

from ponor_broker.groups.assignors.assignment_input import Assignor, Subscriber, Targets
from ponor_broker.groups.consumer.assignment import Partitions
from ponor_broker.groups.consumer.state import ConsumerState
from ponor_broker.groups.consumer.topics import Topic

SUBSCRIBERS_PER_STEP: Final = 200
"""Members whose subscriptions one step copies."""

Change: TypeAlias = tuple[str, Partitions]
"""A member id and its new target."""


@dataclass(frozen=True, slots=True)
class Computation:
    """A computation that began at a group epoch."""

    epoch: int
    steps: Steps[Targets]
    static_ids: Mapping[str, str]
    """Instance ids of the static members at the begin, by member id."""


def topic_ids_of(state: ConsumerState, member_id: str, known: Mapping[str, Topic]) -> frozenset[bytes]:
    """Return the ids of the topics to which a member subscribes by name or expression."""
    member = state.members[member_id]
    names = member.topics
    if member.expression and (resolved := state.expressions.get(member.expression)) is not None:
        names |= resolved.topics
    return frozenset(known[name].topic_id for name in names if name in known)


def begin(state: ConsumerState, known: Mapping[str, Topic], assignor: Assignor) -> Computation:
    """Start to compute the target for the current group epoch. Events may change the state meanwhile."""
    topics = {topic.topic_id: topic.partitions for topic in known.values()}
    static_ids = {member_id: instance_id for instance_id, member_id in state.static_members.items()}
    return Computation(state.group_epoch, _compute(state, dict(known), topics, assignor), static_ids)


def _compute(
    state: ConsumerState, known: Mapping[str, Topic], topics: Mapping[bytes, int], assignor: Assignor
) -> Steps[Targets]:
    subscribers: dict[str, Subscriber] = {}
    ids: dict[tuple[frozenset[str], str | None], frozenset[bytes]] = {}
    for number, member_id in enumerate(list(state.members), 1):
        member = state.members.get(member_id)
        if member is not None:
            # Members with equal subscriptions share one set of topic ids.
            subscription = member.topics, member.expression
            if subscription not in ids:
                ids[subscription] = topic_ids_of(state, member_id, known)
            subscribers[member_id] = Subscriber(
                ids[subscription], state.target_of(member_id), member.instance_id, member.rack_id
            )
        if number % SUBSCRIBERS_PER_STEP == 0:
            yield
    return (yield from assignor.assign(subscribers, topics, None))


def changes(state: ConsumerState, computation: Computation, result: Targets) -> Iterator[Change | None]:
    """Yield the members whose target changes; None for every other member.

    Members may have joined or left during the computation. The successor of a static member gets its target.
    """
    for member_id, target in result.items():
        owner: str | None = member_id
        if member_id not in state.members:
            owner = state.static_members.get(computation.static_ids.get(member_id, ""))
        is_changed = owner is not None and target != state.target_of(owner)
        yield (owner, target) if is_changed and owner is not None else None
