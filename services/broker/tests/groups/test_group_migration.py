"""Groups with members change between the classic and the consumer protocol (KIP-848)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from ponor_broker.groups.consumer.events import HeartbeatAnswer, HeartbeatRequest
from ponor_broker.groups.events import JoinRequest, MemberClaim, SyncRequest
from ponor_broker.groups.member import JoinProtocol
from ponor_broker.groups.rebalance import GroupState
from ponor_broker.groups.records import CommittedOffset
from ponor_broker.groups.settings import GroupSettings
from ponor_kafka.errors import ErrorCode
from ponor_kafka.internal_topics import OFFSETS_TOPIC
from s3stream.errors import WalFullError

from services.broker.tests.classic_client import ClassicClient, form, partitions_of

TOPIC_ID = bytes(15) + b"\x01"
JOIN = HeartbeatRequest("m", 0, rebalance_timeout_ms=20_000, topics=frozenset({"t"}), owned={})
HALVES: dict[str, dict[str, set[int]]] = {"a": {"t": {0, 1}}, "b": {"t": {2, 3}}}


@pytest.fixture
async def worlds(world_type: Any) -> AsyncIterator[Callable[..., Any]]:
    started = []

    async def start(**fields: Any) -> Any:
        world = world_type(GroupSettings(offsets_topic_partitions=1, **fields))
        world.topics[OFFSETS_TOPIC] = (UUID(int=99), 1)
        await world.start()
        started.append(world)
        return world

    yield start
    for world in started:
        await world.coordinator.close()
        assert world.failures == []


async def two(world: Any, *, is_eager: bool = True) -> tuple[ClassicClient, ClassicClient]:
    a, b = (ClassicClient(world, name, ["t"], is_eager=is_eager) for name in "ab")
    await form([a, b], HALVES)
    return a, b


async def beat(world: Any, request: HeartbeatRequest) -> HeartbeatAnswer:
    answer: HeartbeatAnswer = await world.coordinator.consumer_heartbeat("g", request)
    return answer


async def commit(world: Any, claim: MemberClaim, partition: int, offset: int) -> ErrorCode:
    offsets = {("t", partition): CommittedOffset(offset, topic_id=TOPIC_ID)}
    error: ErrorCode = await world.coordinator.commit_offsets("g", claim, offsets)
    return error


def committed(world: Any, partition: int) -> int:
    found = world.coordinator.fetch_offsets("g", [("t", partition)])[0][1]
    return -1 if found is None else found.offset


def held(answer: HeartbeatAnswer) -> set[int]:
    return set((answer.assignment or {}).get(TOPIC_ID, ()))


async def test_a_rolling_bounce_to_heartbeats_and_back(worlds: Any) -> None:
    world = await worlds()
    a, b = await two(world)
    generation = a.generation
    assert await commit(world, a.claim, 0, 10) is ErrorCode.NONE
    # The first member with heartbeats upgrades the group.
    joined = await beat(world, JOIN)
    assert (joined.error, joined.member_epoch, held(joined)) == (ErrorCode.NONE, generation + 1, set())
    group = world.coordinator.consumer_group("g")
    assert group.group_type == "consumer"
    assert await commit(world, a.claim, 0, 11) is ErrorCode.NONE
    assert a.beat() is ErrorCode.REBALANCE_IN_PROGRESS
    assert await commit(world, a.claim, 0, 12) is ErrorCode.NONE, "before it revokes"
    assert await a.rejoin() is ErrorCode.NONE
    assert a.generation == generation + 1
    assert b.beat() is ErrorCode.REBALANCE_IN_PROGRESS
    assert await commit(world, b.claim, 3, 20) is ErrorCode.NONE
    assert await b.rejoin() is ErrorCode.NONE
    third = await beat(world, replace(JOIN, member_epoch=joined.member_epoch, topics=None, owned=None))
    shares = [a.owned["t"], b.owned["t"], held(third)]
    assert sorted(index for share in shares for index in share) == [0, 1, 2, 3]
    assert all(shares)
    assert (a.beat(), b.beat()) == (ErrorCode.NONE, ErrorCode.NONE)
    # The last classic members leave: the group remains a consumer group.
    assert await a.leave() is ErrorCode.NONE
    assert await b.leave() is ErrorCode.NONE
    await world.clock.pass_ms(1_000)
    alone = await beat(world, replace(JOIN, member_epoch=third.member_epoch, topics=None, owned=None))
    assert held(alone) == {0, 1, 2, 3}
    assert [committed(world, index) for index in range(4)] == [12, -1, -1, 20]
    # A classic member joins, and the member with heartbeats leaves.
    c = ClassicClient(world, "c", ["t"])
    assert await c.rejoin() is ErrorCode.NONE
    await world.clock.pass_ms(1_000)
    assert await c.follow() is ErrorCode.NONE
    epoch = group.contents.group_epoch
    assert (await beat(world, HeartbeatRequest("m", -1))).error is ErrorCode.NONE
    described = world.coordinator.describe_group("g")
    assert described.state is GroupState.PREPARING_REBALANCE
    assert [member.member_id for member in described.members] == [c.member_id]
    assert epoch == c.generation
    assert c.beat() is ErrorCode.REBALANCE_IN_PROGRESS
    answer = await c.join()
    assert (answer.leader, answer.generation) == (c.member_id, epoch + 1)
    assert (await c.sync({c.member_id: {"t": {0, 1, 2, 3}}})).error is ErrorCode.NONE
    assert [committed(world, index) for index in range(4)] == [12, -1, -1, 20]


async def test_a_cooperative_member_revokes_before_another_gets_its_partitions(worlds: Any) -> None:
    world = await worlds()
    a, b = await two(world, is_eager=False)
    joined = await beat(world, JOIN)
    quiet = HeartbeatRequest("m", joined.member_epoch)
    assert a.beat() is ErrorCode.REBALANCE_IN_PROGRESS
    assert b.beat() is ErrorCode.REBALANCE_IN_PROGRESS
    lost = dict(a.owned), dict(b.owned)
    assert await a.rejoin() is ErrorCode.NONE
    assert await b.rejoin() is ErrorCode.NONE
    assert held(await beat(world, quiet)) == set(), "the classic members have not revoked yet"
    shrunk = [client for client, before in ((a, lost[0]), (b, lost[1])) if client.owned != before]
    for client in shrunk:
        assert client.beat() is ErrorCode.REBALANCE_IN_PROGRESS
        assert await client.rejoin() is ErrorCode.NONE  # reports less than before
    got = held(await beat(world, quiet))
    assert got
    shares = [a.owned.get("t", set()), b.owned.get("t", set()), got]
    assert sorted(index for share in shares for index in share) == [0, 1, 2, 3]
    assert (a.beat(), b.beat()) == (ErrorCode.NONE, ErrorCode.NONE)


@pytest.mark.parametrize("policy", ["disabled", "upgrade", "downgrade", "bidirectional"])
async def test_the_policy_decides(worlds: Any, policy: str) -> None:
    world = await worlds(group_consumer_migration_policy=policy)
    await two(world)
    upgraded = await beat(world, JOIN)
    if policy in {"upgrade", "bidirectional"}:
        assert upgraded.error is ErrorCode.NONE
    else:
        assert upgraded.error is ErrorCode.GROUP_ID_NOT_FOUND
        assert "online upgrade is disabled" in (upgraded.message or "")
        assert world.coordinator.describe_group("g").state is GroupState.STABLE
    await world.coordinator.consumer_heartbeat("h", JOIN)
    c = ClassicClient(world, "c", ["t"], group="h")
    error = await c.rejoin()
    assert error is (ErrorCode.INCONSISTENT_GROUP_PROTOCOL if policy == "disabled" else ErrorCode.NONE)
    await world.coordinator.consumer_heartbeat("h", HeartbeatRequest("m", -1))
    described = world.coordinator.describe_group("h")
    is_classic = described.error is ErrorCode.NONE and bool(described.members)
    assert is_classic == (policy in {"downgrade", "bidirectional"})


async def test_an_expired_member_downgrades_the_group(worlds: Any) -> None:
    world = await worlds()
    await beat(world, JOIN)
    c = ClassicClient(world, "c", ["t"])
    assert await c.rejoin() is ErrorCode.NONE
    for _ in range(12):
        await world.clock.pass_ms(4_000)
        await c.follow() if world.coordinator.consumer_group(
            "g"
        ) is not ErrorCode.GROUP_ID_NOT_FOUND else None
    assert len(world.coordinator.describe_group("g").members) == 1


async def test_a_classic_member_that_does_not_join_or_sync_is_removed(worlds: Any) -> None:
    world = await worlds()
    a, b = await two(world)
    epoch = (await beat(world, JOIN)).member_epoch
    for _ in range(5):
        assert a.beat() is ErrorCode.REBALANCE_IN_PROGRESS
        assert (await b.follow()) is ErrorCode.NONE
        await world.clock.pass_ms(4_000)
        epoch = (await beat(world, HeartbeatRequest("m", epoch))).member_epoch
    assert a.beat() is ErrorCode.UNKNOWN_MEMBER_ID
    assert (await b.follow()) is ErrorCode.NONE
    c = ClassicClient(world, "c", ["t"])
    assert (await c.join()).error is ErrorCode.NONE
    for _ in range(6):
        await world.clock.pass_ms(4_000)
        await b.follow()
        epoch = (await beat(world, HeartbeatRequest("m", epoch))).member_epoch
    assert (await c.sync()).error is ErrorCode.UNKNOWN_MEMBER_ID


async def test_groups_are_counted_by_type_and_state(worlds: Any) -> None:
    world = await worlds()
    telemetry = world.telemetry

    def groups() -> dict[tuple[str, ...], float]:
        return {tuple(labels): count for labels, count in telemetry.gauges("ponor_groups") if count}

    def total(name: str) -> dict[tuple[str, ...], int]:
        return {tuple(labels): count for labels, count in telemetry.counters(name) if count}

    a, _ = await two(world)
    assert groups() == {("classic", "Stable"): 1}
    assert total("ponor_group_rebalances_total") == {("classic",): 1}
    await beat(world, JOIN)
    assert groups() == {("consumer", "Reconciling"): 1}
    await a.rejoin()
    await beat(world, HeartbeatRequest("m", -1))
    assert groups() == {("classic", "PreparingRebalance"): 1}
    assert total("ponor_group_migrations_total") == {("classic",): 1, ("consumer",): 1}
    assert total("ponor_group_rebalances_total") == {("classic",): 1, ("consumer",): 1}


async def test_members_of_a_group_in_rebalance_join_again(worlds: Any) -> None:
    world = await worlds()
    a, b = await two(world)
    extra = ClassicClient(world, "c", ["t"])
    waiting = asyncio.ensure_future(world.coordinator.join_group("g", extra.join_request()))
    await world.clock.settle()
    extra.member_id = (await waiting).member_id
    waiting = asyncio.ensure_future(world.coordinator.join_group("g", extra.join_request()))
    await world.clock.settle()
    assert a.beat() is ErrorCode.REBALANCE_IN_PROGRESS
    assert (await beat(world, JOIN)).error is ErrorCode.NONE
    assert (await waiting).error is ErrorCode.REBALANCE_IN_PROGRESS
    for client in (a, b, extra):
        assert await client.rejoin() is ErrorCode.NONE
    assert len(world.coordinator.consumer_group("g")) == 4


async def test_a_restart_keeps_classic_members(worlds: Any) -> None:
    world = await worlds()
    a, b = await two(world)
    await beat(world, JOIN)
    assert await a.rejoin() is ErrorCode.NONE
    before = dict(a.owned)
    await world.kill()
    await world.start()
    assert a.beat() is ErrorCode.NONE
    assert (await a.sync()).error is ErrorCode.NONE
    assert a.owned == before
    assert b.beat() is ErrorCode.REBALANCE_IN_PROGRESS
    assert (await beat(world, HeartbeatRequest("m", -1))).error is ErrorCode.NONE
    await world.kill()
    await world.start()
    assert sorted(member.client_id for member in world.coordinator.describe_group("g").members) == ["a", "b"]
    assert a.beat() is ErrorCode.NONE


async def test_static_members_change_the_protocol_in_place(worlds: Any) -> None:
    world = await worlds()
    s = ClassicClient(world, "s", ["t"], instance_id="i")
    other = ClassicClient(world, "o", ["t"])
    await form([s, other], {"s": {"t": {0, 1}}, "o": {"t": {2, 3}}})
    static = replace(JOIN, instance_id="i")
    joined = await beat(world, static)
    assert joined.error is ErrorCode.NONE
    assert held(joined) == {0, 1}, "it keeps the partitions of its predecessor"
    assert s.beat() is ErrorCode.FENCED_INSTANCE_ID
    assert await commit(world, s.claim, 0, 5) is not ErrorCode.NONE
    await other.follow()
    # Back: only classic members are left, so the group becomes a classic group.
    again = ClassicClient(world, "s", ["t"], instance_id="i")
    assert (await again.join()).error is ErrorCode.NONE
    assert len(world.coordinator.describe_group("g").members) == 2
    refused = await beat(world, HeartbeatRequest("m", joined.member_epoch, "i"))
    assert refused.error is ErrorCode.GROUP_ID_NOT_FOUND


async def test_a_refused_batch_leaves_the_group_as_it_was(worlds: Any) -> None:
    world = await worlds()
    a, _ = await two(world)
    world.open[0].refusal = WalFullError("full")
    assert (await beat(world, JOIN)).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.coordinator.describe_group("g").state is GroupState.STABLE
    assert a.beat() is ErrorCode.NONE
    world.open[0].refusal = None
    await beat(world, JOIN)
    await a.rejoin()
    world.open[0].refusal = WalFullError("full")
    assert (await beat(world, HeartbeatRequest("m", -1))).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert len(world.coordinator.consumer_group("g")) == 3
    world.open[0].refusal = None
    assert (await beat(world, HeartbeatRequest("m", -1))).error is ErrorCode.NONE
    assert len(world.coordinator.describe_group("g").members) == 2


async def test_an_administrator_removes_members_of_both_protocols(worlds: Any) -> None:
    world = await worlds()
    await beat(world, replace(JOIN, instance_id="i"))
    await beat(world, replace(JOIN, member_id="n"))
    c = ClassicClient(world, "c", ["t"])
    assert await c.rejoin() is ErrorCode.NONE
    claims = (MemberClaim("", "i"), MemberClaim("n"), MemberClaim("x"), MemberClaim("m", "j"))
    answer = await world.coordinator.leave_group("g", claims)
    unknown = ErrorCode.UNKNOWN_MEMBER_ID
    assert [error for _, error in answer.results] == [ErrorCode.NONE, ErrorCode.NONE, unknown, unknown]
    assert [member.member_id for member in world.coordinator.describe_group("g").members] == [c.member_id]


async def test_requests_of_classic_members_are_checked(worlds: Any) -> None:
    world = await worlds()
    await beat(world, JOIN)
    c = ClassicClient(world, "c", ["t"])
    other_type = replace(c.join_request(), protocol_type="connect", member_id="x")
    malformed = replace(c.join_request(), protocols=(replace(c.join_request().protocols[0], metadata=b"\0"),))
    for bad in (other_type, replace(malformed, member_id="x")):
        answer = await world.coordinator.join_group("g", bad)
        assert answer.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert (await c.join()).error is ErrorCode.NONE
    d = ClassicClient(world, "d", ["t"], protocol="roundrobin")
    assert (await d.join()).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    coordinator = world.coordinator
    wrong = SyncRequest(c.claim, "consumer", "roundrobin", {})
    assert (await coordinator.sync_group("g", wrong)).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    older = SyncRequest(replace(c.claim, generation=1), "consumer", "range", {})
    assert (await coordinator.sync_group("g", older)).error is ErrorCode.ILLEGAL_GENERATION
    assert coordinator.heartbeat("g", replace(c.claim, generation=9)) is ErrorCode.ILLEGAL_GENERATION
    assert coordinator.heartbeat("g", replace(c.claim, instance_id="i")) is ErrorCode.UNKNOWN_MEMBER_ID
    assert await commit(world, replace(c.claim, generation=9), 0, 1) is ErrorCode.ILLEGAL_GENERATION


async def test_a_partition_with_two_owners_gets_one(worlds: Any) -> None:
    world = await worlds()
    a, b = (ClassicClient(world, name, ["t"]) for name in "ab")
    await form([a, b], {"a": {"t": {0, 1, 2}}, "b": {"t": {2, 3}}})
    assert (await beat(world, JOIN)).error is ErrorCode.NONE
    world.coordinator.consumer_group("g").contents.validate()


async def test_an_upgrade_between_two_rebalances_keeps_the_partitions_in_use(worlds: Any) -> None:
    world = await worlds()
    a, b = await two(world, is_eager=False)
    c, d = (ClassicClient(world, name, ["t"], is_eager=False) for name in "cd")
    joins = [asyncio.ensure_future(each.join()) for each in (c, a, b)]
    await asyncio.gather(*joins)
    # The next rebalance begins before the leader syncs.
    last = asyncio.ensure_future(d.join())
    await world.clock.settle()
    assert world.coordinator.describe_group("g").state is GroupState.PREPARING_REBALANCE
    first = replace(JOIN, member_id="0")  # the order of the ids decides who gets a partition
    answer = await beat(world, first)
    assert answer.error is ErrorCode.NONE
    assert held(answer) == set(), "all partitions are in use"
    assert (await last).error is ErrorCode.NONE
    for _ in range(4):
        for client in (a, b, c, d):
            await client.follow()
        epoch = answer.member_epoch
        answer = await beat(world, replace(first, member_epoch=epoch, owned={TOPIC_ID: frozenset()}))
        shares = [client.owned.get("t", set()) for client in (a, b, c, d)] + [held(answer)]
        assert sum(map(len, shares)) == len(set().union(*shares))
        await world.clock.pass_ms(1_000)
    assert held(answer)


async def test_a_downgrade_keeps_the_partitions_in_use(worlds: Any) -> None:
    world = await worlds()
    a, b = await two(world, is_eager=False)
    assert (await beat(world, replace(JOIN, member_id="0"))).error is ErrorCode.NONE
    assert (await beat(world, HeartbeatRequest("0", -1))).error is ErrorCode.NONE
    members = world.coordinator.describe_group("g").members
    assert [partitions_of(member.assignment) for member in members] == [a.owned, b.owned]
    # The classic members have not joined when the group changes again.
    again = await beat(world, replace(JOIN, member_id="0"))
    assert held(again) == set()


@pytest.mark.parametrize("metadata", [b"", b"\0", b"\xff\xff", b"\x7f\xff" + bytes(10)])
async def test_a_malformed_subscription_of_an_unused_protocol(worlds: Any, metadata: bytes) -> None:
    world = await worlds(group_consumer_session_timeout_ms=8_000)
    a, b = (ClassicClient(world, name, ["t"]) for name in "ab")
    sound = a.join_request

    def two_protocols() -> JoinRequest:
        return replace(sound(), protocols=(JoinProtocol("odd", metadata), *sound().protocols))

    a.join_request = two_protocols  # type: ignore[method-assign]
    await form([a, b], HALVES)
    assert (await beat(world, JOIN)).error is ErrorCode.NONE
    a.protocol = "odd"
    assert (await a.sync()).error is ErrorCode.REBALANCE_IN_PROGRESS
    await world.clock.pass_ms(8_000)  # the timer of the last member with heartbeats changes the group
    assert len(world.coordinator.describe_group("g").members) == 2


async def test_a_member_id_that_no_record_can_contain_is_refused(worlds: Any) -> None:
    world = await worlds()
    await beat(world, JOIN)
    request = replace(ClassicClient(world, "c", ["t"]).join_request(), member_id="x" * 40_000)
    answer = await world.coordinator.join_group("g", request)
    assert answer.error is ErrorCode.INVALID_REQUEST
    assert len(world.coordinator.consumer_group("g")) == 1


async def test_an_upgrade_needs_memory(worlds: Any) -> None:
    world = await worlds(groups_memory_bytes_max=1 << 16)
    world.topics["t"] = (UUID(int=1), 400)
    a, b = (ClassicClient(world, name, ["t"]) for name in "ab")
    await form([a, b], {"a": {"t": set(range(200))}, "b": {"t": set(range(200, 400))}})
    assert (await beat(world, JOIN)).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.coordinator.describe_group("g").state is GroupState.STABLE
    assert world.coordinator.budget.size_bytes < 1 << 16
