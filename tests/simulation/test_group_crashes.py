"""Consumer groups on a machine that crashes and loses power: committed offsets stay, and a
generation has one plan.

The real coordinator runs on real partitions, streams and write-ahead log, over the simulated disk
and object store; the controller is a model. Members are outside the machine: they send requests,
wait, and repeat them, as clients do.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
from ponor_broker.groups.coordinator import GroupCoordinator
from ponor_broker.groups.events import JoinRequest, MemberClaim, SyncRequest
from ponor_broker.groups.instructions import JoinAnswer
from ponor_broker.groups.member import JoinProtocol
from ponor_broker.groups.rebalance import GroupState
from ponor_broker.groups.records import CommittedOffset
from ponor_broker.groups.settings import GroupSettings
from ponor_broker.serving import Serving
from ponor_kafka.errors import ErrorCode
from ponor_kafka.internal_topics import OFFSETS_TOPIC
from ponor_runtime.runtime import Runtime
from s3stream.settings import KIB

from tests.simulation.coverage_search import below, check_reached
from tests.simulation.crashing_broker import NODE_ID, TOPIC_PARTITIONS, CrashingBroker, immediately

SEEDS = int(os.environ.get("PONOR_SEEDS", "40"))
BATCH = 20
RECORDED = 4
"""The seeds below this number normally reach every state."""
OFFSETS_PARTITIONS = 3
GROUPS = ("g", "h")
SESSION_MS = 6_000
SETTINGS = GroupSettings(
    offsets_topic_partitions=OFFSETS_PARTITIONS,
    group_initial_rebalance_delay_ms=200,
    # So small that logs are rewritten and trimmed several times in every life.
    offsets_rewrite_log_bytes_min=4 * KIB,
    offsets_rewrite_ratio=2,
)


@dataclass(frozen=True, slots=True)
class Commit:
    """An acknowledged commit."""

    group: str
    partition: int
    offset: int
    generation: int
    asked_at: float
    told_at: float


class GroupWorld(CrashingBroker[GroupCoordinator]):
    """The clients of groups and their history."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, OFFSETS_TOPIC, OFFSETS_PARTITIONS)
        self.commits: list[Commit] = []
        self.plans: dict[tuple[str, int], dict[str, bytes]] = {}
        self.next_offset: dict[tuple[str, int], int] = {}
        self.told = asyncio.Event()

    def begin(self, runtime: Runtime, broker: Any, serving: Serving) -> GroupCoordinator:
        coordinator = GroupCoordinator(
            broker, broker, broker, serving, node_id=NODE_ID, runtime=runtime, settings=SETTINGS
        )
        coordinator.start()
        return coordinator

    # --- the clients

    async def member(self, group: str, name: str) -> None:
        """A consumer: it joins, syncs, commits its partitions and heartbeats; sometimes it leaves
        or is silent.
        """
        member_id = ""
        while not self.quiet:
            joined = await self._join(group, name, member_id)
            if joined is None:
                continue
            member_id = joined.member_id
            if joined.error is not ErrorCode.NONE:
                if joined.error in {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID}:
                    member_id = ""
                await asyncio.sleep(0.05)
                continue
            claim = MemberClaim(member_id, None, joined.generation)
            if await self._sync(group, claim, joined) and await self._consume(group, claim):
                member_id = ""

    async def _join(self, group: str, name: str, member_id: str) -> JoinAnswer | None:
        request = JoinRequest(
            member_id=member_id,
            instance_id=None,
            client_id=name,
            client_host="/127.0.0.1",
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=3_000,
            protocol_type="consumer",
            protocols=(JoinProtocol("range", b"t"),),
            requires_known_member_id=True,
            supports_skipping_assignment=True,
        )
        answer: JoinAnswer | None = await self.ask(lambda c: c.join_group(group, request), 8.0)
        return answer

    async def _sync(self, group: str, claim: MemberClaim, joined: JoinAnswer) -> bool:
        shares: dict[str, list[int]] = {row.member_id: [] for row in joined.members}
        for partition in range(TOPIC_PARTITIONS if shares else 0):
            list(shares.values())[partition % len(shares)].append(partition)
        plan = {member: bytes(partitions) for member, partitions in shares.items()}
        synced = await self.ask(
            lambda c: c.sync_group(group, SyncRequest(claim, "consumer", "range", plan)), 8.0
        )
        if synced is None or synced.error is not ErrorCode.NONE:
            return False
        told = self.plans.setdefault((group, claim.generation), {})
        assert told.setdefault(claim.member_id, synced.assignment) == synced.assignment, (
            "a generation had two plans"
        )
        owned = [partition for share in told.values() for partition in share]
        assert len(owned) == len(set(owned)), f"generation {claim.generation}: a partition has two owners"
        return True

    async def _consume(self, group: str, claim: MemberClaim) -> bool:
        """Consume until the member must rejoin (False), or has left or was silent too long (True)."""
        share = self.plans[group, claim.generation][claim.member_id]
        while not self.quiet:
            await asyncio.sleep(self.chance.uniform(0.01, 0.5))
            dice = self.chance.random()
            if dice < 0.02:
                await self.ask(lambda c: c.leave_group(group, (MemberClaim(claim.member_id),)), 5.0)
                return True
            if dice < 0.03:
                await asyncio.sleep(SESSION_MS / 1000 * 1.5)
            for partition in share:
                error = await self._commit(group, claim, partition)
                if error in {
                    ErrorCode.ILLEGAL_GENERATION,
                    ErrorCode.UNKNOWN_MEMBER_ID,
                    ErrorCode.REBALANCE_IN_PROGRESS,
                }:
                    return error is ErrorCode.UNKNOWN_MEMBER_ID
            error = await self.ask(immediately(lambda c: c.heartbeat(group, claim)), 2.0)
            if error in {ErrorCode.ILLEGAL_GENERATION, ErrorCode.REBALANCE_IN_PROGRESS}:
                return False
            if error is ErrorCode.UNKNOWN_MEMBER_ID:
                return True
        return False

    async def _commit(self, group: str, claim: MemberClaim, partition: int) -> ErrorCode | None:
        offset = self.next_offset[group, partition] = self.next_offset.get((group, partition), 0) + 1
        asked_at = self.simulation.loop.time()
        commits = {("t", partition): CommittedOffset(offset, 0, f"by {claim.member_id}")}
        error: ErrorCode | None = await self.ask(lambda c: c.commit_offsets(group, claim, commits), 6.0)
        if error is ErrorCode.NONE:
            told_at = self.simulation.loop.time()
            self.commits.append(Commit(group, partition, offset, claim.generation, asked_at, told_at))
            self.told.set()
        return error

    # --- checks

    async def check_offsets(self) -> None:
        """Check that each acknowledged offset, or a later requested one, is stored."""
        for group in GROUPS:
            found = await self._offsets(group)
            for (_, partition), committed in found:
                acknowledged = [
                    c.offset for c in self.commits if (c.group, c.partition) == (group, partition)
                ]
                if acknowledged:
                    assert committed is not None, f"{group}: the offset of partition {partition} is lost"
                    assert committed.offset >= max(acknowledged), f"{group}: partition {partition} went back"

    async def _offsets(self, group: str) -> list[tuple[tuple[str, int], CommittedOffset | None]]:
        wanted = [("t", partition) for partition in range(TOPIC_PARTITIONS)]
        while True:
            found = await self.ask(immediately(lambda c: c.fetch_offsets(group, wanted)), 2.0)
            if isinstance(found, list):
                return found
            await asyncio.sleep(0.1)  # still loading

    def check_generations(self) -> None:
        """Check that no commit of an older generation was accepted after an acknowledged commit of
        a newer one.
        """
        for later in self.commits:
            for earlier in self.commits:
                if earlier.group == later.group and earlier.told_at < later.asked_at:
                    assert earlier.generation <= later.generation, (earlier, later)

    async def scenario(self) -> None:
        """Run lives that crash, and then a quiet one."""
        members = [
            asyncio.ensure_future(self.member(group, f"{group}{n}")) for group in GROUPS for n in range(3)
        ]
        for _ in range(self.chance.randint(2, 4)):
            await self.start()
            await asyncio.sleep(self.chance.choice((1.0, 5.0, 20.0)) * self.chance.random())
            if self.chance.random() < 0.7:
                await self._next_acknowledgement()
            self.crash()
        await self.start()
        await self.check_offsets()
        await asyncio.sleep(30.0)
        await self._wait_stable()
        self.quiet = True
        await asyncio.sleep(2 * SESSION_MS / 1000 + 10)
        assert all(member.done() for member in members), "a member waits without limit"
        for member in members:
            member.result()
        await self.check_offsets()
        self.check_generations()

    async def _next_acknowledgement(self) -> None:
        """Wait for the next acknowledged commit: the worst time for a crash."""
        self.told.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.told.wait(), 10.0)

    async def _wait_stable(self) -> None:
        """Wait until every group is stable; members continue to leave sometimes."""
        for group in GROUPS:
            for _ in range(600):
                state = await self.ask(immediately(lambda c, g=group: c.describe_group(g).state), 2.0)
                if state is GroupState.STABLE:
                    break
                await asyncio.sleep(0.1)
            else:
                raise AssertionError(f"{group} does not become stable: {state}")


