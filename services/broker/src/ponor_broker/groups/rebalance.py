"""The rebalance of a classic group: from one generation to the next.

    Empty ── first join ──▶ PreparingRebalance ── all rejoined, or timeout ──▶ CompletingRebalance
    CompletingRebalance ── assignments durable ──▶ Stable
    PreparingRebalance ── no members ──▶ Empty
    CompletingRebalance or Stable ── join, leave, expired member ──▶ PreparingRebalance

Implements states, generations, the join and sync windows, and the distribution of results. `membership.py`
decides which requests are allowed. The rules are those of Kafka's group coordinator, but every request gets
an answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from ponor_kafka.errors import ErrorCode

from ponor_broker.groups.instructions import JoinAnswer, JoinedMember, Outbox, SyncAnswer, Timer, TimerKind
from ponor_broker.groups.member import Member, RequestId
from ponor_broker.groups.records import GroupRecord, MemberRecord
from ponor_broker.groups.roster import Roster

_JOIN_TIMER = Timer(TimerKind.JOIN)
_SYNC_TIMER = Timer(TimerKind.SYNC)


class GroupState(StrEnum):
    """State names of DescribeGroups and ListGroups."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    ASSIGNING = "Assigning"
    """Of a consumer group: the target is older than the group epoch."""
    RECONCILING = "Reconciling"
    """Of a consumer group: a member has not reached its target."""
    NOT_READY = "NotReady"
    """Of a streams group: topics are missing, or have incorrect numbers of partitions."""
    STABLE = "Stable"
    DEAD = "Dead"


