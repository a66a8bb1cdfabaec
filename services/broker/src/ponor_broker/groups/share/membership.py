"""A share group as a state machine without I/O: events in, records and timers out (KIP-932).

It has the mechanisms of a consumer group (subscriptions, epochs, targets), without revocation: a member gets
its target with its next heartbeat. Partitions are assigned once they have a delivery state, which the caller
creates: `uninitialized` returns what is missing, and `change_states` notes what was done.

Source: Apache Kafka 4.3.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import Final

from ponor_kafka.errors import ErrorCode

from ponor_broker.groups.assignors.assignment_input import Assignment, Targets
from ponor_broker.groups.assignors.simple import SIMPLE, SimpleAssignor
from ponor_broker.groups.consumer import target
from ponor_broker.groups.consumer.admission import REJOIN, member_of, remove
from ponor_broker.groups.consumer.assignment import (
    JOINING_EPOCH,
    CurrentAssignment,
    Partitions,
    plain,
)
from ponor_broker.groups.consumer.events import HeartbeatAnswer, HeartbeatRequest, Outcome
from ponor_broker.groups.consumer.member import ConsumerMember
from ponor_broker.groups.consumer.records import (
    ConsumerEntry,
    CurrentEntry,
    CurrentKey,
    ExpressionEntry,
    MemberEntry,
    MemberKey,
)
from ponor_broker.groups.consumer.settings import ConsumerSettings
from ponor_broker.groups.consumer.state import ConsumerState
from ponor_broker.groups.consumer.subscriptions import Subscriptions
from ponor_broker.groups.consumer.target import Computation
from ponor_broker.groups.consumer.target_assigning import ASSIGNMENT_TIMER, TargetAssigning
from ponor_broker.groups.consumer.topics import ImageTopics, Topic
from ponor_broker.groups.group_counters import SHARE_TYPE
from ponor_broker.groups.instructions import CancelTimer, SetTimer, Timer, TimerKind
from ponor_broker.groups.outcome import Draft, GroupOutcome, HeartbeatRefusedError, TimerInstruction
from ponor_broker.groups.rebalance import GroupState
from ponor_broker.groups.server_assigned_membership import MembersOfGroup, session_timer
from ponor_broker.groups.share.records import (
    ShareEntry,
    ShareGroupEntry,
    StatePartitionsEntry,
    StatePartitionsKey,
)
from ponor_broker.groups.share.state_partitions import (
    NO_STATES,
    StatePartitions,
    StatesById,
    TopicStates,
    without,
)

PROTOCOL_TYPE: Final = "share"


def stored(entry: ConsumerEntry) -> ShareEntry:
    """Return a record of `ShareMembership.contents` as the log keeps it."""
    assert not isinstance(entry, ExpressionEntry), "members of share groups subscribe by name only"
    return ShareEntry(entry)


class ShareMembership(MembersOfGroup[ConsumerState]):
    """The members of one share group."""

    def __init__(
        self,
        group_id: str,
        settings: ConsumerSettings,
        topics: ImageTopics,
        admits: Callable[[int], bool],
    ) -> None:
        """`settings` has no assignors. `admits` returns whether the group's memory may grow by a number of
        bytes.
        """
        super().__init__(ConsumerState(), admits)
        self.states = NO_STATES
        """The partitions with delivery states, for reading only."""
        self._has_states_record = False
        self._group_id = group_id
        self._settings = replace(settings, assignors={SIMPLE: SimpleAssignor(self._assignable)})
        self._topics = topics
        self._subscriptions = Subscriptions(group_id, self.contents, self._settings, topics, admits)
        self._assigning = TargetAssigning(
            group_id, self.contents, self._settings, self._subscriptions, admits
        )
        self._checked: tuple[int, StatePartitions, Mapping[str, Topic]] | None = None
        """What `_awaits_assignment` compared when nothing was missing."""

    # --- what other parts of the group read

    @property
    def state(self) -> GroupState:
        """State of the group."""
        if self._is_dead:
            return GroupState.DEAD
        return GroupState.STABLE if self.contents.members else GroupState.EMPTY

    @property
    def group_type(self) -> str:
        """Kafka's name for this type of group."""
        return SHARE_TYPE

    @property
    def protocol_type(self) -> str:
        """Protocol type of the members."""
        return PROTOCOL_TYPE

    @property
    def is_unused(self) -> bool:
        """False: a share group remains until it is deleted, because its delivery states do."""
        return False

    @property
    def size_bytes(self) -> int:
        """Memory of members, targets, current assignments and partitions."""
        return self.contents.size_bytes + self.states.size_bytes

    def subscribed_topics(self) -> frozenset[str]:
        """Return the names of the topics to which members subscribe."""
        return frozenset(self._subscriptions.names())

    # --- records

    def entries(self) -> Iterator[ShareGroupEntry]:
        """Yield one record per key, with its value when the iteration reaches it, if it still exists."""
        states = StatePartitionsEntry(StatePartitionsKey(self._group_id), self.states)
        return chain(
            map(stored, self.contents.entries(self._group_id)), (states,) if self._has_states_record else ()
        )

    def tombstones(self) -> Iterator[ShareGroupEntry]:
        """Yield the tombstones of all records."""
        states = StatePartitionsEntry(StatePartitionsKey(self._group_id), None)
        return chain(
            (states,) if self._has_states_record else (),
            map(stored, self.contents.tombstones(self._group_id)),
        )

    def put(self, entry: ShareGroupEntry) -> None:
        """Restore one record."""
        if isinstance(entry, ShareEntry):
            self.contents.put(entry.inner)
        else:
            self.states = entry.value or NO_STATES
            self._has_states_record = entry.value is not None

    # --- delivery states

    def _assignable(self) -> Assignment:
        return {topic_id: states.partitions for topic_id, states in self.states.initialized.items()}

    def uninitialized(self) -> StatesById:
        """Return the partitions of subscribed topics that have no delivery state."""
        wanted = {
            topic.topic_id: TopicStates(name, frozenset(range(topic.partitions)))
            for name, topic in self._subscriptions.looked_up().items()
        }
        return without(wanted, self.states.initialized)

    def change_states(self, states: StatePartitions) -> StatePartitionsEntry:
        """Note the partitions with delivery states; return the record. To undo it, note the value before."""
        self.states, self._has_states_record = states, True
        return StatePartitionsEntry(StatePartitionsKey(self._group_id), states)

    @property
    def _awaits_assignment(self) -> bool:
        """Whether the target lacks partitions whose delivery states exist now, or contains others."""
        known = self._subscriptions.looked_up()
        compared = (self.contents.assigned_epoch, self.states, known)
        if compared == self._checked:  # fast, because the compared objects are the same ones
            return False
        assigned: dict[bytes, set[int]] = {}
        for partitions in self.contents.targets.values():
            for topic_id, indexes in partitions.items():
                assigned.setdefault(topic_id, set()).update(indexes)
        is_missing = any(
            states.name in known
            and known[states.name].topic_id == topic_id
            and assigned.get(topic_id, set()) != states.partitions
            for topic_id, states in self.states.initialized.items()
        )
        self._checked = None if is_missing else compared
        return is_missing

    def raise_epoch(self) -> Outcome:
        """Raise the group epoch, because an administrator changes offsets."""
        outcome = Outcome(Draft(self.contents))
        self._subscriptions.raise_epoch(outcome.draft)
        return outcome

    # --- heartbeats

    def heartbeat(self, request: HeartbeatRequest, now_ms: int) -> Outcome:
        """Handle a heartbeat whose form is valid: a member joins, continues or leaves.

        `now_ms` is the time since 1970.
        """
        outcome = Outcome(Draft(self.contents))
        try:
            self._check_alive()
            is_leaving = request.member_epoch < JOINING_EPOCH
            event = self._leave if is_leaving else self._continue
            outcome.answer = event(request, outcome, now_ms)
        except HeartbeatRefusedError as refusal:
            self.take_back(outcome)
            outcome.answer = HeartbeatAnswer(refusal.code, str(refusal))
        return outcome

    def take_back(self, outcome: GroupOutcome[ConsumerEntry, HeartbeatAnswer]) -> None:
        """Undo an event whose records the log refused, in the same turn of the event loop."""
        outcome.draft.take_back()
        outcome.timers.clear()
        self._subscriptions.forget()
        self._assigning.may_assign |= isinstance(outcome, Outcome) and outcome.has_assigned

    def _continue(self, request: HeartbeatRequest, outcome: Outcome, now_ms: int) -> HeartbeatAnswer:
        draft, contents, member_id = outcome.draft, self.contents, request.member_id
        self._check(request)
        before = contents.members.get(member_id)
        known = before or ConsumerMember(member_id)
        member = _updated(known, request)
        is_changed = member.topics != known.topics
        if member != before:
            draft.put(MemberEntry(MemberKey(self._group_id, member_id), member))
            self._check_room(draft, is_new=before is None)
        is_assigned = contents.assigned_epoch >= contents.group_epoch
        self._subscriptions.refresh(
            draft, now_ms, changed=is_changed or (is_assigned and self._awaits_assignment)
        )
        self._assign_now(outcome, now_ms)
        former = contents.current_of(member_id)
        current = self._reconcile(member_id, outcome, subscription_changed=is_changed)
        outcome.timers.append(SetTimer(session_timer(member_id), self._settings.session_timeout_in_force_ms))
        is_full = request.topics is not None or request.member_epoch == JOINING_EPOCH
        is_news = is_full or plain(former.assigned) != plain(current.assigned)
        return HeartbeatAnswer(
            ErrorCode.NONE,
            member_id=member_id,
            member_epoch=current.epoch,
            assignment=plain(current.assigned) if is_news else None,
        )

    def _check(self, request: HeartbeatRequest) -> None:
        """Check in Kafka's order that the group has room, and that the sender is or may become a member."""
        contents, member_id, epoch = self.contents, request.member_id, request.member_epoch
        most = self._settings.members_max
        if len(contents.members) >= most and member_id not in contents.members:
            raise HeartbeatRefusedError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The share group has reached its maximum capacity of {most} members.",
            )
        if epoch == JOINING_EPOCH:
            return
        member_of(self._group_id, contents, member_id)
        current = contents.current_of(member_id)
        if epoch > current.epoch:
            raise _fenced(epoch, "greater", current, "")
        if epoch < current.epoch and epoch != current.previous_epoch:
            unlike = f", and it does not match the previous member epoch ({current.previous_epoch})"
            raise _fenced(epoch, "smaller", current, unlike)

    def _reconcile(
        self, member_id: str, outcome: Outcome, *, subscription_changed: bool
    ) -> CurrentAssignment:
        """Give the member its target, or take partitions of topics that it no longer reads."""
        contents = self.contents
        current = contents.current_of(member_id)
        has_reached = current.epoch == contents.assigned_epoch
        if has_reached and not subscription_changed and member_id in contents.currents:
            return current
        subscribed = target.topic_ids_of(contents, member_id, self._subscriptions.known)
        partitions = plain(current.assigned) if has_reached else contents.target_of(member_id)
        after = CurrentAssignment(
            contents.assigned_epoch,
            current.previous_epoch if has_reached else current.epoch,
            assigned=_at_epoch(partitions, subscribed, contents.assigned_epoch),
        )
        if after != current or member_id not in contents.currents:
            outcome.draft.put(CurrentEntry(CurrentKey(self._group_id, member_id), after))
        return after

    # --- leaving

    def _leave(self, request: HeartbeatRequest, outcome: Outcome, now_ms: int) -> HeartbeatAnswer:
        member_of(self._group_id, self.contents, request.member_id)
        self._remove(request.member_id, outcome, now_ms)
        return HeartbeatAnswer(ErrorCode.NONE, member_id=request.member_id, member_epoch=request.member_epoch)

    def _remove(self, member_id: str, outcome: Outcome, now_ms: int) -> None:
        remove(self._group_id, self.contents, member_id, outcome.draft)
        outcome.timers.append(CancelTimer(session_timer(member_id)))
        self._subscriptions.raise_epoch(outcome.draft)
        self._assign_now(outcome, now_ms)

    def timer_fired(self, timer: Timer, now_ms: int) -> Outcome:
        """Handle a timer that was neither moved nor cancelled."""
        outcome = Outcome(Draft(self.contents))
        if timer.kind is TimerKind.ASSIGNMENT:
            self._assigning.may_assign = True
            self._assign_now(outcome, now_ms)
        elif timer.member_id in self.contents.members:
            self._remove(timer.member_id, outcome, now_ms)
        return outcome

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
        return self._assigning.begin(SIMPLE)

    def retry_assignment(self, delay_ms: int) -> list[TimerInstruction]:
        """Return the timer for another attempt, because a computation or its installation failed."""
        return self._assigning.retry(delay_ms)

    def installation(self, computation: Computation, result: Targets, now_ms: int) -> Iterator[Outcome]:
        """Yield the parts of a target; see `ConsumerMembership.installation`."""
        return self._assigning.installation(computation, result, now_ms)

    def _assign_now(self, outcome: Outcome, now_ms: int) -> None:
        if self.needs_target:
            self._assigning.assign_now(SIMPLE, outcome, now_ms)

    # --- load

    def restored(self) -> list[TimerInstruction]:
        """Return the timers after a load: every member has its full session."""
        self.contents.drop_orphans()
        timeout_ms = self._settings.session_timeout_in_force_ms
        return [SetTimer(session_timer(member_id), timeout_ms) for member_id in self.contents.members]

    def unloaded(self) -> list[TimerInstruction]:
        """Return the timers to cancel, because another broker coordinates the group now."""
        self._is_dead = True
        members = self.contents.members
        return [CancelTimer(ASSIGNMENT_TIMER), *(CancelTimer(session_timer(each)) for each in members)]


def _fenced(epoch: int, comparison: str, current: CurrentAssignment, unlike: str) -> HeartbeatRefusedError:
    return HeartbeatRefusedError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The share group member has a {comparison} member epoch ({epoch}) than the one known by the group "
        f"coordinator ({current.epoch}){unlike}. {REJOIN}",
    )


def _updated(member: ConsumerMember, request: HeartbeatRequest) -> ConsumerMember:
    """Return the member with the fields that the request contains."""
    return replace(
        member,
        client_id=request.client_id,
        client_host=request.client_host,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        topics=member.topics if request.topics is None else request.topics,
    )


def _at_epoch(
    partitions: Partitions, subscribed: frozenset[bytes], epoch: int
) -> Mapping[bytes, Mapping[int, int]]:
    return {
        topic_id: dict.fromkeys(indexes, epoch)
        for topic_id, indexes in partitions.items()
        if topic_id in subscribed
    }
