"""When a streams group computes its target assignment, and how the result becomes records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from ponor_runtime.turns import Steps, at_once

from ponor_broker.groups.consumer.records import TargetEpoch
from ponor_broker.groups.instructions import SetTimer, Timer, TimerKind
from ponor_broker.groups.outcome import Draft, TimerInstruction
from ponor_broker.groups.streams.assignment import NO_TASKS, Tasks
from ponor_broker.groups.streams.configured_topology import ConfiguredTopology, Status, StatusCode
from ponor_broker.groups.streams.events import Outcome
from ponor_broker.groups.streams.records import RecordKind, StreamsEntry, StreamsKey
from ponor_broker.groups.streams.settings import StreamsSettings
from ponor_broker.groups.streams.state import StreamsState
from ponor_broker.groups.streams.task_assignor import AssignedMember, StickyTaskAssignor, Targets, TaskDemand

NO_ROOM_RETRY_MS: Final = 1_000
"""Pause before a target for which there was no memory is computed again."""
ASSIGNMENT_TIMER: Final = Timer(TimerKind.ASSIGNMENT)
_MEMBERS_PER_STEP: Final = 200
_INITIAL_DELAY: Final = "Assignment delayed due to the configured initial rebalance delay."
_INTERVAL: Final = "Assignment delayed due to the configured assignment interval."


@dataclass(frozen=True, slots=True)
class Computation:
    """A computation that began at a group epoch."""

    epoch: int
    steps: Steps[Targets]


class TargetAssigning:
    """The computations of one group: one at a time, with an interval between them."""

    def __init__(
        self,
        group_id: str,
        contents: StreamsState,
        settings: StreamsSettings,
        admits: Callable[[int], bool],
    ) -> None:
        self._group_id = group_id
        self._contents = contents
        self._settings = settings
        self._admits = admits
        self._may_assign = True
        """Whether no computation runs, and no pause before the next one."""
        self._is_first_delayed = False
        """Whether the pause is the one for more members."""

    @property
    def is_old(self) -> bool:
        """Whether the target is older than the group epoch."""
        return self._contents.group.epoch > self._contents.assigned_epoch and bool(self._contents.members)

    @property
    def is_due(self) -> bool:
        """Whether a computation is due."""
        return self._may_assign and self.is_old

    def delay_first(self, outcome: Outcome) -> None:
        """Wait for more members of an empty group, before the first one gets all tasks."""
        if self._settings.initial_delay_in_force_ms and not self._is_first_delayed:
            self._may_assign, self._is_first_delayed = False, True
            outcome.has_taken_turn = True
            outcome.timers.append(SetTimer(ASSIGNMENT_TIMER, self._settings.initial_delay_in_force_ms))

    def allow(self) -> None:
        """Allow a computation, because a pause ended, or because the log refused what began it."""
        self._may_assign, self._is_first_delayed = True, False

    def begin(self, configured: ConfiguredTopology) -> Computation:
        """Start to compute a target."""
        self._may_assign = False
        return Computation(self._contents.group.epoch, self._compute(configured))

    def _compute(self, configured: ConfiguredTopology) -> Steps[Targets]:
        contents = self._contents
        if not configured.is_ready:
            return dict.fromkeys(contents.members, NO_TASKS)
        assert contents.topology is not None
        subtopologies = contents.topology.subtopologies
        stateful = frozenset(each.subtopology_id for each in subtopologies if each.changelogs)
        members: dict[str, AssignedMember] = {}
        for number, member_id in enumerate(list(contents.members), 1):
            member = contents.members.get(member_id)
            if member is not None:
                members[member_id] = AssignedMember(member.process_id, contents.target_of(member_id))
            if number % _MEMBERS_PER_STEP == 0:
                yield
        demand = TaskDemand(configured.tasks, stateful, self._settings.standby_replicas_in_force)
        return (yield from StickyTaskAssignor(members, demand).assign())

    def retry(self, delay_ms: int) -> list[TimerInstruction]:
        """Return the timer for another attempt."""
        return [SetTimer(ASSIGNMENT_TIMER, delay_ms)]

    def assign_now(self, configured: ConfiguredTopology, outcome: Outcome, now_ms: int) -> None:
        """Compute the target within this event, if it is due and the group is small. Otherwise the answer
        contains a status.
        """
        if not self.is_old:
            return
        if not self._may_assign:
            detail = _INITIAL_DELAY if self._is_first_delayed else _INTERVAL
            outcome.statuses.append(Status(StatusCode.ASSIGNMENT_DELAYED, detail))
            return
        tasks = sum(configured.tasks.values()) * (1 + self._settings.standby_replicas_in_force)
        if len(self._contents.members) + tasks > self._settings.assigned_at_once_max:
            detail = "Assignment delayed because it is being computed."
            outcome.statuses.append(Status(StatusCode.ASSIGNMENT_DELAYED, detail))
            return
        computation = self.begin(configured)
        outcome.has_taken_turn = True
        before = len(outcome.draft.entries)
        for member_id, target in at_once(computation.steps).items():
            self._put(outcome, member_id, target)
        if self._admits(outcome.draft.growth_bytes):
            self._complete(outcome, computation, now_ms)
        else:
            self._postpone(outcome, before)

    def installation(self, computation: Computation, result: Targets, now_ms: int) -> Iterator[Outcome]:
        """Yield the parts of a target, each of which the caller writes before it takes the next one. The last
        part raises the epoch of the target. Without memory for a part, the target is computed again later.
        """
        part = Outcome(Draft(self._contents))
        for number, (member_id, target) in enumerate(result.items(), 1):
            self._put(part, member_id, target)
            if number % self._settings.targets_per_part == 0:
                if not self._admits(part.draft.growth_bytes):
                    break
                yield part
                part = Outcome(Draft(self._contents))
        if self._admits(part.draft.growth_bytes):
            self._complete(part, computation, now_ms)
        else:
            self._postpone(part, keep=0)
        yield part

    def _put(self, outcome: Outcome, member_id: str, target: Tasks) -> None:
        # Members may have left during the computation.
        if member_id in self._contents.members and target != self._contents.targets.get(member_id):
            outcome.draft.put(StreamsEntry(StreamsKey(RecordKind.TARGET, self._group_id, member_id), target))

    def _complete(self, outcome: Outcome, computation: Computation, now_ms: int) -> None:
        epoch = TargetEpoch(computation.epoch, now_ms)
        outcome.draft.put(StreamsEntry(StreamsKey(RecordKind.TARGET_EPOCH, self._group_id), epoch))
        interval_ms = self._settings.assignment_interval_in_force_ms
        self._may_assign = not interval_ms
        if interval_ms:
            outcome.timers.append(SetTimer(ASSIGNMENT_TIMER, interval_ms))

    def _postpone(self, outcome: Outcome, keep: int) -> None:
        """Undo the targets of an outcome, and compute again later."""
        outcome.draft.take_back(keep)
        outcome.timers += self.retry(NO_ROOM_RETRY_MS)