@cache
def run_groups(seed: int) -> GroupWorld:
    """Run one seed, once."""
    world = GroupWorld(seed)
    world.simulation.run(world.scenario())
    return world


@pytest.mark.parametrize("first", range(0, SEEDS // 10, BATCH))
def test_committed_offsets_survive_and_a_generation_has_one_plan(first: int) -> None:
    for seed in range(first, min(first + BATCH, SEEDS // 10)):
        run_groups(seed)


def test_the_workload_reaches_the_intended_states() -> None:
    check_reached(missing, map(run_groups, range(RECORDED)), map(run_groups, range(RECORDED, 3 * RECORDED)))


def missing(worlds: Sequence[GroupWorld]) -> list[str]:
    """Return which states the worlds reached too rarely."""
    trimmed = [partition.log_start_offset > 0 for world in worlds for partition in world.partitions]
    counts = {
        "acknowledged commits": sum(len(world.commits) for world in worlds),
        "generations": sum(len(world.plans) for world in worlds),
        "logs that were rewritten": sum(trimmed),
    }
    wanted = {
        "acknowledged commits": 100 * len(worlds) + 1,
        "generations": 5 * len(worlds) + 1,
        "logs that were rewritten": len(trimmed) // 2 + 1,
    }
    return below(wanted, counts)


def test_a_session_ends_to_the_millisecond() -> None:
    world = GroupWorld(1)

    async def scenario() -> None:
        await world.start()
        first = await world._join("g", "a", "")
        assert first is not None
        joined = await world._join("g", "a", first.member_id)
        assert joined is not None
        assert joined.generation == 1
        claim = MemberClaim(joined.member_id, None, 1)
        assert await world._sync("g", claim, joined)
        await asyncio.sleep(SESSION_MS / 1000 - 0.001)
        assert await world.ask(immediately(lambda c: c.heartbeat("g", claim)), 1.0) is ErrorCode.NONE
        last_heard = world.simulation.loop.time()
        describe = immediately(lambda c: c.describe_group("g").state)
        await asyncio.sleep(last_heard + SESSION_MS / 1000 - 0.001 - world.simulation.loop.time())
        assert await world.ask(describe, 1.0) is GroupState.STABLE
        await asyncio.sleep(0.002)
        assert await world.ask(describe, 1.0) is GroupState.EMPTY

    world.simulation.run(scenario())