class Rebalance:
    """State and generation of one group. Methods add instructions to the outbox."""

    def __init__(self, roster: Roster, outbox: Outbox, *, initial_delay_ms: int) -> None:
        self._roster = roster
        self._out = outbox
        self._initial_delay_ms = initial_delay_ms
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol_name: str | None = None
        self._is_gathering = False
        """Whether this is the first rebalance of an empty group, which lasts its whole delay even if all
        members have joined."""
        self._gathering_left_ms = 0
        self._grew = False
        self._unsynced: dict[str, None] = {}
        self._assignment_write: int | None = None
        self._assignments: dict[str, bytes] = {}

    # --- PreparingRebalance

    def start_or_complete(self) -> None:
        """Start a rebalance after a change, or complete the running one if all members have joined."""
        if self.state is GroupState.PREPARING_REBALANCE:
            if not self._is_gathering and self._roster.all_joined:
                self._complete_join()
        elif self.state is not GroupState.DEAD:
            self._start()

    def note_new_member(self) -> None:
        """Note the first join of a member, which extends the first rebalance of an empty group."""
        if self._is_gathering:
            self._grew = True

    def _start(self) -> None:
        if self.state is GroupState.COMPLETING_REBALANCE:
            self._drop_assignments(ErrorCode.REBALANCE_IN_PROGRESS)
        self._out.cancel_timer(_SYNC_TIMER)
        self._unsynced.clear()
        self._is_gathering = self.state is GroupState.EMPTY
        self.state = GroupState.PREPARING_REBALANCE
        if self._is_gathering:
            # As in Kafka, a shorter rebalance timeout of the members does not shorten the first delay.
            delay_ms = self._initial_delay_ms
            self._gathering_left_ms = max(self._roster.rebalance_timeout_ms - delay_ms, 0)
            self._grew = False
            self._out.set_timer(_JOIN_TIMER, delay_ms)
        elif self._roster.all_joined:
            self._complete_join()
        else:
            self._out.set_timer(_JOIN_TIMER, self._roster.rebalance_timeout_ms)

    def join_timer_fired(self) -> None:
        """Complete the join phase. If new members have joined, extend the first rebalance instead."""
        if self.state is not GroupState.PREPARING_REBALANCE:
            return
        if self._is_gathering and self._grew and self._gathering_left_ms:
            self._grew = False
            delay_ms = min(self._initial_delay_ms, self._gathering_left_ms)
            self._gathering_left_ms -= delay_ms
            self._out.set_timer(_JOIN_TIMER, delay_ms)
        else:
            self._complete_join()

    def _complete_join(self) -> None:
        """Remove members that did not rejoin (static ones stay until their session ends); the
        others get a new generation.
        """
        assert self.state is GroupState.PREPARING_REBALANCE
        self._out.cancel_timer(_JOIN_TIMER)
        for member in self._roster:
            if member.awaiting_join is None and member.instance_id is None:
                self._roster.remove(member)
                self._out.cancel_timer(Timer(TimerKind.SESSION, member.member_id))
        if self._roster and not self._roster.elect_joined_leader():
            # Only static members remain, and none has rejoined: wait until they rejoin or their sessions end.
            self._is_gathering = False
            self._out.set_timer(_JOIN_TIMER, self._roster.rebalance_timeout_ms)
            return
        self._is_gathering = False
        self.generation = self.generation + 1 if self.generation < 0x7FFFFFFF else 1
        self._unsynced.clear()
        if not self._roster:
            self.protocol_name = None
            self.state = GroupState.EMPTY
            self._out.write(self.record({}))
            return
        self.protocol_name = self._roster.select_protocol()
        self.state = GroupState.COMPLETING_REBALANCE
        self._out.set_timer(_SYNC_TIMER, self._roster.rebalance_timeout_ms)
        for member in self._roster:
            self.answer_join(member)
            member.is_new = False
            self._unsynced[member.member_id] = None

    def answer_join(
        self, member: Member, *, leader: str | None = None, skip_assignment: bool = False
    ) -> None:
        """Answer a member's join with the current generation and restart its session. `leader`
        overrides the real leader (for static members).
        """
        request = self._roster.release_join(member)
        self.restart_session(member)
        if request is None:
            return
        leads = leader is None and member.member_id == self._roster.leader_id
        self._out.answer(
            request,
            JoinAnswer(
                ErrorCode.NONE,
                member_id=member.member_id,
                generation=self.generation,
                protocol_type=self._roster.protocol_type,
                protocol_name=self.protocol_name,
                leader=leader or self._roster.leader_id or "",
                skip_assignment=skip_assignment,
                members=self._members_for_leader() if leads else (),
            ),
        )

    def _members_for_leader(self) -> tuple[JoinedMember, ...]:
        return tuple(
            JoinedMember(m.member_id, m.instance_id, m.metadata_for(self.protocol_name)) for m in self._roster
        )

    def restart_session(self, member: Member) -> None:
        """Restart a member's session timer."""
        self._out.set_timer(Timer(TimerKind.SESSION, member.member_id), member.session_timeout_ms)

    # --- CompletingRebalance

    def sync(self, member: Member, request: RequestId, assignments: Mapping[str, bytes]) -> None:
        """Hold a member's SyncGroup until the leader's assignments are durable; the leader's
        request contains them.
        """
        assert self.state is GroupState.COMPLETING_REBALANCE
        self._answer_sync(
            member, ErrorCode.REBALANCE_IN_PROGRESS
        )  # answers an older request that the client has given up
        member.awaiting_sync = request
        self.note_synced(member)
        if member.member_id == self._roster.leader_id and self._assignment_write is None:
            self._assignments = {m.member_id: assignments.get(m.member_id, b"") for m in self._roster}
            self._assignment_write = self._out.write(self.record(self._assignments))

    def note_synced(self, member: Member) -> None:
        """Note that a member has synced or was removed; after the last one, cancel the sync timer."""
        if member.member_id in self._unsynced:
            del self._unsynced[member.member_id]
            if not self._unsynced:
                self._out.cancel_timer(_SYNC_TIMER)

    def sync_timer_fired(self) -> None:
        """Remove members that joined and did not sync in time."""
        if self.state not in {GroupState.COMPLETING_REBALANCE, GroupState.STABLE} or not self._unsynced:
            return
        for member_id in self._unsynced:
            member = self._roster.get(member_id)
            if member is not None:
                self._roster.remove(member)
                self._out.cancel_timer(Timer(TimerKind.SESSION, member_id))
        self._unsynced.clear()
        self._start()

    def owns_write(self, write_id: int) -> bool:
        """Return whether this is the write of the current assignments."""
        return write_id == self._assignment_write

    def assignment_written(self, error: ErrorCode) -> None:
        """Handle the outcome of writing the assignments."""
        assert self.state is GroupState.COMPLETING_REBALANCE
        self._assignment_write = None
        if error is not ErrorCode.NONE:
            self._drop_assignments(error)
            self._start()
            return
        for member in self._roster:
            self._roster.assign(member, self._assignments.get(member.member_id, b""))
        self._assignments = {}
        self.state = GroupState.STABLE
        for member in self._roster:
            self._answer_sync(member, ErrorCode.NONE)

    def _drop_assignments(self, error: ErrorCode) -> None:
        self._assignment_write = None
        self._assignments = {}
        for member in self._roster:
            self._roster.assign(member, b"")
            self._answer_sync(member, error)

    def _answer_sync(self, member: Member, error: ErrorCode) -> None:
        request, member.awaiting_sync = member.awaiting_sync, None
        if request is None:
            return
        self.restart_session(member)
        self._out.answer(request, self.sync_answer(member) if error is ErrorCode.NONE else SyncAnswer(error))

    def sync_answer(self, member: Member) -> SyncAnswer:
        """Return the member's assignment."""
        return SyncAnswer(ErrorCode.NONE, self._roster.protocol_type, self.protocol_name, member.assignment)

    # --- any state

    def rename(self, old_member_id: str, member: Member) -> None:
        """Note the new id of a static member."""
        if old_member_id in self._unsynced:
            del self._unsynced[old_member_id]
            self._unsynced[member.member_id] = None

    def restore(self, record: GroupRecord) -> None:
        """Restore the generation from the log, after the roster."""
        self.generation = record.generation
        self.protocol_name = record.protocol_name
        self.state = GroupState.STABLE if self._roster else GroupState.EMPTY

    def adopt(self, generation: int) -> GroupRecord:
        """Begin as a stable generation of the roster's members; return its record."""
        self.generation = generation
        self.protocol_name = self._roster.select_protocol()
        self.state = GroupState.STABLE
        return self.record({member.member_id: member.assignment for member in self._roster})

    def end(self) -> None:
        """Stop, because the group is deleted or another broker coordinates it."""
        self.state = GroupState.DEAD
        self._assignment_write = None
        self._unsynced.clear()
        self._out.cancel_timer(_JOIN_TIMER)
        self._out.cancel_timer(_SYNC_TIMER)

    def record(self, assignments: Mapping[str, bytes]) -> GroupRecord:
        """Return the current generation as a record."""
        return GroupRecord(
            protocol_type=self._roster.protocol_type or "",
            generation=self.generation,
            protocol_name=self.protocol_name,
            leader=self._roster.leader_id,
            members=tuple(
                MemberRecord(
                    member_id=m.member_id,
                    instance_id=m.instance_id,
                    client_id=m.client_id,
                    client_host=m.client_host,
                    rebalance_timeout_ms=m.rebalance_timeout_ms,
                    session_timeout_ms=m.session_timeout_ms,
                    subscription=m.metadata_for(self.protocol_name),
                    assignment=assignments.get(m.member_id, b""),
                )
                for m in self._roster
            ),
        )

    def validate(self) -> None:
        """Check the invariants, for tests."""
        members = list(self._roster)
        if self.state in {GroupState.EMPTY, GroupState.DEAD}:
            assert not members
        else:
            assert members or self._roster.pending_count or self.state is GroupState.PREPARING_REBALANCE
        for member in members:
            assert member.awaiting_join is None or self.state is GroupState.PREPARING_REBALANCE
            assert member.awaiting_sync is None or self.state is GroupState.COMPLETING_REBALANCE
            assert not member.is_new or member.awaiting_join is not None
        assert self._assignment_write is None or self.state is GroupState.COMPLETING_REBALANCE
        assert not self._unsynced or self.state in {GroupState.COMPLETING_REBALANCE, GroupState.STABLE}
        assert all(member_id in self._roster for member_id in self._unsynced)
        assert not (self._is_gathering and self.state is not GroupState.PREPARING_REBALANCE)
