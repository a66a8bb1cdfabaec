"""The classic group protocol as a state machine without I/O: events in, instructions out.

Decides which clients may join, sync, heartbeat, leave and commit, and which errors the other clients get.
`rebalance.py` implements the steps of a rebalance, `static_members.py` the return of static members. Methods
are called when a request arrives, a timer fires or a write has completed. The caller must execute the
returned instructions, in order, before the next event.

Sources: KIP-62 (background heartbeat), KIP-134 (initial delay), KIP-345 (static members), KIP-394
(known member ids), KIP-559 (protocol names in SyncGroup), KIP-814 (static leaders skip the
assignment), and otherwise the behaviour of Kafka's coordinator.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from ponor_kafka.errors import ErrorCode

from ponor_broker.groups.events import JoinRequest, LeaveRequest, MemberClaim, SyncRequest
from ponor_broker.groups.group_counters import CLASSIC_TYPE
from ponor_broker.groups.instructions import (
    Instruction,
    JoinAnswer,
    LeaveAnswer,
    Outbox,
    SyncAnswer,
    Timer,
    TimerKind,
)
from ponor_broker.groups.member import CONSUMER_PROTOCOL_TYPE, JoinProtocol, Member
from ponor_broker.groups.rebalance import GroupState, Rebalance
from ponor_broker.groups.records import GroupRecord
from ponor_broker.groups.roster import Roster
from ponor_broker.groups.settings import GroupSettings
from ponor_broker.groups.static_members import StaticMembers

_TOPIC_BYTES_MIN: Final = 2


def subscribed_topics(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """Return every topic in the subscriptions; None if one of them is not a consumer's subscription.

    The group protocol treats a subscription as opaque. Kafka decodes it only for members of protocol type
    `consumer`, to decide whether offsets of a topic may expire or be deleted while the group has members. All
    versions of the subscription start like version 0 (int16 version, then an array of strings), so only that
    part is decoded (ConsumerProtocolSubscription.json, KIP-496).
    """
    topics: set[str] = set()
    for subscription in subscriptions:
        read = _topics_of(subscription)
        if read is None:
            return None
        topics.update(read)
    return frozenset(topics)


def _topics_of(subscription: bytes) -> list[str] | None:
    try:
        version, count = struct.unpack_from(">hi", subscription)
        if version < 0 or not 0 <= count <= len(subscription) // _TOPIC_BYTES_MIN:
            return None
        topics, position = [], 6
        for _ in range(count):
            (length,) = struct.unpack_from(">h", subscription, position)
            position += 2
            if length < 0 or position + length > len(subscription):
                return None
            topics.append(subscription[position : position + length].decode())
            position += length
    except (struct.error, UnicodeDecodeError):
        return None
    return topics


class Membership:
    """The members of one classic group."""

    def __init__(self, settings: GroupSettings) -> None:
        self._settings = settings
        self._out = Outbox()
        self._roster = Roster()
        self._rebalance = Rebalance(
            self._roster, self._out, initial_delay_ms=settings.group_initial_rebalance_delay_ms
        )
        self._static = StaticMembers(self._roster, self._rebalance, self._out)

    @property
    def state(self) -> GroupState:
        """State of the group."""
        return self._rebalance.state

    @property
    def generation(self) -> int:
        """Incremented by every rebalance; never -1."""
        return self._rebalance.generation

    @property
    def group_type(self) -> str:
        """Kafka's name for this type of group."""
        return CLASSIC_TYPE

    @property
    def protocol_type(self) -> str:
        """Protocol type of the members, for example `consumer`; empty for a group that never had members."""
        return self._roster.protocol_type or ""

    @property
    def protocol_name(self) -> str | None:
        """The chosen assignor."""
        return self._rebalance.protocol_name

    @property
    def is_of_consumers(self) -> bool:
        """Whether the members use the consumer protocol, so that their subscriptions can be decoded."""
        return self._roster.protocol_type == CONSUMER_PROTOCOL_TYPE

    @property
    def is_unused(self) -> bool:
        """Whether there are neither members nor assigned member ids."""
        return self.state is GroupState.EMPTY and not self._roster.pending_count

    @property
    def size_bytes(self) -> int:
        """Memory of the members."""
        return self._roster.size_bytes + len(self.protocol_type)

    def is_led_by(self, member_id: str) -> bool:
        """Return whether this member leads the group."""
        return self._roster.leader_id == member_id

    def __len__(self) -> int:
        return len(self._roster)

    def size_bytes_of(self, member_id: str) -> int:
        """Return the memory of one member; 0 if it does not exist."""
        member = self._roster.get(member_id)
        return 0 if member is None else member.size_bytes

    def subscribed_topics(self) -> frozenset[str] | None:
        """Return the members' subscribed topics; None if they are unknown, because the members are not
        consumers or no protocol is chosen yet.
        """
        if not self.is_of_consumers or (self._roster and self.protocol_name is None):
            return None
        return subscribed_topics(member.metadata_for(self.protocol_name) for member in self._roster)

    def members(self) -> tuple[Member, ...]:
        """Return the members, for reading only."""
        return tuple(self._roster)

    # --- JoinGroup

    def join(self, request: JoinRequest) -> list[Instruction]:
        """Handle a JoinGroup."""
        error = self._refusal_of_join(request)
        if error is not None:
            member_id = "" if error is ErrorCode.GROUP_MAX_SIZE_REACHED else request.member_id
            self._out.answer(request.request, JoinAnswer(error, member_id))
        elif not request.member_id:
            self._join_without_id(request)
        elif self._roster.is_pending(request.member_id):
            self._add_member(request, request.member_id)
        else:
            self._rejoin(request)
        return self._out.drain()

    def _refusal_of_join(self, request: JoinRequest) -> ErrorCode | None:
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if not self._has_room_for(request):
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        if not self._roster.supports(request.protocol_type, request.protocols):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if self._roster.is_pending(request.member_id):
            # Only clients without an instance id get a member id in advance. A client that uses it with an
            # instance id could become two members.
            return None if request.instance_id is None else ErrorCode.INVALID_REQUEST
        if request.member_id:
            return self._refusal_of_claim(MemberClaim(request.member_id, request.instance_id))
        return None

    def _has_room_for(self, request: JoinRequest) -> bool:
        if request.member_id in self._roster or self._roster.is_pending(request.member_id):
            return True
        if self._roster.static_member_id(request.instance_id) is not None:
            return True
        return len(self._roster) + self._roster.pending_count < self._settings.group_members_max

    def _join_without_id(self, request: JoinRequest) -> None:
        old_member_id = self._roster.static_member_id(request.instance_id)
        if old_member_id is not None:
            member = self._roster.get(old_member_id)
            assert member is not None
            self._static.rejoin(member, request)
        elif request.requires_known_member_id and request.instance_id is None:
            self._roster.add_pending(request.new_member_id)
            self._out.set_timer(Timer(TimerKind.SESSION, request.new_member_id), request.session_timeout_ms)
            self._out.answer(request.request, JoinAnswer(ErrorCode.MEMBER_ID_REQUIRED, request.new_member_id))
        else:
            self._add_member(request, request.new_member_id)

    def _add_member(self, request: JoinRequest, member_id: str) -> None:
        member = Member(
            member_id=member_id,
            instance_id=request.instance_id,
            client_id=request.client_id,
            client_host=request.client_host,
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            protocols=request.protocols,
            awaiting_join=request.request,
            is_new=True,
        )
        self._rebalance.note_new_member()
        self._roster.add(member, request.protocol_type)
        # A member sends no heartbeats while its join waits. This timer removes it if its client disappears.
        self._out.set_timer(
            Timer(TimerKind.SESSION, member_id), self._settings.group_new_member_join_timeout_ms
        )
        self._rebalance.start_or_complete()

    def _rejoin(self, request: JoinRequest) -> None:
        member = self._roster.get(request.member_id)
        assert member is not None
        same_subscriptions = member.protocols == request.protocols
        leads = member.member_id == self._roster.leader_id
        if (self.state is GroupState.COMPLETING_REBALANCE and same_subscriptions) or (
            self.state is GroupState.STABLE and same_subscriptions and not leads
        ):
            # The member did not receive this generation's answer, or rejoins without a change: answer again.
            self._roster.hold_join(member, request.request)
            self._rebalance.answer_join(member)
            return
        self._static.update(member, request)
        self._supersede_join(member)
        self._roster.hold_join(member, request.request)
        self._rebalance.start_or_complete()

    def _supersede_join(self, member: Member) -> None:
        """Answer the member's older join (from a former connection, for example), which must not
        wait forever.
        """
        older = self._roster.release_join(member)
        if older is not None:
            self._out.answer(older, JoinAnswer(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))

    # --- SyncGroup, Heartbeat, OffsetCommit

    def sync(self, request: SyncRequest) -> list[Instruction]:
        """Handle a SyncGroup: a member gets its assignment; the leader's request contains all assignments."""
        error = self._refusal_of_sync(request)
        if error is not None:
            self._out.answer(request.request, SyncAnswer(error))
            return self._out.drain()
        member = self._roster.get(request.claim.member_id)
        assert member is not None
        if self.state is GroupState.STABLE:
            self._rebalance.note_synced(member)
            self._rebalance.restart_session(member)
            self._out.answer(request.request, self._rebalance.sync_answer(member))
        else:
            self._rebalance.sync(member, request.request, request.assignments)
        return self._out.drain()

    def _refusal_of_sync(self, request: SyncRequest) -> ErrorCode | None:
        error = self._refusal_of_generation(request.claim)
        if error is not None:
            return error
        if (request.protocol_type is not None and request.protocol_type != self._roster.protocol_type) or (
            request.protocol_name is not None and request.protocol_name != self.protocol_name
        ):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return ErrorCode.REBALANCE_IN_PROGRESS if self.state is GroupState.PREPARING_REBALANCE else None

    def heartbeat(self, claim: MemberClaim) -> tuple[ErrorCode, list[Instruction]]:
        """Handle a Heartbeat. REBALANCE_IN_PROGRESS makes the member rejoin; it is not a failure."""
        error = self._refusal_of_generation(claim)
        if error is not None:
            return error, []
        self._note_alive(claim)
        preparing = self.state is GroupState.PREPARING_REBALANCE
        return ErrorCode.REBALANCE_IN_PROGRESS if preparing else ErrorCode.NONE, self._out.drain()

    def commit(
        self, claim: MemberClaim, *, in_transaction: bool = False
    ) -> tuple[ErrorCode, list[Instruction]]:
        """Check whether the client may commit offsets; counts as a heartbeat.

        A consumer without a group (generation -1, no ids) may commit only while the group has no members.
        As in Kafka, this does not apply to a commit in a transaction, because old producers send neither
        generation nor ids (KIP-447). Such a commit does not count as a heartbeat, and may precede the sync.
        """
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, []
        if claim.generation < 0 and self.state is GroupState.EMPTY:
            return ErrorCode.NONE, []
        if claim.generation < 0 and not claim.member_id and claim.instance_id is None:
            return ErrorCode.NONE if in_transaction else ErrorCode.UNKNOWN_MEMBER_ID, []
        error = self._refusal_of_generation(claim)
        if error is not None or in_transaction:
            return error or ErrorCode.NONE, []
        if self.state is GroupState.COMPLETING_REBALANCE:
            # The member has joined this generation and must sync before it commits, so the error must not
            # make it rejoin.
            return ErrorCode.REBALANCE_IN_PROGRESS, []
        self._note_alive(claim)
        return ErrorCode.NONE, self._out.drain()

    def _note_alive(self, claim: MemberClaim) -> None:
        member = self._roster.get(claim.member_id)
        assert member is not None
        if not member.is_new:
            self._rebalance.restart_session(member)

    def _refusal_of_claim(self, claim: MemberClaim) -> ErrorCode | None:
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if claim.instance_id is not None:
            holder = self._roster.static_member_id(claim.instance_id)
            if holder is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if holder != claim.member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return None if claim.member_id in self._roster else ErrorCode.UNKNOWN_MEMBER_ID

    def _refusal_of_generation(self, claim: MemberClaim) -> ErrorCode | None:
        error = self._refusal_of_claim(claim)
        if error is None and claim.generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        return error

    # leaving and expiry

    def leave(self, request: LeaveRequest) -> list[Instruction]:
        """Handle a LeaveGroup: members leave, or an administrator removes static ones; the others
        rebalance once.
        """
        members_before = len(self._roster)
        results = tuple((claim, self._leave_one(claim)) for claim in request.leaving)
        self._out.answer(request.request, LeaveAnswer(results))
        self._rebalance_without(members_before)
        return self._out.drain()

    def _leave_one(self, claim: MemberClaim) -> ErrorCode:
        if not claim.member_id and claim.instance_id is not None:
            claim = MemberClaim(self._roster.static_member_id(claim.instance_id) or "", claim.instance_id)
        if self._roster.is_pending(claim.member_id):
            self._drop_pending(claim.member_id)
            return ErrorCode.NONE
        error = self._refusal_of_claim(claim)
        if error is not None:
            return error
        member = self._roster.get(claim.member_id)
        assert member is not None
        self._remove(member)
        return ErrorCode.NONE

    def _drop_pending(self, member_id: str) -> None:
        self._roster.remove_pending(member_id)
        self._out.cancel_timer(Timer(TimerKind.SESSION, member_id))

    def _remove(self, member: Member) -> None:
        if member.awaiting_join is not None:
            self._out.answer(member.awaiting_join, JoinAnswer(ErrorCode.UNKNOWN_MEMBER_ID, member.member_id))
        if member.awaiting_sync is not None:
            self._out.answer(member.awaiting_sync, SyncAnswer(ErrorCode.UNKNOWN_MEMBER_ID))
        self._rebalance.note_synced(member)
        self._roster.remove(member)
        self._out.cancel_timer(Timer(TimerKind.SESSION, member.member_id))

    def _rebalance_without(self, members_before: int) -> None:
        # If only assigned ids without a member were removed, a running rebalance may complete, but no new
        # one starts.
        if self.state is GroupState.PREPARING_REBALANCE or len(self._roster) < members_before:
            self._rebalance.start_or_complete()

    # --- timers and writes

    def timer_fired(self, timer: Timer) -> list[Instruction]:
        """Handle a timer that was neither moved nor cancelled."""
        if timer.kind is TimerKind.JOIN:
            self._rebalance.join_timer_fired()
        elif timer.kind is TimerKind.SYNC:
            self._rebalance.sync_timer_fired()
        else:
            self._session_ended(timer.member_id)
        return self._out.drain()

    def _session_ended(self, member_id: str) -> None:
        members_before = len(self._roster)
        member = self._roster.get(member_id)
        if member is None:
            self._roster.remove_pending(member_id)
        elif member.is_new or not member.is_waiting:
            # A client whose request waits cannot send heartbeats: its session restarts with the answer.
            self._remove(member)
        self._rebalance_without(members_before)

    def written(self, write_id: int, error: ErrorCode) -> list[Instruction]:
        """Handle the outcome of a write; NONE: the record is durable."""
        if self._rebalance.owns_write(write_id):
            self._rebalance.assignment_written(error)
        else:
            self._static.written(write_id, error)
        return self._out.drain()

    # --- deletion, moves, restarts

    def delete(self) -> ErrorCode:
        """Mark the group as dead; only possible without members."""
        if self.state is GroupState.DEAD:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if self.state is not GroupState.EMPTY:
            return ErrorCode.NON_EMPTY_GROUP
        self._rebalance.end()
        return ErrorCode.NONE

    def unload(self, error: ErrorCode) -> list[Instruction]:
        """Answer all waiting requests with `error`, because another broker coordinates the group
        now; write nothing.
        """
        self._static.end(error)
        for member in self._roster:
            if member.awaiting_join is not None:
                self._out.answer(member.awaiting_join, JoinAnswer(error, member.member_id))
            if member.awaiting_sync is not None:
                self._out.answer(member.awaiting_sync, SyncAnswer(error))
            self._roster.remove(member)
            self._out.cancel_timer(Timer(TimerKind.SESSION, member.member_id))
        for member_id in self._roster.pending_ids():
            self._drop_pending(member_id)
        self._rebalance.end()
        return self._out.drain()

    def restore(self, record: GroupRecord) -> list[Instruction]:
        """Restore the state from the log: every member has its full session timeout to send a heartbeat."""
        assert self.state is GroupState.EMPTY
        assert not self._roster
        self._roster.protocol_type = record.protocol_type
        for row in record.members:
            member = Member(
                member_id=row.member_id,
                instance_id=row.instance_id,
                client_id=row.client_id,
                client_host=row.client_host,
                session_timeout_ms=row.session_timeout_ms,
                rebalance_timeout_ms=row.rebalance_timeout_ms,
                protocols=(JoinProtocol(record.protocol_name or "", row.subscription),),
                assignment=row.assignment,
            )
            self._roster.add(member, record.protocol_type)
            self._rebalance.restart_session(member)
        if record.leader is not None and record.leader in self._roster:
            self._roster.leader_id = record.leader
        self._rebalance.restore(record)
        return self._out.drain()

    def adopt(self, members: Iterable[Member], generation: int) -> GroupRecord:
        """Take over the members of a consumer group, and their assignments, as a stable generation.

        Returns:
            The record to write. When the log has accepted it, call `continue_adopted`.
        """
        assert self.state is GroupState.EMPTY
        assert not self._roster
        for member in members:
            self._roster.add(member, CONSUMER_PROTOCOL_TYPE)
        return self._rebalance.adopt(generation)

    def continue_adopted(self) -> list[Instruction]:
        """Start the sessions of adopted members, and a rebalance."""
        for member in self._roster:
            self._rebalance.restart_session(member)
        self._rebalance.start_or_complete()
        return self._out.drain()

    def validate(self) -> None:
        """Check the invariants, for tests."""
        self._roster.validate()
        self._rebalance.validate()
        self._static.validate()
