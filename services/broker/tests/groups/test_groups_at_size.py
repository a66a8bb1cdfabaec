"""Groups of fifty and of a thousand members: rebalances complete, at linear cost."""

from __future__ import annotations

import asyncio
import struct
import sys
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from ponor_broker.groups.events import JoinRequest, MemberClaim, SyncRequest
from ponor_broker.groups.instructions import JoinAnswer
from ponor_broker.groups.member import JoinProtocol
from ponor_broker.groups.rebalance import GroupState
from ponor_broker.groups.settings import GroupSettings
from ponor_kafka.errors import ErrorCode

PARTITIONS = 500
REBALANCE = frozenset({ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION})


def subscription(owned: list[int], generation: int) -> bytes:
    """Return a cooperative-sticky consumer's subscription: topics, user data with its generation, owned
    partitions.
    """
    owned_bytes = struct.pack(">ih1si", 1, 1, b"t", len(owned)) + struct.pack(f">{len(owned)}i", *owned)
    head = struct.pack(">hih1s", 3, 1, 1, b"t") + struct.pack(">ii", 4, generation)
    return head + owned_bytes + struct.pack(">i", generation)


class Member:
    """A consumer with eager rebalances, in virtual time: joins, syncs, heartbeats every three seconds."""

    def __init__(self, world: Any, name: str, *, instance_id: str | None = None) -> None:
        self.world = world
        self.name = name
        self.instance_id = instance_id
        self.member_id = ""
        self.generation = -1
        self.share: list[int] | None = None
        self.rebalances = 0
        self.task = asyncio.ensure_future(self.live())

    @property
    def claim(self) -> MemberClaim:
        return MemberClaim(self.member_id, self.instance_id, self.generation)

    async def live(self) -> None:
        coordinator = self.world.coordinator
        while True:
            joined = await coordinator.join_group("g", self._request())
            self.member_id = joined.member_id
            if joined.error is not ErrorCode.NONE:
                assert joined.error in REBALANCE | {
                    ErrorCode.MEMBER_ID_REQUIRED,
                    ErrorCode.UNKNOWN_MEMBER_ID,
                }
                self.member_id = "" if joined.error is ErrorCode.UNKNOWN_MEMBER_ID else joined.member_id
                continue
            self.generation = joined.generation
            synced = await coordinator.sync_group("g", SyncRequest(self.claim, None, None, _plan(joined)))
            if synced.error is ErrorCode.NONE:
                self.rebalances += 1
                self.share = list(struct.unpack(f">{len(synced.assignment) // 4}i", synced.assignment))
                await self._beat()
            self.share = None

    async def _beat(self) -> None:
        while self.world.coordinator.heartbeat("g", self.claim) is ErrorCode.NONE:
            await self.world.clock.sleep(3)

    def _request(self) -> JoinRequest:
        return JoinRequest(
            member_id=self.member_id,
            instance_id=self.instance_id,
            client_id=self.name,
            client_host="/127.0.0.1",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=60_000,
            protocol_type="consumer",
            protocols=(
                JoinProtocol("cooperative-sticky", subscription(self.share or [], self.generation)),
                JoinProtocol("range", subscription([], -1)),
            ),
            requires_known_member_id=True,
            supports_skipping_assignment=True,
        )

    def die(self) -> None:
        self.task.cancel()


def _plan(joined: JoinAnswer) -> dict[str, bytes]:
    if joined.skip_assignment or not joined.members:
        return {}
    ids = sorted(row.member_id for row in joined.members)
    shares = [range(n, PARTITIONS, len(ids)) for n in range(len(ids))]
    return {
        member_id: struct.pack(f">{len(share)}i", *share)
        for member_id, share in zip(ids, shares, strict=True)
    }


class Team:
    def __init__(self, world: Any) -> None:
        self.world = world
        self.members: list[Member] = []

    def add(self, count: int, *, static: bool = False) -> None:
        first = len(self.members)
        self.members += [
            Member(self.world, f"c{n}", instance_id=f"i{n}" if static else None)
            for n in range(first, first + count)
        ]

    @property
    def is_settled(self) -> bool:
        shares = [member.share for member in self.members]
        if any(share is None for share in shares) or len({m.generation for m in self.members}) > 1:
            return False
        owned = sorted(partition for share in shares for partition in share or ())
        return owned == list(range(PARTITIONS))

    async def settle(self, what: str) -> None:
        start_ns = self.world.clock.now_ns
        for _ in range(1_000):
            if self.is_settled:
                break
            await self.world.clock.pass_ms(100)
        assert self.is_settled, what
        took_s = (self.world.clock.now_ns - start_ns) / 1e9
        sys.stdout.write(f"\n{what}: settled after {took_s:.1f} s of virtual time")

    async def end(self) -> None:
        for member in self.members:
            member.die()
        await asyncio.gather(*(member.task for member in self.members), return_exceptions=True)


