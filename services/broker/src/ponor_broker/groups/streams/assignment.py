"""Tasks of a member: its target, and its current assignment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, NamedTuple


class TaskId(NamedTuple):
    """A task: partition n of all source topics of a subtopology."""

    subtopology_id: str
    partition: int


@dataclass(frozen=True, slots=True)
class Tasks:
    """Tasks of a member.

    Attributes:
        active: tasks that the member executes.
        standby: tasks whose state the member copies, to take them over quickly.
    """

    active: frozenset[TaskId] = frozenset()
    standby: frozenset[TaskId] = frozenset()

    def __len__(self) -> int:
        return len(self.active) + len(self.standby)


NO_TASKS: Final = Tasks()
JOINING_EPOCH: Final = 0


class MemberState(IntEnum):
    """State of a member's reconciliation; the values are those of Kafka's records."""

    STABLE = 0
    UNREVOKED_TASKS = 1
    UNRELEASED_TASKS = 2


@dataclass(frozen=True, slots=True)
class CurrentAssignment:
    """What a member may execute, and what it must revoke first.

    Attributes:
        epoch: the epoch of the target that the member has reached.
        previous_epoch: the epoch before; the member sends it if it did not receive the answer.
        active: active tasks that the member may execute, with the epoch at which it got each.
        standby: standby tasks that the member may restore.
        revoking_active: active tasks that the member must revoke, with their epochs.
        revoking_standby: standby tasks that the member must revoke.
    """

    epoch: int = JOINING_EPOCH
    previous_epoch: int = JOINING_EPOCH
    state: MemberState = MemberState.STABLE
    active: Mapping[TaskId, int] = field(default_factory=dict)
    standby: frozenset[TaskId] = frozenset()
    revoking_active: Mapping[TaskId, int] = field(default_factory=dict)
    revoking_standby: frozenset[TaskId] = frozenset()

    @property
    def tasks(self) -> Tasks:
        """The tasks that the member may use."""
        return Tasks(frozenset(self.active), self.standby)

    @property
    def held(self) -> Tasks:
        """The tasks that the member may use, and those that it must revoke."""
        active = frozenset(self.active).union(self.revoking_active)
        return Tasks(active, self.standby | self.revoking_standby)

    def has_reached(self, target_epoch: int) -> bool:
        """Return whether the member needs no further step."""
        return self.state is MemberState.STABLE and self.epoch == target_epoch

    def epoch_of(self, task: TaskId) -> int | None:
        """Return the epoch at which the member got an active task; None if it does not have it."""
        epoch = self.active.get(task)
        return self.revoking_active.get(task) if epoch is None else epoch


NEW_MEMBER: Final = CurrentAssignment()
