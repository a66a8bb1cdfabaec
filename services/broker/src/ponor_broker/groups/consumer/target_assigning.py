"""When a consumer group computes its target assignment, and how the result becomes records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from ponor_runtime.turns import at_once

from ponor_broker.groups.assignors.assignment_input import Targets
from ponor_broker.groups.consumer import target
from ponor_broker.groups.consumer.events import Outcome
from ponor_broker.groups.consumer.records import (
    TargetEntry,
    TargetEpoch,
    TargetEpochEntry,
    TargetEpochKey,
    TargetKey,
)
from ponor_broker.groups.consumer.settings import ConsumerSettings
from ponor_broker.groups.consumer.state import ConsumerState
from ponor_broker.groups.consumer.subscriptions import Subscriptions
from ponor_broker.groups.consumer.target import Change, Computation
from ponor_broker.groups.instructions import SetTimer, Timer, TimerKind
from ponor_broker.groups.outcome import Draft, TimerInstruction

NO_ROOM_RETRY_MS: Final = 1_000
"""Pause before a target for which there was no memory is computed again."""
ASSIGNMENT_TIMER: Final = Timer(TimerKind.ASSIGNMENT)


class TargetAssigning:
    """The computations of one group: one at a time, with an interval between them."""

    def __init__(
        self,
        group_id: str,
        contents: ConsumerState,
        settings: ConsumerSettings,
        subscriptions: Subscriptions,
        admits: Callable[[int], bool],
    ) -> None:
        self._group_id = group_id
        self._contents = contents
        self._settings = settings
        self._subscriptions = subscriptions
        self._admits = admits
        self.may_assign = True
        """Whether the interval since the last computation has passed, and none runs."""

    @property
    def is_due(self) -> bool:
        """Whether a computation is due."""
        is_old = self._contents.group_epoch > self._contents.assigned_epoch
        return self.may_assign and is_old and bool(self._contents.members)

    def begin(self, assignor: str) -> Computation:
        """Start to compute a target."""
        self.may_assign = False
        return target.begin(
            self._contents, self._subscriptions.looked_up(), self._settings.assignors[assignor]
        )

    def retry(self, delay_ms: int) -> list[TimerInstruction]:
        """Return the timer for another attempt."""
        return [SetTimer(ASSIGNMENT_TIMER, delay_ms)]

    def assign_now(self, assignor: str, outcome: Outcome, now_ms: int) -> None:
        """Compute the target within this event, if the group is small."""
        partitions = sum(topic.partitions for topic in self._subscriptions.known.values())
        if len(self._contents.members) + partitions > self._settings.assigned_at_once_max:
            return
        computation = self.begin(assignor)
        outcome.has_assigned = True
        before = len(outcome.draft.entries)
        for change in target.changes(self._contents, computation, at_once(computation.steps)):
            self._put(outcome, change)
        if self._admits(outcome.draft.growth_bytes):
            self._complete(outcome, computation, now_ms)
        else:
            self._postpone(outcome, before)

    def installation(self, computation: Computation, result: Targets, now_ms: int) -> Iterator[Outcome]:
        """Yield the parts of a target; see `ConsumerMembership.installation`."""
        part = Outcome(Draft(self._contents))
        for number, change in enumerate(target.changes(self._contents, computation, result), 1):
            if self._is_replaced(computation):
                return
            self._put(part, change)
            if number % self._settings.targets_per_part == 0:
                if not self._admits(part.draft.growth_bytes):
                    break
                yield part
                part = Outcome(Draft(self._contents))
        if self._is_replaced(computation):
            return
        if self._admits(part.draft.growth_bytes):
            self._complete(part, computation, now_ms)
        else:
            self._postpone(part, keep=0)
        yield part

    def _is_replaced(self, computation: Computation) -> bool:
        """Whether the group has a newer target. If the log refuses the records of a timer, the timer fires
        again, perhaps during the next computation. If the group has become small, the next event then assigns
        before that computation ends.
        """
        return computation.epoch <= self._contents.assigned_epoch

    def _put(self, outcome: Outcome, change: Change | None) -> None:
        if change is not None:
            member_id, partitions = change
            outcome.draft.put(TargetEntry(TargetKey(self._group_id, member_id), partitions))

    def _complete(self, outcome: Outcome, computation: Computation, now_ms: int) -> None:
        epoch = TargetEpoch(computation.epoch, now_ms)
        outcome.draft.put(TargetEpochEntry(TargetEpochKey(self._group_id), epoch))
        interval_ms = self._settings.assignment_interval_in_force_ms
        self.may_assign = not interval_ms
        if interval_ms:
            outcome.timers.append(SetTimer(ASSIGNMENT_TIMER, interval_ms))

    def _postpone(self, outcome: Outcome, keep: int) -> None:
        """Undo the targets of an outcome, and compute again later."""
        outcome.draft.take_back(keep)
        outcome.timers += self.retry(NO_ROOM_RETRY_MS)
