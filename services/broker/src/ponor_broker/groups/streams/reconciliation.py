"""The step of a member from its current to its target assignment, as a pure function (KIP-1071).

UNREVOKED_TASKS   the member must revoke tasks that its target does not contain
UNRELEASED_TASKS  the member waits for tasks that other members have not released
STABLE            the member has its target
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from ponor_broker.groups.streams.assignment import CurrentAssignment, MemberState, TaskId, Tasks


@dataclass(frozen=True, slots=True)
class Target:
    """The tasks that the group assigned to a member at an epoch."""

    epoch: int
    tasks: Tasks


def reconcile(
    current: CurrentAssignment,
    target: Target,
    *,
    owned: Tasks | None,
    may_execute: Callable[[TaskId], bool],
    may_restore: Callable[[TaskId], bool],
) -> CurrentAssignment:
    """Return the next current assignment; the given one if the member must wait.

    Args:
        current: what the member has.
        target: what the member must get.
        owned: the tasks that the member reported with this heartbeat; None if it reported none.
        may_execute: returns whether an active task is free: no other member executes it, and no other member
            of the same process has it.
        may_restore: returns whether a standby task is free: no other member of the same process has it.
    """
    epoch = current.epoch
    if current.state is MemberState.UNREVOKED_TASKS:
        if _has_any(owned, current.revoking_active.keys(), current.revoking_standby):
            return current
        epoch += 1  # the revocation is a step of its own, as in Kafka
    elif current.has_reached(target.epoch):
        return current
    kept = {task: since for task, since in current.active.items() if task in target.tasks.active}
    revoked = {task: since for task, since in current.active.items() if task not in kept}
    kept_standby = current.standby & target.tasks.standby
    revoked_standby = current.standby - kept_standby
    if _has_any(owned, revoked.keys(), revoked_standby):
        return CurrentAssignment(
            epoch, current.epoch, MemberState.UNREVOKED_TASKS, kept, kept_standby, revoked, revoked_standby
        )
    wanted, wanted_standby = target.tasks.active - kept.keys(), target.tasks.standby - kept_standby
    free, free_standby = set(filter(may_execute, wanted)), set(filter(may_restore, wanted_standby))
    is_whole = len(free) == len(wanted) and len(free_standby) == len(wanted_standby)
    state = MemberState.STABLE if is_whole else MemberState.UNRELEASED_TASKS
    active = kept | dict.fromkeys(free, target.epoch)
    after = CurrentAssignment(target.epoch, current.epoch, state, active, kept_standby | free_standby)
    is_same = replace(after, previous_epoch=current.previous_epoch) == current
    return current if is_same else after


def _has_any(owned: Tasks | None, active: Collection[TaskId], standby: frozenset[TaskId]) -> bool:
    """Return whether the member may still use one of the tasks: without a report, it may."""
    if not active and not standby:
        return False
    return owned is None or not (owned.active.isdisjoint(active) and owned.standby.isdisjoint(standby))
