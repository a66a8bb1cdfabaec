"""A consumer group as a state machine without I/O: events in, records and timers out (KIP-848).

Each event works on the newest state and changes it immediately. The caller writes the records of the outcome
as one batch. If the log refuses the batch, the caller calls `take_back` within the same turn of the event
loop; otherwise it executes the timers. An answer is sent when the batch, and all batches before it, are
durable.

Source: Apache Kafka 4.3.1, with KIP-1251 (assignment epochs) and KIP-1263 (assignment interval).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from ponor_kafka.errors import ErrorCode
from ponor_runtime.turns import at_once

from ponor_broker.groups.assignors.assignment_input import Targets
from ponor_broker.groups.consumer import expressions, target
from ponor_broker.groups.consumer.admission import admit, member_of, remove, static_member_of
from ponor_broker.groups.consumer.assignment import (
    JOINING_EPOCH,
    STATIC_LEAVING_EPOCH,
    MemberState,
    plain,
)
from ponor_broker.groups.consumer.draft import Draft
from ponor_broker.groups.consumer.events import (
    HeartbeatAnswer,
    HeartbeatRefusedError,
    HeartbeatRequest,
    Outcome,
    TimerInstruction,
)
from ponor_broker.groups.consumer.expressions import Matches, Resolution
from ponor_broker.groups.consumer.member import ConsumerMember
from ponor_broker.groups.consumer.reconciliation import Target, reconcile
from ponor_broker.groups.consumer.records import (
    ConsumerEntry,
    CurrentEntry,
    CurrentKey,
    MemberEntry,
    MemberKey,
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
from ponor_broker.groups.consumer.topics import ImageTopics
from ponor_broker.groups.instructions import CancelTimer, SetTimer, Timer, TimerKind
from ponor_broker.groups.rebalance import GroupState

GROUP_TYPE: Final = "consumer"
NO_ROOM_RETRY_MS: Final = 1_000
"""Pause before a target for which there was no memory is computed again."""
_ASSIGNMENT_TIMER: Final = Timer(TimerKind.ASSIGNMENT)


def _session(member_id: str) -> Timer:
    return Timer(TimerKind.SESSION, member_id)


def _rebalance(member_id: str) -> Timer:
    return Timer(TimerKind.REBALANCE, member_id)


class ConsumerMembership:
    """The members of one consumer group."""

    def __init__(
        self,
        group_id: str,
        settings: ConsumerSettings,
        topics: ImageTopics,
        admits: Callable[[int], bool],
    ) -> None:
        """`admits` returns whether the group's memory may grow by a number of bytes."""
        self.contents: Final = ConsumerState()
        """The state, for reading only."""
        self._group_id = group_id
        self._settings = settings
        self._subscriptions = Subscriptions(group_id, self.contents, settings, topics)
        self._admits = admits
        self._may_assign = True
        """Whether the interval since the last computation has passed, and none runs."""
        self._is_dead = False

    # --- what other parts of the group read

    @property
    def state(self) -> GroupState:
        """State of the group."""
        contents = self.contents
        if self._is_dead:
            return GroupState.DEAD
        if not contents.members:
            return GroupState.EMPTY
        if contents.group_epoch > contents.assigned_epoch:
            return GroupState.ASSIGNING
        return GroupState.STABLE if contents.all_reached_target else GroupState.RECONCILING

    @property
    def group_type(self) -> str:
        """Kafka's name for this type of group."""
        return GROUP_TYPE

    @property
    def protocol_type(self) -> str:
        """Protocol type of the members."""
        return GROUP_TYPE

    @property
    def is_of_consumers(self) -> bool:
        """Whether subscriptions are known: always."""
        return True

    @property
    def is_unused(self) -> bool:
        """Whether there are no members. An empty group remains until its offsets expire, or it is deleted."""
        return self.state is GroupState.EMPTY

    @property
    def size_bytes(self) -> int:
        """Memory of members, targets and current assignments."""
        return self.contents.size_bytes

    @property
    def assignor(self) -> str:
        """The assignor that most members prefer; the default one if no member has a preference."""
        preferred = {
            name: count for name, count in self.contents.assignors.items() if name in self._settings.assignors
        }
        return min(
            preferred, key=lambda name: (-preferred[name], name), default=self._settings.default_assignor
        )

    def __len__(self) -> int:
        return len(self.contents.members)

    def subscribed_topics(self) -> frozenset[str]:
        """Return the names of the topics to which members subscribe."""
        return frozenset(self._subscriptions.names())

    def delete(self) -> ErrorCode:
        """Mark the group as dead; only possible without members."""
        if self._is_dead:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if self.contents.members:
            return ErrorCode.NON_EMPTY_GROUP
        self._is_dead = True
        return ErrorCode.NONE

    def revive(self) -> None:
        """Undo `delete`, because the tombstones were not written."""
        self._is_dead = False

    def tombstones(self) -> Iterator[ConsumerEntry]:
        """Yield the tombstones of a group without members."""
        return self.contents.tombstones(self._group_id)

    # --- heartbeats

    def heartbeat(self, request: HeartbeatRequest, now_ms: int) -> Outcome:
        """Handle a heartbeat whose form is valid: a member joins, continues or leaves.

        `now_ms` is the time since 1970.
        """
        outcome = Outcome(Draft(self.contents))
        try:
            if self._is_dead:
                raise HeartbeatRefusedError(
                    ErrorCode.COORDINATOR_NOT_AVAILABLE, "The group is being deleted."
                )
            if request.member_epoch < JOINING_EPOCH:
                outcome.answer = self._leave(request, outcome)
                self._assign_now(outcome, now_ms)
            else:
                outcome.answer = self._continue(request, outcome, now_ms)
        except HeartbeatRefusedError as refusal:
            self.take_back(outcome)
            outcome.answer = HeartbeatAnswer(refusal.code, str(refusal))
        return outcome

    def take_back(self, outcome: Outcome) -> None:
        """Undo an event whose records the log refused, in the same turn of the event loop."""
        outcome.draft.take_back()
        outcome.timers.clear()
        self._subscriptions.forget()
        self._may_assign |= outcome.has_assigned

    def _continue(self, request: HeartbeatRequest, outcome: Outcome, now_ms: int) -> HeartbeatAnswer:
        draft, contents, member_id = outcome.draft, self.contents, request.member_id
        self._check_size(request)
        replaced = admit(self._group_id, contents, request, draft)
        if replaced is not None:
            outcome.timers += [CancelTimer(_session(replaced)), CancelTimer(_rebalance(replaced))]
        before = contents.members.get(member_id)
        member = _updated(before or ConsumerMember(member_id), request)
        known = before or ConsumerMember(member_id)
        changed = (member.topics, member.expression or "") != (known.topics, known.expression or "")
        if member != before:
            if changed and member.expression and member.expression not in contents.expression_users:
                expressions.check(member.expression)
            draft.put(MemberEntry(MemberKey(self._group_id, member_id), member))
            self._subscriptions.drop_unused(before, draft)
            self._check_room(draft, is_new=before is None)
        self.refresh(draft, now_ms, changed=changed)
        self._assign_now(outcome, now_ms)
        former = contents.current_of(member_id) if before is not None else None
        self._reconcile(request, outcome, subscription_changed=changed and before is not None)
        outcome.timers.append(SetTimer(_session(member_id), self._settings.session_timeout_ms))
        current = contents.current_of(member_id)
        is_news = former is None or plain(former.assigned) != plain(current.assigned)
        return HeartbeatAnswer(
            ErrorCode.NONE,
            member_id=member_id,
            member_epoch=current.epoch,
            assignment=plain(current.assigned) if is_news or request.is_full else None,
        )

    def _check_size(self, request: HeartbeatRequest) -> None:
        contents, most = self.contents, self._settings.members_max
        is_member = request.member_id in contents.members or request.instance_id in contents.static_members
        if len(contents.members) >= most and not is_member:
            raise HeartbeatRefusedError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The consumer group has reached its maximum capacity of {most} members.",
            )

    def _check_room(self, draft: Draft, *, is_new: bool) -> None:
        """Refuse a member or a subscription for which there is no memory.

        A new member's client repeats its request. The client of an existing one tells the application, and
        the member keeps its subscription until it leaves.
        """
        if not self._admits(draft.growth_bytes):
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE if is_new else ErrorCode.GROUP_MAX_SIZE_REACHED
            what = "The member" if is_new else "The subscription"
            raise HeartbeatRefusedError(
                code, f"{what} needs more memory than groups_memory_bytes_max leaves on this broker."
            )

    def _reconcile(self, request: HeartbeatRequest, outcome: Outcome, *, subscription_changed: bool) -> None:
        contents, member_id = self.contents, request.member_id
        current = contents.current_of(member_id)
        if current.has_reached(contents.assigned_epoch) and not subscription_changed:
            if member_id not in contents.currents:
                outcome.draft.put(CurrentEntry(CurrentKey(self._group_id, member_id), current))
            return
        after = reconcile(
            current,
            Target(contents.assigned_epoch, contents.target_of(member_id)),
            subscribed=target.topic_ids_of(contents, member_id, self._subscriptions.known),
            owned=request.owned,
            is_held=lambda topic_id, index: contents.holder(topic_id, index) not in {None, member_id},
            subscription_changed=subscription_changed,
        )
        if after == current:
            return
        outcome.draft.put(CurrentEntry(CurrentKey(self._group_id, member_id), after))
        if after.state is MemberState.UNREVOKED_PARTITIONS:
            timeout_ms = max(0, contents.members[member_id].rebalance_timeout_ms)
            outcome.timers.append(SetTimer(_rebalance(member_id), timeout_ms))
        else:
            outcome.timers.append(CancelTimer(_rebalance(member_id)))

    # --- leaving

    def _leave(self, request: HeartbeatRequest, outcome: Outcome) -> HeartbeatAnswer:
        if request.instance_id is None:
            member_of(self._group_id, self.contents, request.member_id)
        else:
            static_member_of(self.contents, request)
        if request.member_epoch == STATIC_LEAVING_EPOCH:
            current = self.contents.current_of(request.member_id)
            away = replace(current, epoch=STATIC_LEAVING_EPOCH, revoking={})
            outcome.draft.put(CurrentEntry(CurrentKey(self._group_id, request.member_id), away))
            outcome.timers.append(CancelTimer(_rebalance(request.member_id)))
        else:
            self._remove(request.member_id, outcome)
        return HeartbeatAnswer(ErrorCode.NONE, member_id=request.member_id, member_epoch=request.member_epoch)

    def _remove(self, member_id: str, outcome: Outcome) -> None:
        draft, member = outcome.draft, self.contents.members[member_id]
        remove(self._group_id, self.contents, member_id, draft)
        self._subscriptions.drop_unused(member, draft)
        outcome.timers += [CancelTimer(_session(member_id)), CancelTimer(_rebalance(member_id))]
        self._subscriptions.raise_epoch(draft)

    def timer_fired(self, timer: Timer, now_ms: int) -> Outcome:
        """Handle a timer that was neither moved nor cancelled."""
        outcome = Outcome(Draft(self.contents))
        if timer.kind is TimerKind.ASSIGNMENT:
            self._may_assign = True
        elif timer.member_id in self.contents.members:
            current = self.contents.current_of(timer.member_id)
            is_overdue = current.state is MemberState.UNREVOKED_PARTITIONS
            if timer.kind is TimerKind.SESSION or is_overdue:
                self._remove(timer.member_id, outcome)
        self._assign_now(outcome, now_ms)
        return outcome

    # --- subscribed topics

    def refresh(self, draft: Draft, now_ms: int, *, changed: bool = False) -> None:
        """Raise the group epoch if the subscription of a member or a subscribed topic changed."""
        self._subscriptions.refresh(draft, now_ms, changed=changed)

    def needs_resolution(self, now_ms: int) -> bool:
        """Whether expressions must be resolved."""
        return self._subscriptions.needs_resolution(now_ms)

    def begin_resolution(self, now_ms: int) -> Resolution:
        """Start to resolve expressions. The caller runs the steps and calls `resolved`."""
        return self._subscriptions.begin_resolution(now_ms)

    def resolved(self, resolution: Resolution, matches: Matches, now_ms: int) -> Outcome:
        """Store which topics match."""
        outcome = Outcome(Draft(self.contents))
        self._subscriptions.resolved(outcome.draft, resolution, matches, now_ms)
        return outcome

    # --- target assignment

    @property
    def needs_target(self) -> bool:
        """Whether a computation is due."""
        contents = self.contents
        is_old = contents.group_epoch > contents.assigned_epoch
        return self._may_assign and is_old and bool(contents.members) and not self._is_dead

    def begin_computation(self) -> Computation:
        """Start to compute a target. The caller runs the steps and installs the result, or calls
        `retry_assignment`.
        """
        assert self.needs_target
        self._may_assign = False
        return target.begin(
            self.contents, self._subscriptions.looked_up(), self._settings.assignors[self.assignor]
        )

    def retry_assignment(self, delay_ms: int) -> list[TimerInstruction]:
        """Return the timer for another attempt, because a computation or its installation failed."""
        return [SetTimer(_ASSIGNMENT_TIMER, delay_ms)]

    def _assign_now(self, outcome: Outcome, now_ms: int) -> None:
        """Compute the target within this event, if the group is small."""
        partitions = sum(topic.partitions for topic in self._subscriptions.known.values())
        size = len(self.contents.members) + partitions
        if self.needs_target and size <= self._settings.assigned_at_once_max:
            computation = self.begin_computation()
            outcome.has_assigned = True
            before = len(outcome.draft.entries)
            for change in target.changes(self.contents, computation, at_once(computation.steps)):
                self._put_target(outcome, change)
            if self._admits(outcome.draft.growth_bytes):
                self._complete_target(outcome, computation, now_ms)
            else:
                self._postpone(outcome, before)

    def installation(self, computation: Computation, result: Targets, now_ms: int) -> Iterator[Outcome]:
        """Yield the parts of a target, each of which the caller writes before it takes the next one. The last
        part raises the epoch of the target. Without memory for a part, the target is computed again later.
        """
        part = Outcome(Draft(self.contents))
        for number, change in enumerate(target.changes(self.contents, computation, result), 1):
            self._put_target(part, change)
            if number % self._settings.targets_per_part == 0:
                if not self._admits(part.draft.growth_bytes):
                    break
                yield part
                part = Outcome(Draft(self.contents))
        if self._admits(part.draft.growth_bytes):
            self._complete_target(part, computation, now_ms)
        else:
            self._postpone(part, keep=0)
        yield part

    def _postpone(self, outcome: Outcome, keep: int) -> None:
        """Undo the targets of an outcome, and compute again later."""
        outcome.draft.take_back(keep)
        outcome.timers += self.retry_assignment(NO_ROOM_RETRY_MS)

    def _put_target(self, outcome: Outcome, change: Change | None) -> None:
        if change is not None:
            member_id, partitions = change
            outcome.draft.put(TargetEntry(TargetKey(self._group_id, member_id), partitions))

    def _complete_target(self, outcome: Outcome, computation: Computation, now_ms: int) -> None:
        epoch = TargetEpoch(computation.epoch, now_ms)
        outcome.draft.put(TargetEpochEntry(TargetEpochKey(self._group_id), epoch))
        interval_ms = self._settings.assignment_interval_ms
        self._may_assign = not interval_ms
        if interval_ms:
            outcome.timers.append(SetTimer(_ASSIGNMENT_TIMER, interval_ms))

    # --- load

    def restored(self) -> list[TimerInstruction]:
        """Return the timers after a load: every member has its full session, and its full time to revoke."""
        self.contents.drop_orphans()
        timers: list[TimerInstruction] = []
        for member_id, member in self.contents.members.items():
            timers.append(SetTimer(_session(member_id), self._settings.session_timeout_ms))
            if self.contents.current_of(member_id).state is MemberState.UNREVOKED_PARTITIONS:
                timers.append(SetTimer(_rebalance(member_id), max(0, member.rebalance_timeout_ms)))
        return timers

    def unloaded(self) -> list[TimerInstruction]:
        """Return the timers to cancel, because another broker coordinates the group now."""
        self._is_dead = True
        timers: list[TimerInstruction] = [CancelTimer(_ASSIGNMENT_TIMER)]
        for member_id in self.contents.members:
            timers += [CancelTimer(_session(member_id)), CancelTimer(_rebalance(member_id))]
        return timers


def _updated(member: ConsumerMember, request: HeartbeatRequest) -> ConsumerMember:
    """Return the member with the fields that the request contains."""
    timeout_ms = request.rebalance_timeout_ms
    return replace(
        member,
        client_id=request.client_id,
        client_host=request.client_host,
        instance_id=member.instance_id if request.instance_id is None else request.instance_id,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        topics=member.topics if request.topics is None else request.topics,
        expression=member.expression if request.expression is None else request.expression,
        rebalance_timeout_ms=member.rebalance_timeout_ms if timeout_ms is None else timeout_ms,
        assignor=member.assignor if request.assignor is None else request.assignor,
    )
