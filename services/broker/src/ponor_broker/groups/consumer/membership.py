"""A consumer group as a state machine without I/O: events in, records and timers out (KIP-848).

Each event works on the newest state and changes it immediately. The caller writes the records of the outcome
as one batch. If the log refuses the batch, the caller calls `take_back` within the same turn of the event
loop; otherwise it executes the timers. An answer is sent when the batch, and all batches before it, are
durable.

Source: Apache Kafka 4.3.1, with KIP-1251 (assignment epochs) and KIP-1263 (assignment interval).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from ponor_kafka.errors import ErrorCode

from ponor_broker.groups.assignors.assignment_input import Targets
from ponor_broker.groups.consumer import expressions, target
from ponor_broker.groups.consumer.admission import admit, member_of, remove, static_member_of
from ponor_broker.groups.consumer.assignment import (
    JOINING_EPOCH,
    STATIC_LEAVING_EPOCH,
    MemberState,
    plain,
)
from ponor_broker.groups.consumer.classic_members import ClassicMembers
from ponor_broker.groups.consumer.events import HeartbeatAnswer, HeartbeatRequest, Outcome
from ponor_broker.groups.consumer.expressions import Matches, Resolution
from ponor_broker.groups.consumer.member import ConsumerMember
from ponor_broker.groups.consumer.reconciliation import Target, reconcile
from ponor_broker.groups.consumer.records import (
    ConsumerEntry,
    CurrentEntry,
    CurrentKey,
    MemberEntry,
    MemberKey,
)
from ponor_broker.groups.consumer.settings import ConsumerSettings
from ponor_broker.groups.consumer.state import ConsumerState
from ponor_broker.groups.consumer.subscriptions import Subscriptions
from ponor_broker.groups.consumer.target import Computation
from ponor_broker.groups.consumer.target_assigning import ASSIGNMENT_TIMER, TargetAssigning
from ponor_broker.groups.consumer.topics import ImageTopics
from ponor_broker.groups.events import JoinRequest, MemberClaim, SyncRequest
from ponor_broker.groups.group_counters import CONSUMER_TYPE
from ponor_broker.groups.instructions import (
    CancelTimer,
    LeaveAnswer,
    SetTimer,
    SyncAnswer,
    Timer,
    TimerKind,
)
from ponor_broker.groups.member import CONSUMER_PROTOCOL_TYPE
from ponor_broker.groups.outcome import Draft, GroupOutcome, HeartbeatRefusedError, TimerInstruction
from ponor_broker.groups.rebalance import GroupState
from ponor_broker.groups.server_assigned_membership import MembersOfGroup, rebalance_timer, session_timer


class ConsumerMembership(MembersOfGroup[ConsumerState]):
    """The members of one consumer group."""

    def __init__(
        self,
        group_id: str,
        settings: ConsumerSettings,
        topics: ImageTopics,
        admits: Callable[[int], bool],
    ) -> None:
        super().__init__(ConsumerState(), admits)
        self._group_id = group_id
        self._settings = settings
        self._subscriptions = Subscriptions(group_id, self.contents, settings, topics, admits)
        self._classic = ClassicMembers(self.contents, settings, topics)
        self._assigning = TargetAssigning(group_id, self.contents, settings, self._subscriptions, admits)
        self._may_downgrade = True

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
        return CONSUMER_TYPE

    @property
    def protocol_type(self) -> str:
        """Protocol type of the members."""
        return CONSUMER_PROTOCOL_TYPE

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

    def subscribed_topics(self) -> frozenset[str]:
        """Return the names of the topics to which members subscribe."""
        return frozenset(self._subscriptions.names())

    def entries(self) -> Iterator[ConsumerEntry]:
        """Yield one record per key, with its value when the iteration reaches it, if it still exists."""
        return self.contents.entries(self._group_id)

    def tombstones(self) -> Iterator[ConsumerEntry]:
        """Yield the tombstones of all records."""
        return self.contents.tombstones(self._group_id)

    def stay(self) -> None:
        """Never become a classic group, because the log refuses the records of so large a group."""
        self._may_downgrade = False

    # --- heartbeats and joins

    def heartbeat(self, request: HeartbeatRequest, now_ms: int) -> Outcome:
        """Handle a heartbeat whose form is valid: a member joins, continues or leaves.

        `now_ms` is the time since 1970.
        """
        if request.member_epoch < JOINING_EPOCH:
            return self._handle(lambda outcome: self._leave(request, outcome, now_ms))
        return self._handle(lambda outcome: self._continue(request, outcome, now_ms))

    def join(self, request: JoinRequest, now_ms: int) -> Outcome:
        """Handle a JoinGroup, whose generation is the member epoch of the answer."""
        outcome = self._handle(
            lambda outcome: self._continue(self._classic.translated(request), outcome, now_ms)
        )
        if outcome.answer is not None and outcome.answer.error is ErrorCode.MEMBER_ID_REQUIRED:
            outcome.answer = replace(outcome.answer, member_id=request.new_member_id)
        return outcome

    def _handle(self, event: Callable[[Outcome], HeartbeatAnswer]) -> Outcome:
        outcome = Outcome(Draft(self.contents))
        try:
            self._check_alive()
            outcome.answer = event(outcome)
        except HeartbeatRefusedError as refusal:
            self.take_back(outcome)
            outcome.is_downgrade = False
            outcome.answer = HeartbeatAnswer(refusal.code, str(refusal))
        return outcome

    def take_back(self, outcome: GroupOutcome[ConsumerEntry, HeartbeatAnswer]) -> None:
        """Undo an event whose records the log refused, in the same turn of the event loop."""
        if outcome.draft.entries:
            self._subscriptions.forget()
        outcome.draft.take_back()
        outcome.timers.clear()
        self._assigning.may_assign |= isinstance(outcome, Outcome) and outcome.has_assigned

    def _continue(self, request: HeartbeatRequest, outcome: Outcome, now_ms: int) -> HeartbeatAnswer:
        draft, contents, member_id = outcome.draft, self.contents, request.member_id
        self._check_size(request)
        had_consumers = contents.classic_members < len(contents.members)
        replaced = admit(self._group_id, contents, request, draft)
        if replaced is not None:
            self._cancel_timers(replaced, outcome)
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
        self._subscriptions.refresh(draft, now_ms, changed=changed)
        outcome.is_downgrade = had_consumers and self._becomes_classic
        self._assign_now(outcome, now_ms)
        former = contents.current_of(member_id) if before is not None else None
        self._reconcile(request, outcome, subscription_changed=changed and before is not None)
        outcome.timers += self._timers_of(member)
        current = contents.current_of(member_id)
        is_news = former is None or plain(former.assigned) != plain(current.assigned)
        return HeartbeatAnswer(
            ErrorCode.NONE,
            member_id=member_id,
            member_epoch=current.epoch,
            assignment=plain(current.assigned) if is_news or request.is_full else None,
        )

    def _timers_of(self, member: ConsumerMember) -> list[TimerInstruction]:
        if member.classic is not None:
            return self._classic.joined(member)
        self._classic.forget(member.member_id)
        return [self._classic.session_of(member)]

    def _check_size(self, request: HeartbeatRequest) -> None:
        contents, most = self.contents, self._settings.members_max
        is_member = request.member_id in contents.members or request.instance_id in contents.static_members
        if len(contents.members) >= most and not is_member:
            raise HeartbeatRefusedError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The consumer group has reached its maximum capacity of {most} members.",
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
            outcome.timers.append(SetTimer(rebalance_timer(member_id), timeout_ms))
        else:
            outcome.timers.append(CancelTimer(rebalance_timer(member_id)))

    # --- other requests of classic members, and of administrators

    def sync(self, request: SyncRequest) -> tuple[SyncAnswer, list[TimerInstruction]]:
        """Handle a SyncGroup."""
        return self._classic.sync(request)

    def classic_heartbeat(self, claim: MemberClaim, now_ms: int) -> tuple[ErrorCode, Outcome]:
        """Handle a Heartbeat of a classic member."""
        outcome = Outcome(Draft(self.contents))
        error, timers = self._classic.heartbeat(claim)
        outcome.timers += timers
        if error is ErrorCode.NONE:
            self._subscriptions.refresh(outcome.draft, now_ms, changed=False)
            self._assign_now(outcome, now_ms)
        return error, outcome

    def leave(self, leaving: Iterable[MemberClaim], now_ms: int) -> tuple[LeaveAnswer, Outcome]:
        """Handle a LeaveGroup: members of either protocol leave, or an administrator removes them."""
        outcome, results = Outcome(Draft(self.contents)), []
        gone: dict[str, None] = {}
        for claim in leaving:
            named = claim
            if not claim.member_id and claim.instance_id is not None:
                holder = self.contents.static_members.get(claim.instance_id, "")
                named = MemberClaim(holder, claim.instance_id)
            error = self._classic.refusal_of(named)
            if error is ErrorCode.NONE:
                gone[named.member_id] = None
            results.append((claim, error))
        if gone:
            self._remove(gone, outcome, now_ms)
        return LeaveAnswer(tuple(results)), outcome

    # --- leaving

    def _leave(self, request: HeartbeatRequest, outcome: Outcome, now_ms: int) -> HeartbeatAnswer:
        if request.instance_id is None:
            member_of(self._group_id, self.contents, request.member_id)
        else:
            static_member_of(self.contents, request)
        if request.member_epoch == STATIC_LEAVING_EPOCH:
            current = self.contents.current_of(request.member_id)
            away = replace(current, epoch=STATIC_LEAVING_EPOCH, revoking={})
            outcome.draft.put(CurrentEntry(CurrentKey(self._group_id, request.member_id), away))
            outcome.timers.append(CancelTimer(rebalance_timer(request.member_id)))
        else:
            self._remove([request.member_id], outcome, now_ms)
        return HeartbeatAnswer(ErrorCode.NONE, member_id=request.member_id, member_epoch=request.member_epoch)

    def _remove(self, member_ids: Iterable[str], outcome: Outcome, now_ms: int) -> None:
        for member_id in member_ids:
            member = self.contents.members[member_id]
            remove(self._group_id, self.contents, member_id, outcome.draft)
            self._subscriptions.drop_unused(member, outcome.draft)
            self._cancel_timers(member_id, outcome)
        outcome.is_downgrade = self._becomes_classic
        if not outcome.is_downgrade:
            self._subscriptions.raise_epoch(outcome.draft)
            self._assign_now(outcome, now_ms)

    def _cancel_timers(self, member_id: str, outcome: Outcome) -> None:
        self._classic.forget(member_id)
        outcome.timers += [CancelTimer(session_timer(member_id)), CancelTimer(rebalance_timer(member_id))]

    @property
    def _becomes_classic(self) -> bool:
        """Whether only classic members are left, and the group may become a classic group."""
        count, settings = len(self.contents.members), self._settings
        is_allowed = settings.migration.downgrades and count <= settings.migrated_members_max
        return is_allowed and self._may_downgrade and 0 < count == self.contents.classic_members

    def timer_fired(self, timer: Timer, now_ms: int) -> Outcome:
        """Handle a timer that was neither moved nor cancelled."""
        outcome = Outcome(Draft(self.contents))
        if timer.kind is TimerKind.ASSIGNMENT:
            self._assigning.may_assign = True
        elif timer.member_id in self.contents.members and self._has_failed(timer):
            self._remove([timer.member_id], outcome, now_ms)
        self._assign_now(outcome, now_ms)
        return outcome

    def _has_failed(self, timer: Timer) -> bool:
        """Whether a member did not send what it had to send before the timer fired."""
        if timer.kind is TimerKind.SESSION:
            return True
        if self.contents.members[timer.member_id].classic is not None:
            return self._classic.is_overdue(timer.member_id)
        return self.contents.current_of(timer.member_id).state is MemberState.UNREVOKED_PARTITIONS

    # --- subscribed topics

    def needs_resolution(self, now_ms: int) -> bool:
        """Whether expressions must be resolved."""
        return self._subscriptions.needs_resolution(now_ms)

    def begin_resolution(self, now_ms: int) -> Resolution:
        """Start to resolve expressions. The caller runs the steps and calls `resolved`."""
        return self._subscriptions.begin_resolution(now_ms)

    def resolved(self, resolution: Resolution, matches: Matches, now_ms: int) -> Iterator[Outcome]:
        """Yield parts that store which topics match; the caller writes each before it takes the next one."""
        return map(Outcome, self._subscriptions.resolved(resolution, matches, now_ms))

    def delay_resolution(self, now_ms: int) -> None:
        """Resolve no expressions for a while, because a part of a result was not written."""
        self._subscriptions.delay_resolution(now_ms)

    # --- target assignment

    @property
    def needs_target(self) -> bool:
        """Whether a computation is due."""
        return self._assigning.is_due and not self._is_dead

    def begin_computation(self) -> Computation:
        """Start to compute a target. The caller runs the steps and installs the result, or calls
        `retry_assignment`.
        """
        assert self.needs_target
        return self._assigning.begin(self.assignor)

    def retry_assignment(self, delay_ms: int) -> list[TimerInstruction]:
        """Return the timer for another attempt, because a computation or its installation failed."""
        return self._assigning.retry(delay_ms)

    def installation(self, computation: Computation, result: Targets, now_ms: int) -> Iterator[Outcome]:
        """Yield the parts of a target, each of which the caller writes before it takes the next one. The last
        part raises the epoch of the target. Without memory for a part, the target is computed again later.
        """
        return self._assigning.installation(computation, result, now_ms)

    def _assign_now(self, outcome: Outcome, now_ms: int) -> None:
        """Compute the target within this event, if the group is small."""
        if self.needs_target and not outcome.is_downgrade:
            self._assigning.assign_now(self.assignor, outcome, now_ms)

    # --- load

    def restored(self) -> list[TimerInstruction]:
        """Return the timers after a load: every member has its full session, and its full time to revoke."""
        self.contents.drop_orphans()
        timers: list[TimerInstruction] = []
        for member_id, member in self.contents.members.items():
            timers.append(self._classic.session_of(member))
            is_revoking = self.contents.current_of(member_id).state is MemberState.UNREVOKED_PARTITIONS
            if is_revoking and member.classic is None:
                timers.append(SetTimer(rebalance_timer(member_id), max(0, member.rebalance_timeout_ms)))
        return timers

    def unloaded(self) -> list[TimerInstruction]:
        """Return the timers to cancel, because another broker coordinates the group now."""
        self._is_dead = True
        timers: list[TimerInstruction] = [CancelTimer(ASSIGNMENT_TIMER)]
        for member_id in self.contents.members:
            timers += [CancelTimer(session_timer(member_id)), CancelTimer(rebalance_timer(member_id))]
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
        classic=request.classic,
    )
