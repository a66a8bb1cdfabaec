"""The coordinator with its log: commits, restarts, moves, bounds, expiry. Time is virtual."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from ponor_broker.groups.events import JoinRequest, MemberClaim, SyncRequest
from ponor_broker.groups.instructions import JoinAnswer, LeaveAnswer
from ponor_broker.groups.member import JoinProtocol
from ponor_broker.groups.rebalance import GroupState
from ponor_broker.groups.records import CommittedOffset, GroupEntry, OffsetEntry
from ponor_broker.groups.settings import GroupSettings
from ponor_kafka.errors import ErrorCode
from ponor_kafka.record_builder import build_batch
from ponor_runtime.turns import at_once
from s3stream.errors import AppendBackpressureError, StorageFailedError, StreamClosedError

NO_MEMBER = MemberClaim("")


def joining(
    member_id: str = "", *, client: str = "c", session_ms: int = 10_000, version: int = 3
) -> JoinRequest:
    return JoinRequest(
        member_id=member_id,
        instance_id=None,
        client_id=client,
        client_host="127.0.0.1",
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=60_000,
        protocol_type="consumer",
        protocols=(JoinProtocol("range", b"subscription"),),
        requires_known_member_id=version >= 4,
        supports_skipping_assignment=version >= 9,
    )


async def form_group(world: Any, group_id: str = "g", members: int = 1) -> list[MemberClaim]:
    """Members join, sync, and are stable."""
    coordinator = world.coordinator
    joins = [asyncio.ensure_future(coordinator.join_group(group_id, joining())) for _ in range(members)]
    await world.clock.pass_ms(6_000)
    answers: list[JoinAnswer] = await asyncio.gather(*joins)
    claims = [MemberClaim(answer.member_id, None, answer.generation) for answer in answers]
    plan = {row.member_id: b"share of " + row.member_id.encode() for row in answers[0].members}
    syncs = [
        asyncio.ensure_future(
            coordinator.sync_group(group_id, SyncRequest(claim, None, None, plan if n == 0 else {}))
        )
        for n, claim in enumerate(claims)
    ]
    for claim, answer in zip(claims, await asyncio.gather(*syncs), strict=True):
        assert answer.assignment == plan[claim.member_id]
    return claims


def partition_of(world: Any, group_id: str) -> Any:
    return world.open[world.coordinator.shards.partition_of(group_id)]


async def test_a_commit_in_flight_survives_a_cancelled_move(world: Any) -> None:
    """The former shard acknowledges the commit, so the next shard may only serve when it has read it."""
    coordinator, partition = world.coordinator, partition_of(world, "g")
    assert await coordinator.commit_offsets("g", NO_MEMBER, {("t", 0): CommittedOffset(5)}) is ErrorCode.NONE
    partition.is_slow = True
    commit = asyncio.ensure_future(coordinator.commit_offsets("g", NO_MEMBER, {("t", 0): CommittedOffset(6)}))
    await world.clock.settle()
    world.take_back(partition.index)
    await world.clock.pass_ms(100)
    assert coordinator.fetch_offsets("g", [("t", 0)]) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    partition.sync()
    assert await commit is ErrorCode.NONE
    await world.clock.pass_ms(100)
    assert coordinator.fetch_offsets("g", [("t", 0)]) == [(("t", 0), CommittedOffset(6))]


async def test_a_write_that_fails_after_a_cancelled_move_is_not_awaited(world: Any) -> None:
    coordinator, partition = world.coordinator, partition_of(world, "g")
    partition.is_slow = True
    commit = asyncio.ensure_future(coordinator.commit_offsets("g", NO_MEMBER, {("t", 0): CommittedOffset(6)}))
    await world.clock.settle()
    world.take_back(partition.index)
    await world.clock.pass_ms(100)
    partition.fail(AppendBackpressureError("the disk is full"))
    assert await commit is ErrorCode.COORDINATOR_NOT_AVAILABLE
    await world.clock.pass_ms(100)
    assert coordinator.fetch_offsets("g", [("t", 0)]) == [(("t", 0), None)]


async def test_a_commit_is_readable_only_when_it_is_durable(world: Any) -> None:
    coordinator, partition = world.coordinator, partition_of(world, "g")
    partition.is_slow = True
    commits = {("t", 0): CommittedOffset(5, 1, "note", 10), ("t", 1): CommittedOffset(6)}
    commit = asyncio.ensure_future(coordinator.commit_offsets("g", NO_MEMBER, commits))
    await world.clock.settle()
    assert not commit.done()
    assert coordinator.fetch_offsets("g", [("t", 0)]) == [(("t", 0), None)]
    partition.sync()
    assert await commit is ErrorCode.NONE
    assert coordinator.fetch_offsets("g", [("t", 0), ("t", 3)]) == [
        (("t", 0), commits["t", 0]),
        (("t", 3), None),
    ]
    assert coordinator.fetch_offsets("g", None) == list(commits.items())
    assert coordinator.fetch_offsets("missing", None) == []


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (AppendBackpressureError("full"), ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (StorageFailedError("disk"), ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (StreamClosedError("moved"), ErrorCode.NOT_COORDINATOR),
    ],
)
async def test_a_failed_commit_has_no_effect_and_may_be_retried(
    world: Any, error: Exception, code: ErrorCode
) -> None:
    coordinator, partition = world.coordinator, partition_of(world, "g")
    assert await coordinator.commit_offsets("g", NO_MEMBER, {("t", 0): CommittedOffset(1)}) is ErrorCode.NONE
    partition.refusal = error
    assert await coordinator.commit_offsets("g", NO_MEMBER, {("t", 0): CommittedOffset(2)}) is code
    partition.refusal, partition.is_slow = None, True
    commit = asyncio.ensure_future(coordinator.commit_offsets("g", NO_MEMBER, {("t", 0): CommittedOffset(2)}))
    await world.clock.settle()
    partition.fail(error)
    assert await commit is code
    assert coordinator.fetch_offsets("g", [("t", 0)]) == [(("t", 0), CommittedOffset(1))]


async def test_a_commit_that_takes_too_long_is_answered_and_may_still_become_durable(world: Any) -> None:
    coordinator, partition = world.coordinator, partition_of(world, "g")
    partition.is_slow = True
    commit = asyncio.ensure_future(coordinator.commit_offsets("g", NO_MEMBER, {("t", 0): CommittedOffset(2)}))
    await world.clock.pass_ms(4_999)
    assert not commit.done()
    await world.clock.pass_ms(1)
    assert await commit is ErrorCode.COORDINATOR_NOT_AVAILABLE
    partition.sync()
    await world.clock.settle()
    assert coordinator.fetch_offsets("g", [("t", 0)]) == [(("t", 0), CommittedOffset(2))]


async def test_memory_follows_the_order_of_the_log_and_not_that_of_wake_ups(world: Any) -> None:
    coordinator, partition = world.coordinator, partition_of(world, "g")
    partition.is_slow = True
    commits = []
    for offset in range(4):
        commit = coordinator.commit_offsets("g", NO_MEMBER, {("t", 0): CommittedOffset(offset)})
        commits.append(asyncio.ensure_future(commit))
        await world.clock.settle()
    partition.sync(told_backwards=True)
    assert await asyncio.gather(*commits) == [ErrorCode.NONE] * 4
    assert coordinator.fetch_offsets("g", [("t", 0)]) == [(("t", 0), CommittedOffset(3))]
    await world.kill()
    coordinator = await world.start()
    assert coordinator.fetch_offsets("g", [("t", 0)]) == [(("t", 0), CommittedOffset(3))]


async def test_groups_and_offsets_survive_a_kill(world: Any) -> None:
    first, second = await form_group(world, members=2)
    coordinator = world.coordinator
    commit = {("t", 0): CommittedOffset(40, 2, "m", 3, topic_id=bytes(15) + b"\x01")}
    assert await coordinator.commit_offsets("g", first, commit) is ErrorCode.NONE
    assert await coordinator.commit_offsets("g", first, {("t", 0): CommittedOffset(41)}) is ErrorCode.NONE
    assert await coordinator.commit_offsets("alone", NO_MEMBER, commit) is ErrorCode.NONE
    await world.kill()
    coordinator = await world.start()
    assert coordinator.fetch_offsets("g", None) == [(("t", 0), CommittedOffset(41))]
    assert coordinator.fetch_offsets("alone", None) == list(commit.items())
    description = coordinator.describe_group("g")
    assert (description.state, description.protocol_name) == (GroupState.STABLE, "range")
    assert [m.assignment for m in description.members] == [
        b"share of " + c.member_id.encode() for c in (first, second)
    ]
    assert coordinator.heartbeat("g", first) is ErrorCode.NONE
    await world.clock.pass_ms(9_000)
    assert coordinator.heartbeat("g", first) is ErrorCode.NONE
    await world.clock.pass_ms(1_001)
    assert coordinator.heartbeat("g", second) is ErrorCode.UNKNOWN_MEMBER_ID
    assert coordinator.heartbeat("g", first) is ErrorCode.REBALANCE_IN_PROGRESS


async def test_commits_that_were_not_durable_are_lost_after_a_kill(world: Any) -> None:
    (member,) = await form_group(world)
    partition = partition_of(world, "g")
    partition.is_slow = True
    commit = asyncio.ensure_future(
        world.coordinator.commit_offsets("g", member, {("t", 0): CommittedOffset(7)})
    )
    await world.clock.settle()
    await world.kill()
    coordinator = await world.start()
    assert coordinator.fetch_offsets("g", [("t", 0)]) == [(("t", 0), None)]
    commit.cancel()


async def test_a_group_answers_load_in_progress_while_its_partition_is_read(world: Any) -> None:
    await form_group(world)
    index = world.coordinator.shards.partition_of("g")
    world.close_partition(index)
    coordinator = world.coordinator
    assert (await coordinator.join_group("g", joining())).error is ErrorCode.NOT_COORDINATOR
    assert coordinator.heartbeat("g", NO_MEMBER) is ErrorCode.NOT_COORDINATOR
    assert coordinator.fetch_offsets("g", None) is ErrorCode.NOT_COORDINATOR
    world.open_partition(index).read_failures = 2
    await world.clock.settle()
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert (await coordinator.join_group("g", joining())).error is loading
    assert (await coordinator.sync_group("g", SyncRequest(NO_MEMBER, None, None, {}))).error is loading
    assert coordinator.heartbeat("g", NO_MEMBER) is ErrorCode.NONE
    assert await coordinator.leave_group("g", (NO_MEMBER,)) is loading
    assert await coordinator.commit_offsets("g", NO_MEMBER, {}) is loading
    assert coordinator.fetch_offsets("g", None) is loading
    assert coordinator.describe_group("g").error is loading
    assert await coordinator.delete_group("g") is loading
    assert at_once(coordinator.list_groups()) == (loading, [])
    await world.clock.pass_ms(2_000)
    assert coordinator.describe_group("g").state is GroupState.STABLE


async def test_a_partition_that_is_led_here_but_not_open_answers_load_in_progress(world: Any) -> None:
    coordinator, index = world.coordinator, world.coordinator.shards.partition_of("g")
    world.close_partition(index)
    assert await coordinator.commit_offsets("g", NO_MEMBER, {}) is ErrorCode.NOT_COORDINATOR
    world.led.add(index)
    assert await coordinator.commit_offsets("g", NO_MEMBER, {}) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    world.open_partition(index)
    await world.clock.settle()
    commit = {("t", 0): CommittedOffset(1)}
    assert await coordinator.commit_offsets("g", NO_MEMBER, commit) is ErrorCode.NONE


async def test_damage_in_one_partition_does_not_affect_the_others(world: Any) -> None:
    await world.kill()
    bad = next(index for index in range(4) if index != world.coordinator.shards.partition_of("g"))
    world.logs[bad].append(build_batch([(1, b"\x00\x01\x00", b"x")]))
    coordinator = await world.start()
    await world.clock.pass_ms(3_000)
    assert await coordinator.commit_offsets("g", NO_MEMBER, {("t", 0): CommittedOffset(7)}) is ErrorCode.NONE
    assert at_once(coordinator.list_groups())[0] is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    world.logs[bad].clear()
    await world.clock.pass_ms(1_000)
    assert at_once(coordinator.list_groups())[0] is ErrorCode.NONE


async def test_a_waiting_member_is_answered_when_its_partition_moves(world: Any) -> None:
    join = asyncio.ensure_future(world.coordinator.join_group("g", joining()))
    await world.clock.settle()
    world.close_partition(world.coordinator.shards.partition_of("g"))
    assert (await join).error is ErrorCode.NOT_COORDINATOR


async def test_a_member_without_client_is_removed_after_its_session_timeout(world: Any) -> None:
    join = asyncio.ensure_future(world.coordinator.join_group("g", joining()))
    await world.clock.settle()
    join.cancel()
    await world.clock.pass_ms(3_000)
    assert world.coordinator.describe_group("g").state is GroupState.COMPLETING_REBALANCE
    await world.clock.pass_ms(10_000)
    assert world.coordinator.describe_group("g").state is GroupState.EMPTY


async def test_the_first_find_coordinator_creates_the_topic(world_type: Any) -> None:
    world = world_type(GroupSettings(offsets_topic_partitions=4))
    coordinator = await world.start()
    assert await coordinator.shards.find(["g"]) == [None]
    assert await coordinator.shards.find(["h"]) == [None]
    await world.clock.pass_ms(100)
    (address,) = await coordinator.shards.find(["g"])
    assert (address.node_id, address.port) == (65_537, 9092)
    await coordinator.close()
    assert world.failures == []


async def test_a_partition_that_opens_during_the_stop_gets_no_shard(world: Any) -> None:
    """The coordinator stops before the partitions; an open in between must not fail the process."""
    index = world.coordinator.shards.partition_of("g")
    world.close_partition(index)
    await world.coordinator.close()
    world.open_partition(index)
    await world.clock.settle()
    assert world.failures == []
    commit = await world.coordinator.commit_offsets("g", NO_MEMBER, {("t", 0): CommittedOffset(1)})
    assert commit in {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}


@pytest.mark.parametrize("session_ms", [5_999, 1_800_001, -1])
async def test_session_timeouts_have_bounds(world: Any, session_ms: int) -> None:
    answer = await world.coordinator.join_group("g", joining(session_ms=session_ms))
    assert answer.error is ErrorCode.INVALID_SESSION_TIMEOUT


async def test_group_ids_have_bounds(world: Any) -> None:
    for group_id in ("", "x" * 32_768):
        assert (await world.coordinator.join_group(group_id, joining())).error is ErrorCode.INVALID_GROUP_ID
        assert world.coordinator.describe_group(group_id).error is ErrorCode.GROUP_ID_NOT_FOUND
    assert (
        await world.coordinator.commit_offsets("", NO_MEMBER, {("t", 0): CommittedOffset(1)})
        is ErrorCode.NONE
    )
    assert await world.coordinator.commit_offsets("x" * 32_768, NO_MEMBER, {}) is ErrorCode.INVALID_GROUP_ID


async def test_groups_and_writes_in_flight_are_bounded(world_type: Any) -> None:
    world = world_type(
        GroupSettings(offsets_topic_partitions=1, groups_max=2, coordinator_writes_in_flight_max=1)
    )
    world.topics["__consumer_offsets"] = (world.topics["t"][0], 1)
    coordinator = await world.start()
    for group_id in ("g1", "g2"):
        assert (
            await coordinator.commit_offsets(group_id, NO_MEMBER, {("t", 0): CommittedOffset(1)})
            is ErrorCode.NONE
        )
    full = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert await coordinator.commit_offsets("g3", NO_MEMBER, {("t", 0): CommittedOffset(1)}) is full
    assert (await coordinator.join_group("g3", joining())).error is full
    world.open[0].is_slow = True
    first = asyncio.ensure_future(coordinator.commit_offsets("g1", NO_MEMBER, {("t", 0): CommittedOffset(2)}))
    await world.clock.settle()
    assert await coordinator.commit_offsets("g1", NO_MEMBER, {("t", 0): CommittedOffset(3)}) is full
    world.open[0].sync()
    assert await first is ErrorCode.NONE
    await coordinator.close()


async def test_a_write_that_is_too_large_is_refused_as_kafka_does(world_type: Any) -> None:
    world = world_type(GroupSettings(offsets_topic_partitions=1, coordinator_batch_bytes_max=1_024))
    world.topics["__consumer_offsets"] = (world.topics["t"][0], 1)
    coordinator = await world.start()
    commits = {("t", n): CommittedOffset(1) for n in range(100)}
    assert await coordinator.commit_offsets("g", NO_MEMBER, commits) is ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    join = asyncio.ensure_future(coordinator.join_group("g", joining()))
    await world.clock.pass_ms(3_000)
    member_id = (await join).member_id
    sync = SyncRequest(MemberClaim(member_id, None, 1), None, None, {member_id: bytes(2_000)})
    assert (await coordinator.sync_group("g", sync)).error is ErrorCode.UNKNOWN_SERVER_ERROR
    await coordinator.close()


async def test_a_deleted_group_stays_deleted_with_its_commits_in_flight(world: Any) -> None:
    coordinator, partition = world.coordinator, partition_of(world, "g")
    (member,) = await form_group(world)
    assert await coordinator.commit_offsets("g", member, {("t", 0): CommittedOffset(1)}) is ErrorCode.NONE
    assert await coordinator.delete_group("g") is ErrorCode.NON_EMPTY_GROUP
    left = await coordinator.leave_group("g", (member,))
    assert left == LeaveAnswer(((member, ErrorCode.NONE),))
    await world.clock.settle()
    partition.is_slow = True
    late = asyncio.ensure_future(coordinator.commit_offsets("g", NO_MEMBER, {("t", 1): CommittedOffset(9)}))
    await world.clock.settle()
    delete = asyncio.ensure_future(coordinator.delete_group("g"))
    await world.clock.settle()
    assert await coordinator.delete_group("g") is ErrorCode.GROUP_ID_NOT_FOUND
    assert await coordinator.commit_offsets("g", NO_MEMBER, {}) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    partition.sync()
    assert (await late, await delete) == (ErrorCode.NONE, ErrorCode.NONE)
    assert coordinator.describe_group("g").error is ErrorCode.GROUP_ID_NOT_FOUND
    await world.kill()
    coordinator = await world.start()
    assert coordinator.fetch_offsets("g", None) == []
    assert at_once(coordinator.list_groups()) == (ErrorCode.NONE, [])
    assert await coordinator.delete_group("g") is ErrorCode.GROUP_ID_NOT_FOUND


async def test_a_group_whose_deletion_fails_continues(world: Any) -> None:
    coordinator, partition = world.coordinator, partition_of(world, "g")
    (member,) = await form_group(world)
    await coordinator.leave_group("g", (member,))
    await coordinator.commit_offsets("g", NO_MEMBER, {("t", 0): CommittedOffset(1)})
    partition.refusal = AppendBackpressureError("full")
    assert await coordinator.delete_group("g") is ErrorCode.COORDINATOR_NOT_AVAILABLE
    partition.refusal = None
    assert coordinator.fetch_offsets("g", None) == [(("t", 0), CommittedOffset(1))]
    assert coordinator.describe_group("g").state is GroupState.EMPTY
    join = asyncio.ensure_future(coordinator.join_group("g", joining()))
    await world.clock.pass_ms(3_000)
    assert (await join).generation == 3


async def test_offsets_of_an_empty_group_expire_a_week_after_it_became_empty(world: Any) -> None:
    coordinator = world.coordinator
    week_ms = 7 * 24 * 3_600_000
    (member,) = await form_group(world)
    now_ms = world.clock.wall_ms()
    await coordinator.commit_offsets("g", member, {("t", 0): CommittedOffset(1, commit_timestamp_ms=now_ms)})
    await coordinator.leave_group("g", (member,))
    short = CommittedOffset(1, commit_timestamp_ms=now_ms, expire_timestamp_ms=now_ms + 1_000)
    await coordinator.commit_offsets(
        "h", NO_MEMBER, {("t", 0): short, ("t", 1): CommittedOffset(2, commit_timestamp_ms=now_ms)}
    )
    await world.clock.pass_ms(700_000)
    assert coordinator.fetch_offsets("h", None) == [
        (("t", 1), CommittedOffset(2, commit_timestamp_ms=now_ms))
    ]
    await world.clock.pass_ms(week_ms - 1_400_000)
    assert len(at_once(coordinator.list_groups())[1]) == 2
    await world.clock.pass_ms(1_400_000)
    assert at_once(coordinator.list_groups()) == (ErrorCode.NONE, [])
    await world.kill()
    coordinator = await world.start()
    assert at_once(coordinator.list_groups()) == (ErrorCode.NONE, [])


async def test_a_snapshot_equals_the_restored_state(world: Any) -> None:
    claims = await form_group(world, members=2)
    await world.coordinator.commit_offsets("g", claims[0], {("t", n): CommittedOffset(n) for n in range(4)})
    shard = world.coordinator.shards.by_index[world.coordinator.shards.partition_of("g")]
    before = list(shard.snapshot())
    assert [type(entry) for entry in before] == [GroupEntry] + [OffsetEntry] * 4
    await world.kill()
    await world.start()
    shard = world.coordinator.shards.by_index[world.coordinator.shards.partition_of("g")]
    assert list(shard.snapshot()) == before


async def test_groups_are_counted_by_state(world: Any) -> None:
    (member,) = await form_group(world, "g")
    await world.coordinator.commit_offsets("h", NO_MEMBER, {("t", 0): CommittedOffset(1)})
    counted = {state: count for (_, state), count in world.coordinator.budget.by_kind.items() if count}
    assert counted == {GroupState.STABLE: 1, GroupState.EMPTY: 1}
    await world.coordinator.leave_group("g", (member,))
    await world.coordinator.delete_group("h")
    await world.clock.settle()
    kinds = {kind: n for kind, n in world.coordinator.budget.by_kind.items() if n}
    assert kinds == {("classic", GroupState.EMPTY): 1}
