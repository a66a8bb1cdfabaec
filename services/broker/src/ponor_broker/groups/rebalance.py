"""The rebalance of a classic group: from one generation to the next.

    Empty ──first join──▶ PreparingRebalance ──all rejoined, or time is over──▶ CompletingRebalance ──leader's plan durable──▶ Stable
      ▲                     ▲      │ nobody is left                                │ join, leave, lost member                  │
      └─────────────────────┼──────┘                                             ◀─┴──────────────────────────────────────────┘
                            └──────────────────────────────────────────────────────

What lives here: states, generation, the two windows (join, sync), the hand-out of results. Who may ask for what is decided in
`membership.py`. The rules are those of Kafka's group coordinator; where it leaves a request without an answer, this one answers it.
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
    """As DescribeGroups and ListGroups name them."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class Rebalance:
    """State and generation of one group. Methods put instructions into the outbox."""

    def __init__(self, roster: Roster, outbox: Outbox, *, initial_delay_ms: int) -> None:
        self._roster = roster
        self._out = outbox
        self._initial_delay_ms = initial_delay_ms
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol_name: str | None = None
        self._is_gathering = False
        """In the first rebalance of an empty group, which lasts its whole delay even when all known members are there."""
        self._gathering_left_ms = 0
        self._grew = False
        self._unsynced: dict[str, None] = {}
        self._assignment_write: int | None = None
        self._assignments: dict[str, bytes] = {}

    # --- PreparingRebalance

    def start_or_complete(self) -> None:
        """Something changed: begin a rebalance, or see whether the running one is complete now."""
        if self.state is GroupState.PREPARING_REBALANCE:
            if not self._is_gathering and self._roster.all_joined:
                self._complete_join()
        elif self.state is not GroupState.DEAD:
            self._start()

    def note_new_member(self) -> None:
        """A first join came while an empty group gathers: give others the same time again."""
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
            # As Kafka: the first delay is whole even where the members' rebalance timeout is shorter.
            delay_ms = self._initial_delay_ms
            self._gathering_left_ms = max(self._roster.rebalance_timeout_ms - delay_ms, 0)
            self._grew = False
            self._out.set_timer(_JOIN_TIMER, delay_ms)
        elif self._roster.all_joined:
            self._complete_join()
        else:
            self._out.set_timer(_JOIN_TIMER, self._roster.rebalance_timeout_ms)

    def join_timer_fired(self) -> None:
        """The time for joining is over."""
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
        """Members that did not rejoin are out (static ones stay until their session ends); the others get a new generation."""
        assert self.state is GroupState.PREPARING_REBALANCE
        self._out.cancel_timer(_JOIN_TIMER)
        for member in self._roster:
            if member.awaiting_join is None and member.instance_id is None:
                self._roster.remove(member)
                self._out.cancel_timer(Timer(TimerKind.SESSION, member.member_id))
        if self._roster and not self._roster.elect_joined_leader():
            # Only silent static members are left: their sessions decide.
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
        """Tell a member the present generation; its session starts anew. `leader` may name another than the real one (static members)."""
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
        """The member was heard of."""
        self._out.set_timer(Timer(TimerKind.SESSION, member.member_id), member.session_timeout_ms)

    # --- CompletingRebalance

    def sync(self, member: Member, request: RequestId, assignments: Mapping[str, bytes]) -> None:
        """Hold a member's SyncGroup until the leader's plan is durable; the leader brings the plan."""
        assert self.state is GroupState.COMPLETING_REBALANCE
        self._answer_sync(
            member, ErrorCode.REBALANCE_IN_PROGRESS
        )  # an older one of the same member: it was given up
        member.awaiting_sync = request
        self.note_synced(member)
        if member.member_id == self._roster.leader_id and self._assignment_write is None:
            self._assignments = {m.member_id: assignments.get(m.member_id, b"") for m in self._roster}
            self._assignment_write = self._out.write(self.record(self._assignments))

    def note_synced(self, member: Member) -> None:
        """The member came for its assignment, or is gone; when none is left, nobody is removed for not coming."""
        if member.member_id in self._unsynced:
            del self._unsynced[member.member_id]
            if not self._unsynced:
                self._out.cancel_timer(_SYNC_TIMER)

    def sync_timer_fired(self) -> None:
        """Members that joined and never synced are out."""
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
        """Is it the write of a plan that is still wanted?"""
        return write_id == self._assignment_write

    def assignment_written(self, error: ErrorCode) -> None:
        """The plan is durable, or could not be made so."""
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
        """The member's share of the plan in force."""
        return SyncAnswer(ErrorCode.NONE, self._roster.protocol_type, self.protocol_name, member.assignment)

    # --- any state

    def rename(self, old_member_id: str, member: Member) -> None:
        """A static member has another id."""
        if old_member_id in self._unsynced:
            del self._unsynced[old_member_id]
            self._unsynced[member.member_id] = None

    def restore(self, record: GroupRecord) -> None:
        """Take over the generation that the log holds; the roster is filled already."""
        self.generation = record.generation
        self.protocol_name = record.protocol_name
        self.state = GroupState.STABLE if self._roster else GroupState.EMPTY

    def end(self) -> None:
        """The group is deleted, or led elsewhere."""
        self.state = GroupState.DEAD
        self._assignment_write = None
        self._unsynced.clear()
        self._out.cancel_timer(_JOIN_TIMER)
        self._out.cancel_timer(_SYNC_TIMER)

    def record(self, assignments: Mapping[str, bytes]) -> GroupRecord:
        """The present generation as it is kept."""
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
        """Invariants, for tests."""
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
