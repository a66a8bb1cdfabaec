"""The classic group protocol as a state machine without I/O: events in, instructions out.

What lives here: who may join, sync, heartbeat, leave and commit, and with which error others are turned away. The course of a rebalance
is in `rebalance.py`, the return of static members in `static_members.py`. Time enters as timers that fire, the disk as writes that
finish; every method that returns instructions expects them to be carried out in order before the next event.

Sources: KIP-62 (background heartbeat), KIP-134 (initial delay), KIP-345 (static members), KIP-394 (known member ids), KIP-559 (protocol
names in SyncGroup), KIP-814 (static leaders skip the assignment), and the behaviour of Kafka's coordinator where these are silent.
"""

from __future__ import annotations

from ponor_kafka.errors import ErrorCode

from ponor_broker.groups.events import HeartbeatRequest, JoinRequest, LeaveRequest, MemberClaim, SyncRequest
from ponor_broker.groups.instructions import (
    HeartbeatAnswer,
    Instruction,
    JoinAnswer,
    LeaveAnswer,
    Outbox,
    SyncAnswer,
    Timer,
    TimerKind,
)
from ponor_broker.groups.member import JoinProtocol, Member
from ponor_broker.groups.rebalance import GroupState, Rebalance
from ponor_broker.groups.records import GroupRecord
from ponor_broker.groups.roster import Roster
from ponor_broker.groups.settings import GroupSettings
from ponor_broker.groups.static_members import StaticMembers
from ponor_broker.groups.subscription import CONSUMER_PROTOCOL_TYPE, subscribed_topics


class Membership:
    """One classic group."""

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
        """Where the group stands."""
        return self._rebalance.state

    @property
    def generation(self) -> int:
        """Rises with every rebalance; -1 never stands here."""
        return self._rebalance.generation

    @property
    def protocol_type(self) -> str:
        """What its members are, `consumer` for instance; empty for a group that never had any."""
        return self._roster.protocol_type or ""

    @property
    def protocol_name(self) -> str | None:
        """The assignor in force."""
        return self._rebalance.protocol_name

    @property
    def is_of_consumers(self) -> bool:
        """Do its members speak the consumer protocol, so that their subscriptions can be read?"""
        return self._roster.protocol_type == CONSUMER_PROTOCOL_TYPE

    @property
    def is_unused(self) -> bool:
        """No members, and nobody about to become one."""
        return self.state is GroupState.EMPTY and not self._roster.pending_count

    @property
    def size_bytes(self) -> int:
        """Memory that the members take."""
        return self._roster.size_bytes

    def __len__(self) -> int:
        return len(self._roster)

    def size_bytes_of(self, member_id: str) -> int:
        """Memory that one member takes; 0 for who is none."""
        member = self._roster.get(member_id)
        return 0 if member is None else member.size_bytes

    def subscribed_topics(self) -> frozenset[str] | None:
        """What the members subscribe to; None when that cannot be known: no consumers, or no protocol chosen yet."""
        if not self.is_of_consumers or (self._roster and self.protocol_name is None):
            return None
        return subscribed_topics(member.metadata_for(self.protocol_name) for member in self._roster)

    def members(self) -> tuple[Member, ...]:
        """The members; for reading only."""
        return tuple(self._roster)

    # --- JoinGroup

    def join(self, request: JoinRequest) -> list[Instruction]:
        """A client wants to be in the next generation, or to learn of the present one."""
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
            # An id is only handed out to a client without a static name; with one it would be two members at once.
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
            self._static.come_back(member, request)
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
        # It cannot heartbeat while its join is held; a join that nobody waits for any more must end all the same.
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
            # It did not get the answer of this generation's join, or joins for no reason: tell it again.
            self._roster.hold_join(member, request.request)
            self._rebalance.answer_join(member)
            return
        self._static.update(member, request)
        self._supersede_join(member)
        self._roster.hold_join(member, request.request)
        self._rebalance.start_or_complete()

    def _supersede_join(self, member: Member) -> None:
        """Its older join was given up (a new connection, say); it must not wait for ever."""
        older = self._roster.release_join(member)
        if older is not None:
            self._out.answer(older, JoinAnswer(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))

    # --- SyncGroup, Heartbeat, OffsetCommit

    def sync(self, request: SyncRequest) -> list[Instruction]:
        """A member asks for its assignment; the leader brings everybody's."""
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

    def heartbeat(self, request: HeartbeatRequest) -> list[Instruction]:
        """A member lives. REBALANCE_IN_PROGRESS tells it to rejoin; it is not a failure."""
        error = self._refusal_of_generation(request.claim)
        if error is None:
            self._note_alive(request.claim)
            preparing = self.state is GroupState.PREPARING_REBALANCE
            error = ErrorCode.REBALANCE_IN_PROGRESS if preparing else ErrorCode.NONE
        self._out.answer(request.request, HeartbeatAnswer(error))
        return self._out.drain()

    def commit(self, claim: MemberClaim) -> tuple[ErrorCode, list[Instruction]]:
        """May this client commit offsets? It counts as a heartbeat.

        A consumer without a group (generation -1, no ids) may commit only while the group has no members.
        """
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, []
        if claim.generation < 0 and self.state is GroupState.EMPTY:
            return ErrorCode.NONE, []
        if claim.generation < 0 and not claim.member_id and claim.instance_id is None:
            return ErrorCode.UNKNOWN_MEMBER_ID, []
        error = self._refusal_of_generation(claim)
        if error is not None:
            return error, []
        if self.state is GroupState.COMPLETING_REBALANCE:
            # The member knows the new generation already, so it cannot be asked to rejoin for it: let it sync first.
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

    # --- leaving, politely or not

    def leave(self, request: LeaveRequest) -> list[Instruction]:
        """Members go, or an administrator removes static ones; those who remain rebalance once."""
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
        # A handed-out id that is gone may complete a join that waited for it, but never makes a quiet group rebalance.
        if self.state is GroupState.PREPARING_REBALANCE or len(self._roster) < members_before:
            self._rebalance.start_or_complete()

    # --- timers and writes

    def timer_fired(self, timer: Timer) -> list[Instruction]:
        """A timer that was set, and neither moved nor cancelled since, is due."""
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
            # A client whose request is held cannot heartbeat: its session starts anew when it is answered.
            self._remove(member)
        self._rebalance_without(members_before)

    def written(self, write_id: int, error: ErrorCode) -> list[Instruction]:
        """A record is durable (NONE), or could not be written."""
        if self._rebalance.owns_write(write_id):
            self._rebalance.assignment_written(error)
        else:
            self._static.written(write_id, error)
        return self._out.drain()

    # --- deletion, moves, restarts

    def delete(self) -> ErrorCode:
        """Take the group out of use; only one without members can be deleted."""
        if self.state is GroupState.DEAD:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if self.state is not GroupState.EMPTY:
            return ErrorCode.NON_EMPTY_GROUP
        self._rebalance.end()
        return ErrorCode.NONE

    def unload(self, error: ErrorCode) -> list[Instruction]:
        """This broker leads the group no more: everybody who waits is told so, and nothing is written."""
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
        """Go on where the log ends: members have their full session timeout to be heard of again."""
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

    def validate(self) -> None:
        """Invariants, for tests."""
        self._roster.validate()
        self._rebalance.validate()
        self._static.validate()
