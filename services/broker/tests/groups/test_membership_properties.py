"""The group protocol's guarantees hold for any order of events."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from ponor_broker.groups.events import JoinRequest, LeaveRequest, MemberClaim, SyncRequest
from ponor_broker.groups.instructions import (
    Answer,
    AnswerBody,
    CancelTimer,
    Instruction,
    JoinAnswer,
    SetTimer,
    SyncAnswer,
    Timer,
    TimerKind,
    WriteGroup,
)
from ponor_broker.groups.member import JoinProtocol, RequestId
from ponor_broker.groups.membership import Membership
from ponor_broker.groups.rebalance import GroupState
from ponor_broker.groups.records import GroupRecord
from ponor_broker.groups.settings import GroupSettings
from ponor_kafka.errors import ErrorCode

from tests.examples import examples

CLIENTS = st.sampled_from(["a", "b", "c", "d", "s", "t"])
STATIC = {"s", "t"}
OFFERS = st.sampled_from([("range",), ("range", "sticky"), ("sticky", "range"), ("sticky",)])
SETTINGS = GroupSettings(
    group_members_max=5, group_initial_rebalance_delay_ms=1_000, group_new_member_join_timeout_ms=20_000
)
LONGEST_WAIT_MS = 200_000
"""Well above every timeout that clients ask for here, taken together."""


class GroupMachine(RuleBasedStateMachine):
    """Random clients, a slow and failing disk, and restarts of the broker."""

    @initialize()
    def begin(self) -> None:
        self.now_ms = 0
        self.requests = 0
        self.ids_drawn = 0
        self._boot(None)
        self.durable: GroupRecord | None = None
        self.ids: dict[str, str] = {}
        self.generations: dict[str, int] = {}
        self.plans: dict[tuple[int, int], dict[str, bytes]] = {}
        self.boots = 0

    def _boot(self, record: GroupRecord | None) -> None:
        self.membership = Membership(SETTINGS)
        self.timers: dict[Timer, int] = {}
        self.waiting: dict[RequestId, str] = {}
        self.writes: list[tuple[int, GroupRecord]] = []
        self.highest_generation = 0 if record is None else record.generation
        if record is not None:
            self._run(self.membership.restore(record))

    # --- clients

    @rule(
        client=CLIENTS,
        offers=OFFERS,
        anew=st.booleans(),
        old=st.booleans(),
        rebalance_ms=st.sampled_from([5_000, 30_000]),
    )
    def join(self, client: str, offers: tuple[str, ...], anew: bool, old: bool, rebalance_ms: int) -> None:
        self.ids_drawn += 1
        self._run(
            self.membership.join(
                JoinRequest(
                    member_id="" if anew else self.ids.get(client, ""),
                    instance_id=client if client in STATIC else None,
                    client_id=client,
                    client_host="127.0.0.1",
                    session_timeout_ms=10_000,
                    rebalance_timeout_ms=rebalance_ms,
                    protocol_type="consumer",
                    protocols=tuple(JoinProtocol(name, b"t") for name in offers),
                    requires_known_member_id=not old,
                    supports_skipping_assignment=not old,
                    new_member_id=f"{client}.{self.ids_drawn}",
                    request=self._number(client),
                )
            )
        )

    @rule(client=CLIENTS)
    def sync(self, client: str) -> None:
        members = [m.member_id for m in self.membership.members()]
        plan = {member_id: f"{member_id}@{self.membership.generation}".encode() for member_id in members}
        request = SyncRequest(self._claim(client), "consumer", None, plan, self._number(client))
        self._run(self.membership.sync(request))

    @rule(client=CLIENTS)
    def beat(self, client: str) -> None:
        self._run(self.membership.heartbeat(self._claim(client))[1])

    @rule(client=CLIENTS)
    def commit(self, client: str) -> None:
        claim = self._claim(client)
        error, instructions = self.membership.commit(claim)
        if error is ErrorCode.NONE and claim.generation >= 0:
            assert claim.generation == self.membership.generation
            assert claim.member_id in [m.member_id for m in self.membership.members()]
        self._run(instructions)

    @rule(clients=st.lists(CLIENTS, min_size=1, max_size=2))
    def leave(self, clients: list[str]) -> None:
        claims = tuple(self._claim(client) for client in clients)
        self._run(self.membership.leave(LeaveRequest(claims, self._number(clients[0]))))

    @rule(client=st.sampled_from(sorted(STATIC)))
    def evict(self, client: str) -> None:
        self._run(self.membership.leave(LeaveRequest((MemberClaim("", client),), self._number("admin"))))

    @rule(
        clients=st.lists(CLIENTS, min_size=1, max_size=4, unique=True),
        until=st.sampled_from(["joined", "synced", "stable"]),
    )
    def complete_a_rebalance(self, clients: list[str], until: str) -> None:
        """Let all clients act correctly until a rebalance is complete. Random steps seldom reach this."""
        present = [m.client_id for m in self.membership.members()]
        for client in dict.fromkeys([*present, *clients]):
            self.join(client, ("range", "sticky"), anew=client not in present, old=True, rebalance_ms=5_000)
        self._pass_time(5_000)
        if until == "joined":
            return
        for client in present + clients:
            self.sync(client)
        while until == "stable" and self.writes:
            self.disk_ends_a_write(fails=False)

    def _number(self, client: str) -> RequestId:
        self.requests += 1
        request = RequestId(self.requests)
        self.waiting[request] = client
        return request

    def _claim(self, client: str) -> MemberClaim:
        instance_id = client if client in STATIC else None
        return MemberClaim(self.ids.get(client, "unknown"), instance_id, self.generations.get(client, -1))

    # --- time, disk, restart

    @rule(ms=st.sampled_from([0, 1, 1_000, 3_000, 9_999, 30_000]))
    def time_passes(self, ms: int) -> None:
        self._pass_time(ms)

    @precondition(lambda self: self.writes)
    @rule(fails=st.booleans())
    def disk_ends_a_write(self, fails: bool) -> None:
        write_id, record = self.writes.pop(0)
        if not fails:
            self.durable = record
        error = ErrorCode.COORDINATOR_NOT_AVAILABLE if fails else ErrorCode.NONE
        self._run(self.membership.written(write_id, error))

    @rule(orderly=st.booleans(), rarely=st.integers(0, 3))
    def broker_restarts(self, orderly: bool, rarely: int) -> None:
        if rarely:
            return
        if orderly:
            self._run(self.membership.unload(ErrorCode.NOT_COORDINATOR))
            assert not self.waiting
            assert not self.timers
        self.boots += 1
        self._boot(self.durable)

    def _pass_time(self, ms: int) -> None:
        until_ms = self.now_ms + ms
        while due := [(at, i, timer) for i, (timer, at) in enumerate(self.timers.items()) if at <= until_ms]:
            at_ms, _, timer = min(due, key=lambda entry: entry[:2])
            self.now_ms = max(self.now_ms, at_ms)
            del self.timers[timer]
            self._run(self.membership.timer_fired(timer))
        self.now_ms = until_ms

    # --- carrying out, with checks of every answer

    def _run(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Answer(request, body):
                    self._check_answer(self.waiting.pop(request), body)  # KeyError: answered twice
                case SetTimer(timer, delay_ms):
                    self.timers[timer] = self.now_ms + delay_ms
                case CancelTimer(timer):
                    self.timers.pop(timer, None)
                case WriteGroup(write_id, record):
                    self.writes.append((write_id, record))
        assert self.membership.generation >= self.highest_generation, "a generation went back"
        self.highest_generation = self.membership.generation

    def _check_answer(self, client: str, body: AnswerBody) -> None:
        if isinstance(body, JoinAnswer):
            if body.error in {ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED}:
                self.ids[client] = body.member_id
            if body.error is ErrorCode.NONE:
                self.generations[client] = body.generation
                assert body.generation == self.membership.generation
                known = [m.member_id for m in self.membership.members()]
                assert body.member_id in known
                assert not body.members or [row.member_id for row in body.members] == known
        elif isinstance(body, SyncAnswer) and body.error is ErrorCode.NONE:
            # All members of a generation get shares of the same durable assignments.
            assert self.durable is not None
            generation = self.generations[client]
            assert generation == self.membership.generation == self.durable.generation
            plan = {row.member_id: row.assignment for row in self.durable.members}
            first = self.plans.setdefault((self.boots, generation), dict(plan))
            shares = sorted(first.values())
            assert sorted(plan.values()) == shares, "a generation had two plans"
            assert body.assignment in shares

    # --- promises

    @invariant()
    def is_consistent(self) -> None:
        self.membership.validate()

    @invariant()
    def nobody_of_a_stable_group_waits(self) -> None:
        if self.membership.state is GroupState.STABLE:
            assert all(not member.is_waiting for member in self.membership.members())

    @invariant()
    def every_silence_ends(self) -> None:
        """Each member has a timer, or waits for something with a timer."""
        for member in self.membership.members():
            is_timed = Timer(TimerKind.SESSION, member.member_id) in self.timers
            assert is_timed or member.is_waiting
        state = self.membership.state
        if state is GroupState.PREPARING_REBALANCE:
            assert Timer(TimerKind.JOIN) in self.timers
        if state is GroupState.COMPLETING_REBALANCE:
            assert Timer(TimerKind.SYNC) in self.timers or self.writes
        members = {member.member_id for member in self.membership.members()}
        assert len(self.timers) <= SETTINGS.group_members_max + 2, (self.timers, members)

    def teardown(self) -> None:
        """When all clients are silent and the disk works, every request is answered and the group becomes
        empty.
        """
        if not hasattr(self, "membership"):
            return
        for _ in range(40):
            while self.writes:
                self.disk_ends_a_write(fails=False)
            self._pass_time(LONGEST_WAIT_MS // 40)
        while self.writes:
            self.disk_ends_a_write(fails=False)
        assert not self.waiting, "a request waits forever"
        assert self.membership.state is GroupState.EMPTY
        assert not self.timers


GroupMachine.TestCase.settings = settings(max_examples=examples(200), stateful_step_count=50, deadline=None)
TestGroupMachine: Any = GroupMachine.TestCase
