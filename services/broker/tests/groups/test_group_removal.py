"""Deletion of offsets and groups: by an administrator, with their topic, and the memory bound."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from ponor_broker.groups.events import JoinRequest, MemberClaim, SyncRequest
from ponor_broker.groups.member import JoinProtocol
from ponor_broker.groups.rebalance import GroupState
from ponor_broker.groups.records import CommittedOffset
from ponor_broker.groups.settings import GroupSettings
from ponor_kafka.errors import ErrorCode
from ponor_runtime.turns import at_once
from s3stream.errors import AppendBackpressureError, ReadTimeoutError

NO_MEMBER = MemberClaim("")
READS_T = b"\x00\x01\x00\x00\x00\x01\x00\x01t\xff\xff\xff\xff"


def joining(*, protocol_type: str = "consumer", metadata: bytes = READS_T, client: str = "c") -> JoinRequest:
    return JoinRequest(
        member_id="",
        instance_id=None,
        client_id=client,
        client_host="/h",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        protocol_type=protocol_type,
        protocols=(JoinProtocol("range", metadata),),
        requires_known_member_id=False,
        supports_skipping_assignment=True,
    )


async def form(world: Any, group_id: str, request: JoinRequest) -> MemberClaim:
    join = asyncio.ensure_future(world.coordinator.join_group(group_id, request))
    await world.clock.pass_ms(3_000)
    joined = await join
    assert joined.error is ErrorCode.NONE
    claim = MemberClaim(joined.member_id, None, joined.generation)
    synced = await world.coordinator.sync_group(group_id, SyncRequest(claim, None, None, {}))
    assert synced.error is ErrorCode.NONE
    return claim


def committed(world: Any, group_id: str) -> list[tuple[str, int]]:
    return [place for place, _ in world.coordinator.fetch_offsets(group_id, None)]


async def one_group_world(world_type: Any, **settings: Any) -> Any:
    world = world_type(GroupSettings(offsets_topic_partitions=1, **settings))
    world.topics["__consumer_offsets"] = (UUID(int=99), 1)
    await world.start()
    return world


async def test_an_administrator_deletes_offsets_of_unread_topics(world: Any) -> None:
    coordinator = world.coordinator
    member = await form(world, "g", joining())
    commits = {("t", 0): CommittedOffset(1), ("left", 0): CommittedOffset(2), ("left", 1): CommittedOffset(3)}
    assert await coordinator.commit_offsets("g", member, commits) is ErrorCode.NONE
    world.topics["left"] = (UUID(int=2), 2)
    answers = await coordinator.delete_offsets("g", [("t", 0), ("left", 0), ("left", 7)])
    assert answers == {
        ("t", 0): ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        ("left", 0): ErrorCode.NONE,
        ("left", 7): ErrorCode.NONE,
    }
    assert committed(world, "g") == [("t", 0), ("left", 1)]
    await coordinator.leave_group("g", (member,))
    assert await coordinator.delete_offsets("g", [("t", 0)]) == {("t", 0): ErrorCode.NONE}
    await world.clock.settle()
    await world.kill()
    await world.start()
    assert committed(world, "g") == [("left", 1)]


async def test_offsets_of_groups_with_other_protocols_are_not_deleted(
    world: Any,
) -> None:
    await form(world, "connect", joining(protocol_type="connect"))
    coordinator = world.coordinator
    assert await coordinator.delete_offsets("connect", [("t", 0)]) is ErrorCode.NON_EMPTY_GROUP
    assert await coordinator.delete_offsets("nowhere", [("t", 0)]) is ErrorCode.GROUP_ID_NOT_FOUND
    assert await coordinator.delete_offsets("", [("t", 0)]) is ErrorCode.INVALID_GROUP_ID


async def test_a_commit_in_flight_is_deleted_with_the_others(world: Any) -> None:
    coordinator = world.coordinator
    partition = world.open[coordinator.shards.partition_of("g")]
    partition.is_slow = True
    late = asyncio.ensure_future(coordinator.commit_offsets("g", NO_MEMBER, {("t", 0): CommittedOffset(1)}))
    await world.clock.settle()
    delete = asyncio.ensure_future(coordinator.delete_offsets("g", [("t", 0)]))
    await world.clock.settle()
    partition.sync()
    assert await late is ErrorCode.NONE
    assert await delete == {("t", 0): ErrorCode.NONE}
    assert committed(world, "g") == []


async def test_offsets_of_a_deleted_topic_are_removed(world: Any) -> None:
    coordinator = world.coordinator
    world.topics["old"] = (UUID(int=7), 1)
    commits = {
        ("old", 0): CommittedOffset(1, topic_id=UUID(int=7).bytes),
        ("t", 0): CommittedOffset(2, topic_id=UUID(int=1).bytes),
    }
    assert await coordinator.commit_offsets("g", NO_MEMBER, commits) is ErrorCode.NONE
    del world.topics["old"]
    coordinator.topics_deleted()
    await world.clock.settle()
    assert committed(world, "g") == [("t", 0)]
    world.topics["t"] = (UUID(int=8), 4)  # deleted, and another of the same name made
    coordinator.topics_deleted()
    await world.clock.settle()
    assert committed(world, "g") == []
    await world.kill()
    await world.start()
    assert committed(world, "g") == []


@pytest.mark.parametrize("trouble", ["refused", "failed"])
async def test_offsets_of_a_deleted_topic_are_removed_after_a_refused_write(world: Any, trouble: str) -> None:
    coordinator = world.coordinator
    world.topics["old"] = (UUID(int=7), 1)
    assert (
        await coordinator.commit_offsets("g", NO_MEMBER, {("old", 0): CommittedOffset(1)}) is ErrorCode.NONE
    )
    partition = world.open[coordinator.shards.partition_of("g")]
    if trouble == "refused":
        partition.refusal = ReadTimeoutError("the log takes nothing now")
    else:
        partition.is_slow = True
    del world.topics["old"]
    coordinator.topics_deleted()
    await world.clock.settle()
    partition.fail(ReadTimeoutError("the write failed"))
    await world.clock.settle()
    assert committed(world, "g") == [("old", 0)]
    partition.refusal, partition.is_slow = None, False
    await world.clock.pass_ms(1_000)
    assert committed(world, "g") == []
    await world.kill()
    await world.start()
    assert committed(world, "g") == []


async def test_groups_are_loaded_checked_and_removed_in_bounded_turns(world_type: Any) -> None:
    """The groups that one event-loop turn processes are bounded."""
    world = await one_group_world(world_type, offsets_retention_ms=1_000)
    for number in range(6_000):
        commits = {("t", 0): CommittedOffset(1, commit_timestamp_ms=world.clock.wall_ms())}
        commit = asyncio.ensure_future(world.coordinator.commit_offsets(f"g{number}", NO_MEMBER, commits))
        if number % 500 == 499:
            await commit
    await world.kill()
    await world.start()
    turns = 0
    while not world.coordinator.shards.by_index[0].is_loaded:
        turns += 1
        await asyncio.sleep(0)
    assert len(world.coordinator.shards.by_index[0]) == 6_000
    assert turns > 6_000 // 1_000
    await world.clock.pass_ms(2_000)
    held, most_in_a_turn = 6_000, 0
    expiry = asyncio.ensure_future(world.coordinator.shards.by_index[0].removal.expire())
    while not expiry.done():
        await asyncio.sleep(0)
        now = len(world.coordinator.shards.by_index[0])
        most_in_a_turn, held = max(most_in_a_turn, held - now), now
    assert await expiry == 6_000
    await world.clock.settle()
    assert len(world.coordinator.shards.by_index[0]) == 0
    assert most_in_a_turn <= 256


async def test_offsets_of_a_topic_deleted_during_downtime_are_removed_after_the_start(
    world: Any,
) -> None:
    world.topics["old"] = (UUID(int=7), 1)
    commits = {("old", 0): CommittedOffset(1, topic_id=UUID(int=7).bytes), ("t", 0): CommittedOffset(2)}
    assert await world.coordinator.commit_offsets("g", NO_MEMBER, commits) is ErrorCode.NONE
    await world.kill()
    del world.topics["old"]
    await world.start()
    await world.clock.settle()
    assert committed(world, "g") == [("t", 0)]


async def test_a_commit_in_flight_at_the_deletion_of_its_topic_is_removed(world: Any) -> None:
    coordinator = world.coordinator
    world.topics["old"] = (UUID(int=7), 1)
    partition = world.open[coordinator.shards.partition_of("g")]
    partition.is_slow = True
    late = asyncio.ensure_future(coordinator.commit_offsets("g", NO_MEMBER, {("old", 0): CommittedOffset(1)}))
    await world.clock.settle()
    del world.topics["old"]
    coordinator.topics_deleted()
    await world.clock.settle()
    partition.is_slow = False
    partition.sync()
    assert await late is ErrorCode.NONE
    await world.clock.settle()
    assert committed(world, "g") == []


@pytest.mark.parametrize("is_kept", [True, False])
async def test_a_commit_to_a_new_topic_of_the_same_name_is_kept(world: Any, is_kept: bool) -> None:
    """The commit is in flight during the check, and a tombstone after it would remove it."""
    coordinator = world.coordinator
    partition = world.open[coordinator.shards.partition_of("g")]
    world.topics["t"] = (UUID(int=7), 1)
    old, new = (CommittedOffset(offset, topic_id=UUID(int=offset).bytes) for offset in (7, 8))
    assert await coordinator.commit_offsets("g", NO_MEMBER, {("t", 0): old}) is ErrorCode.NONE
    partition.is_slow = True
    other = asyncio.ensure_future(coordinator.commit_offsets("g", NO_MEMBER, {("u", 0): CommittedOffset(1)}))
    await world.clock.settle()
    world.topics |= {"t": (UUID(int=8), 1), "u": (UUID(int=9), 1)}
    coordinator.topics_deleted()
    await world.clock.settle()
    late = asyncio.ensure_future(coordinator.commit_offsets("g", NO_MEMBER, {("t", 0): new}))
    await world.clock.settle()
    partition.sync(count=1)
    assert await other is ErrorCode.NONE
    await world.clock.settle()
    if is_kept:
        partition.sync()
        assert await late is ErrorCode.NONE
    else:
        partition.fail(ReadTimeoutError("the write failed"))
        assert await late is not ErrorCode.NONE
    partition.is_slow = False
    await world.clock.pass_ms(1_000)
    partition.sync()
    await world.clock.settle()
    held = [("t", 0), ("u", 0)] if is_kept else [("u", 0)]
    assert sorted(committed(world, "g")) == held
    await world.kill()
    await world.start()
    assert sorted(committed(world, "g")) == held


@pytest.mark.parametrize("end", ["deleted", "expired"])
async def test_a_group_with_more_offsets_than_one_batch_is_removed_completely(
    world_type: Any, end: str
) -> None:
    world = await one_group_world(
        world_type,
        coordinator_batch_bytes_max=4_096,
        offsets_retention_ms=1,
        offsets_rewrite_log_bytes_min=1 << 30,
    )
    coordinator = world.coordinator
    for index in range(300):
        assert (
            await coordinator.commit_offsets("g", NO_MEMBER, {("t", index): CommittedOffset(1)})
            is ErrorCode.NONE
        )
    if end == "deleted":
        assert await coordinator.delete_group("g") is ErrorCode.NONE
    else:
        await world.clock.pass_ms(700_000)
    assert at_once(coordinator.list_groups()) == (ErrorCode.NONE, [])
    await world.kill()
    coordinator = await world.start()
    assert at_once(coordinator.list_groups()) == (ErrorCode.NONE, [])
    await coordinator.close()


async def test_a_deletion_that_the_log_refuses_leaves_the_group_usable(world_type: Any) -> None:
    world = await one_group_world(world_type, coordinator_batch_bytes_max=4_096)
    coordinator = world.coordinator
    for index in range(100):
        await coordinator.commit_offsets("g", NO_MEMBER, {("t", index): CommittedOffset(1)})
    world.open[0].refusal = AppendBackpressureError("full")
    assert await coordinator.delete_group("g") is ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.open[0].refusal = None
    assert len(committed(world, "g")) == 100
    assert await coordinator.commit_offsets("g", NO_MEMBER, {("t", 0): CommittedOffset(2)}) is ErrorCode.NONE
    assert await coordinator.delete_group("g") is ErrorCode.NONE
    await coordinator.close()


async def test_a_deletion_ends_with_its_shard_when_a_move_is_cancelled(
    world_type: Any,
) -> None:
    """The next shard loads the same log and does not read later appends of the former one."""
    world = await one_group_world(
        world_type, coordinator_batch_bytes_max=4_096, offsets_rewrite_log_bytes_min=1 << 30
    )
    coordinator, partition = world.coordinator, world.open[0]
    for index in range(600):
        await coordinator.commit_offsets("g", NO_MEMBER, {("t", index): CommittedOffset(1)})
    partition.is_slow = True
    deletion = asyncio.ensure_future(coordinator.delete_group("g"))
    await world.clock.settle()
    assert not deletion.done()
    world.take_back(0)
    partition.is_slow = False
    partition.sync()
    for _ in range(10):
        await world.clock.pass_ms(20)
    assert await deletion is ErrorCode.NOT_COORDINATOR
    served = committed(world, "g")
    assert 0 < len(served) < 600
    later = {("t", 599): CommittedOffset(2)}
    assert await coordinator.commit_offsets("g", NO_MEMBER, later) is ErrorCode.NONE
    await world.kill()
    await world.start()
    for _ in range(10):
        await world.clock.pass_ms(20)
    assert committed(world, "g") == served, "a restart shows what was served before it"
    await world.coordinator.close()


async def test_at_the_memory_bound_only_growth_is_refused(
    world_type: Any, caplog: pytest.LogCaptureFixture
) -> None:
    world = await one_group_world(world_type, groups_memory_bytes_max=1 << 16)
    coordinator = world.coordinator
    member = await form(world, "g", joining())
    taken = 0
    while True:
        error = await coordinator.commit_offsets(f"h{taken}", NO_MEMBER, {("t", 0): CommittedOffset(1)})
        if error is not ErrorCode.NONE:
            break
        taken += 1
    assert error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert 5 < taken < 20
    refused = await coordinator.join_group("new", joining())
    assert refused.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    greedy = await coordinator.join_group("g", joining(metadata=READS_T + bytes(1 << 16), client="d"))
    assert greedy.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    long = {("t", 1): CommittedOffset(1, metadata="x" * 4_000)}
    assert await coordinator.commit_offsets("h0", NO_MEMBER, long) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert await coordinator.commit_offsets("h0", NO_MEMBER, {("t", 0): CommittedOffset(2)}) is ErrorCode.NONE
    assert coordinator.heartbeat("g", member) is ErrorCode.NONE
    assert coordinator.describe_group("g").state is GroupState.STABLE
    (said,) = [record.getMessage() for record in caplog.records]
    assert "groups_memory_bytes_max" in said
    assert await coordinator.delete_group("h1") is ErrorCode.NONE
    assert (
        await coordinator.commit_offsets("new", NO_MEMBER, {("t", 0): CommittedOffset(1)}) is ErrorCode.NONE
    )
    await coordinator.close()


async def test_protocols_without_subscriptions_are_charged(world_type: Any) -> None:
    world = await one_group_world(world_type, groups_memory_bytes_max=1 << 20)
    coordinator = world.coordinator

    def offering(count: int) -> JoinRequest:
        return replace(joining(), protocols=tuple(JoinProtocol(f"p{n}", b"") for n in range(count)))

    refused = await coordinator.join_group("g", offering(1_001))
    assert refused.error is ErrorCode.INVALID_REQUEST
    joins = [asyncio.ensure_future(coordinator.join_group(f"g{n}", offering(1_000))) for n in range(10)]
    await world.clock.settle()
    errors = [join.result().error for join in joins if join.done()]
    assert set(errors) == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert 5 <= len(errors) < 10
    await coordinator.close()
    await asyncio.gather(*joins)


async def test_the_id_of_a_group_is_charged(world_type: Any) -> None:
    world = await one_group_world(world_type, groups_memory_bytes_max=1 << 17)
    coordinator = world.coordinator
    errors = [
        await coordinator.commit_offsets("g" * 20_000 + str(n), NO_MEMBER, {("t", 0): CommittedOffset(1)})
        for n in range(10)
    ]
    assert errors[:4] == [ErrorCode.NONE] * 4
    assert errors[6:] == [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 4
    for number in range(4):
        assert await coordinator.delete_group("g" * 20_000 + str(number)) is ErrorCode.NONE
    assert coordinator.budget.size_bytes < 1 << 16
    await coordinator.close()
