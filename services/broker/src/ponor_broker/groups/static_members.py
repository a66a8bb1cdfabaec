"""Static members (KIP-345) that return, and the write that makes their new member id durable.

A static member that restarts joins without a member id under its instance id. It gets a new member
id and, in a stable group, keeps its assignment without a rebalance. Its older incarnation, if it
still runs, is fenced. The new id must be durable before it is sent: otherwise the member would be
unknown after a restart of the broker.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ponor_kafka.errors import ErrorCode

from ponor_broker.groups.events import JoinRequest
from ponor_broker.groups.instructions import JoinAnswer, Outbox, SyncAnswer, Timer, TimerKind
from ponor_broker.groups.member import Member, RequestId
from ponor_broker.groups.rebalance import GroupState, Rebalance
from ponor_broker.groups.roster import Roster


@dataclass(frozen=True, slots=True)
class _Return:
    """A static member's join, which is answered when its record is durable, and a copy of the member from
    before the join, to restore it if the write fails.
    """

    request: RequestId
    member: Member
    new_member_id: str
    supports_skipping_assignment: bool
    former: Member


class StaticMembers:
    """Returning static members of one group."""

    def __init__(self, roster: Roster, rebalance: Rebalance, outbox: Outbox) -> None:
        self._roster = roster
        self._rebalance = rebalance
        self._out = outbox
        self._returns: dict[int, _Return] = {}

    def rejoin(self, member: Member, request: JoinRequest) -> None:
        """Handle a join that has a known instance id and no member id."""
        back = _Return(
            request=request.request,
            member=member,
            new_member_id=request.new_member_id,
            supports_skipping_assignment=request.supports_skipping_assignment,
            former=replace(member),
        )
        self._fence(member)
        self._rename(member, request.new_member_id)
        self.update(member, request)
        self._rebalance.restart_session(member)
        if (
            self._rebalance.state is GroupState.STABLE
            and self._roster.select_protocol() == self._rebalance.protocol_name
        ):
            assignments = {m.member_id: m.assignment for m in self._roster}
            self._returns[self._out.write(self._rebalance.record(assignments))] = back
            return
        self._roster.hold_join(member, request.request)
        self._rebalance.start_or_complete()

    def update(self, member: Member, request: JoinRequest) -> None:
        """Apply the data of a member's new join."""
        self._roster.set_client(member, request.client_id, request.protocols)
        member.client_host = request.client_host
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = request.rebalance_timeout_ms

    def written(self, write_id: int, error: ErrorCode) -> None:
        """Answer the join, because its record is durable or the write has failed."""
        back = self._returns.pop(write_id, None)
        if back is None:
            return
        if self._roster.get(back.new_member_id) is not back.member:
            self._out.answer(back.request, self._no_longer(back))
        elif error is not ErrorCode.NONE:
            self._go_back(back)
            self._out.answer(back.request, JoinAnswer(error, ""))
        elif self._rebalance.state is not GroupState.STABLE:
            # A rebalance started meanwhile: the member takes part in it.
            self._roster.hold_join(back.member, back.request)
            self._rebalance.start_or_complete()
        else:
            self._tell(back)

    def _tell(self, back: _Return) -> None:
        """Answer with the current generation.

        A returning leader would compute new assignments needlessly. From version 9 on, a field of the answer
        makes the leader skip this. In older versions, the answer names the leader's old id, so that the
        client acts as a follower.
        """
        member, leads = back.member, back.new_member_id == self._roster.leader_id
        self._roster.hold_join(member, back.request)
        if back.supports_skipping_assignment:
            self._rebalance.answer_join(member, skip_assignment=leads)
        else:
            self._rebalance.answer_join(member, leader=back.former.member_id if leads else None)

    def _no_longer(self, back: _Return) -> JoinAnswer:
        holder = self._roster.static_member_id(back.member.instance_id)
        error = ErrorCode.UNKNOWN_MEMBER_ID if holder is None else ErrorCode.FENCED_INSTANCE_ID
        return JoinAnswer(error, back.new_member_id)

    def _go_back(self, back: _Return) -> None:
        member, former = back.member, back.former
        self._rename(member, former.member_id)
        self._roster.set_client(member, former.client_id, former.protocols)
        member.session_timeout_ms = former.session_timeout_ms
        member.rebalance_timeout_ms = former.rebalance_timeout_ms
        self._rebalance.restart_session(member)

    def _fence(self, member: Member) -> None:
        """Answer waiting requests of the older incarnation."""
        joining = self._roster.release_join(member)
        if joining is not None:
            self._out.answer(joining, JoinAnswer(ErrorCode.FENCED_INSTANCE_ID, member.member_id))
        if member.awaiting_sync is not None:
            self._out.answer(member.awaiting_sync, SyncAnswer(ErrorCode.FENCED_INSTANCE_ID))
        member.awaiting_sync = None

    def _rename(self, member: Member, member_id: str) -> None:
        self._out.cancel_timer(Timer(TimerKind.SESSION, member.member_id))
        old_member_id = member.member_id
        self._roster.replace_static(member, member_id)
        self._rebalance.rename(old_member_id, member)

    def end(self, error: ErrorCode) -> None:
        """Answer joins whose writes have not completed, because another broker coordinates the group now."""
        for back in self._returns.values():
            self._out.answer(back.request, JoinAnswer(error, ""))
        self._returns.clear()

    def validate(self) -> None:
        """Check the invariants, for tests."""
        assert all(back.member.instance_id is not None for back in self._returns.values())
