"""The step of a member from its current to its target assignment, as a pure function (KIP-848).

UNREVOKED_PARTITIONS   the member must revoke partitions that its target does not contain
UNRELEASED_PARTITIONS  the member waits for partitions that other members have not released
STABLE                 the member owns its target
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass, replace

from ponor_broker.groups.consumer.assignment import (
    CurrentAssignment,
    EpochedPartitions,
    MemberState,
    Partitions,
    intersects,
    united,
)


@dataclass(frozen=True, slots=True)
class Target:
    """The partitions that the group assigned to a member at an epoch."""

    epoch: int
    partitions: Partitions


def reconcile(
    current: CurrentAssignment,
    target: Target,
    *,
    subscribed: Container[bytes],
    owned: Partitions | None,
    is_held: Callable[[bytes, int], bool],
    subscription_changed: bool = False,
) -> CurrentAssignment:
    """Return the next current assignment; the given one if the member must wait.

    Args:
        current: what the member has.
        target: what the member must get.
        subscribed: ids of the member's topics. The target may be older than the subscription; a member gets
            no partition of another topic.
        owned: the partitions that the member reported with this heartbeat; None if it reported none.
        is_held: returns whether another member has a partition, or has not finished revoking it.
        subscription_changed: whether this heartbeat changed the subscription.
    """
    if current.state is MemberState.UNREVOKED_PARTITIONS and _owns_any(owned, current.revoking):
        return _without_unsubscribed(current, subscribed, owned) if subscription_changed else current
    if current.has_reached(target.epoch):
        return _without_unsubscribed(current, subscribed, owned) if subscription_changed else current
    return _towards(current, target, subscribed, owned, is_held)


def _owns_any(owned: Partitions | None, revoking: EpochedPartitions) -> bool:
    """Return whether the member may still use one of the partitions: without a report, it may."""
    return bool(revoking) and (owned is None or intersects(owned, revoking))


def _without_unsubscribed(
    current: CurrentAssignment, subscribed: Container[bytes], owned: Partitions | None
) -> CurrentAssignment:
    """Revoke the partitions of topics to which the member no longer subscribes. Their new owners are unknown
    until the next target, so the epoch remains.
    """
    lost = {topic_id: epochs for topic_id, epochs in current.assigned.items() if topic_id not in subscribed}
    if not lost:
        return current
    assigned = {topic_id: epochs for topic_id, epochs in current.assigned.items() if topic_id not in lost}
    revoking = united(current.revoking, lost)
    if _owns_any(owned, revoking):
        return CurrentAssignment(
            current.epoch, current.epoch, MemberState.UNREVOKED_PARTITIONS, assigned, revoking
        )
    return replace(current, previous_epoch=current.epoch, assigned=assigned)


def _towards(
    current: CurrentAssignment,
    target: Target,
    subscribed: Container[bytes],
    owned: Partitions | None,
    is_held: Callable[[bytes, int], bool],
) -> CurrentAssignment:
    wanted = {topic_id: each for topic_id, each in target.partitions.items() if topic_id in subscribed}
    assigned: dict[bytes, dict[int, int]] = {}
    revoking: dict[bytes, dict[int, int]] = {}
    for topic_id, epochs in current.assigned.items():
        keeps = wanted.get(topic_id, frozenset())
        for partition, epoch in epochs.items():
            part = assigned if partition in keeps else revoking
            part.setdefault(topic_id, {})[partition] = epoch
    if _owns_any(owned, revoking):
        return CurrentAssignment(
            current.epoch, current.epoch, MemberState.UNREVOKED_PARTITIONS, assigned, revoking
        )
    is_whole = True
    for topic_id, indexes in wanted.items():
        for partition in indexes - assigned.get(topic_id, {}).keys():
            if is_held(topic_id, partition):
                is_whole = False
            else:
                assigned.setdefault(topic_id, {})[partition] = target.epoch
    state = MemberState.STABLE if is_whole else MemberState.UNRELEASED_PARTITIONS
    if (target.epoch, state, assigned, {}) == (
        current.epoch,
        current.state,
        current.assigned,
        current.revoking,
    ):
        return current
    return CurrentAssignment(target.epoch, current.epoch, state, assigned)