@pytest.fixture
async def team(world_type: Any) -> Any:
    world = world_type(GroupSettings(offsets_topic_partitions=1, group_initial_rebalance_delay_ms=3_000))
    world.topics["__consumer_offsets"] = (UUID(int=99), 1)
    await world.start()
    team = Team(world)
    yield team
    await team.end()
    await world.coordinator.close()
    assert world.failures == []


async def test_fifty_members_join_leave_and_crash(team: Team) -> None:
    coordinator = team.world.coordinator
    team.add(25)
    await team.settle("25 members join")
    team.add(25)
    await team.settle("25 more join")
    leaving, team.members = team.members[:10], team.members[10:]
    for member in leaving:
        member.die()
    await coordinator.leave_group("g", tuple(member.claim for member in leaving))
    await team.settle("10 members leave")
    dying, team.members = team.members[:10], team.members[10:]
    for member in dying:
        member.die()
    await team.world.clock.pass_ms(10_000)
    await team.settle("10 members die")
    assert len(coordinator.describe_group("g").members) == 30
    assert all(len(member.share or ()) in {16, 17} for member in team.members)


async def test_static_members_restart_without_a_rebalance(team: Team) -> None:
    team.add(50, static=True)
    await team.settle("50 static members join")
    generation = team.world.coordinator.describe_group("g")
    before = {member.instance_id: member.share for member in team.members}
    assert generation.state is GroupState.STABLE
    for number, member in enumerate(team.members):
        member.die()
        team.members[number] = Member(team.world, member.name, instance_id=member.instance_id)
        await team.world.clock.pass_ms(200)
    await team.settle("50 static members restart one by one")
    assert {member.instance_id: member.share for member in team.members} == before
    assert [member.rebalances for member in team.members] == [1] * 50, "since its restart each synced once"
    assert {member.generation for member in team.members} == {1}


async def test_all_members_are_restored_after_a_broker_restart(team: Team) -> None:
    world = team.world
    team.add(50)
    await team.settle("50 members join")
    before = {member.member_id: member.share for member in team.members}
    await world.kill()
    await world.start()
    await world.clock.pass_ms(30_000)
    assert {member.member_id: member.share for member in team.members} == before
    assert len(world.coordinator.describe_group("g").members) == 50


async def _events_of(world_type: Any, size: int) -> int:
    """Return the number of lines that the coordinator executes to form a group, a machine-independent
    cost.
    """
    world = world_type(GroupSettings(offsets_topic_partitions=1, group_initial_rebalance_delay_ms=3_000))
    world.topics["__consumer_offsets"] = (UUID(int=99), 1)
    await world.start()
    team = Team(world)
    counter = _LineCounter("ponor_broker/groups/")
    with counter:
        team.add(size)
        for _ in range(200):
            if team.members[-1].share is not None:
                break
            await world.clock.pass_ms(100)
    assert team.is_settled
    await team.end()
    await world.coordinator.close()
    return counter.lines


class _LineCounter:
    """Counts executed lines of files whose path has a part."""

    def __init__(self, part: str) -> None:
        self.part = part
        self.lines = 0
        self._before: Any = None

    def __enter__(self) -> None:
        self._before = sys.gettrace()
        sys.settrace(self._call)

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _call(self, frame: Any, event: str, _: object) -> Callable[..., Any] | None:
        del event
        return self._line if self.part in frame.f_code.co_filename else None

    def _line(self, frame: Any, event: str, _: object) -> Callable[..., Any]:
        del frame
        self.lines += event == "line"
        return self._line


async def test_the_cost_of_forming_a_group_is_linear(
    world_type: Any,
) -> None:
    small, large = await _events_of(world_type, 50), await _events_of(world_type, 400)
    sys.stdout.write(f"\nlines run per member: {small / 50:.0f} of 50, {large / 400:.0f} of 400")
    assert large / 400 < 1.5 * small / 50
