"""First requests of a group on a new cluster, or after a move, wait instead of being refused."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest
from ponor_broker.groups.events import JoinRequest, MemberClaim, SyncRequest
from ponor_broker.groups.member import JoinProtocol
from ponor_broker.groups.records import CommittedOffset
from ponor_broker.groups.settings import GroupSettings
from ponor_kafka.errors import ErrorCode

NO_MEMBER = MemberClaim("")
WAIT_MS = 2_000


def joining() -> JoinRequest:
    return JoinRequest(
        member_id="",
        instance_id=None,
        client_id="c",
        client_host="/h",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        protocol_type="consumer",
        protocols=(JoinProtocol("range", b""),),
        requires_known_member_id=False,
        supports_skipping_assignment=True,
    )


async def new_cluster(world_type: Any) -> Any:
    world = world_type(GroupSettings(offsets_topic_partitions=4), wait_ms_max=WAIT_MS)
    await world.start()
    return world


async def end(world: Any) -> None:
    await world.coordinator.close()
    assert world.failures == []


async def test_the_first_find_coordinator_waits_until_the_topic_serves(world_type: Any) -> None:
    world = await new_cluster(world_type)
    finds = [asyncio.ensure_future(world.coordinator.shards.find([name])) for name in ("g", "h")]
    await world.clock.pass_ms(100)
    addresses = [address for find in finds for address in await find]
    assert [address.node_id for address in addresses] == [65_537, 65_537]
    assert len(world.coordinator.shards._readiness) == 0
    assert (
        await world.coordinator.commit_offsets("g", NO_MEMBER, {("t", 0): CommittedOffset(1)})
        is ErrorCode.NONE
    )
    await end(world)


async def loading(world_type: Any) -> Any:
    """A coordinator whose partition cannot be read yet."""
    world = world_type(GroupSettings(offsets_topic_partitions=1), wait_ms_max=WAIT_MS)
    world.topics["__consumer_offsets"] = (UUID(int=99), 1)
    await world.start()
    world.close_partition(0)
    world.open_partition(0)
    world.open[0].read_failures = 1
    return world


async def test_a_commit_waits_until_its_partition_is_loaded(world_type: Any) -> None:
    world = await loading(world_type)
    commit = asyncio.ensure_future(
        world.coordinator.commit_offsets("g", NO_MEMBER, {("t", 0): CommittedOffset(1)})
    )
    await world.clock.pass_ms(900)
    assert not commit.done()
    await world.clock.pass_ms(100)
    assert await commit is ErrorCode.NONE
    await end(world)


async def test_find_coordinator_waits_until_the_first_leader_is_named(world_type: Any) -> None:
    """Another broker created the topic: it is in the image, and its partitions are not open yet."""
    world = world_type(GroupSettings(offsets_topic_partitions=1), wait_ms_max=WAIT_MS)
    await world.start()
    world.topics["__consumer_offsets"] = (UUID(int=99), 1)
    world.new.add(0)
    find = asyncio.ensure_future(world.coordinator.shards.find(["g"]))
    await world.clock.pass_ms(500)
    assert not find.done()
    world.new.discard(0)
    world.led.add(0)
    world.open_partition(0)
    world.coordinator.shards.image_changed()
    await world.clock.pass_ms(1)
    assert [address.node_id for address in await find] == [65_537]
    await end(world)


@pytest.mark.parametrize("is_elected", [True, False])
async def test_a_request_waits_at_the_broker_to_which_its_partition_moves(
    world_type: Any, is_elected: bool
) -> None:
    """The broker that named the coordinator may have a newer image than the coordinator."""
    world = world_type(GroupSettings(offsets_topic_partitions=1), wait_ms_max=WAIT_MS)
    world.topics["__consumer_offsets"] = (UUID(int=99), 1)
    await world.start()
    world.close_partition(0)
    world.coming.add(0)
    commit = asyncio.ensure_future(
        world.coordinator.commit_offsets("g", NO_MEMBER, {("t", 0): CommittedOffset(1)})
    )
    await world.clock.pass_ms(500)
    assert not commit.done()
    world.coming.discard(0)
    if is_elected:
        world.led.add(0)
        world.open_partition(0)
    world.coordinator.shards.image_changed()
    await world.clock.pass_ms(1)
    assert await commit is (ErrorCode.NONE if is_elected else ErrorCode.NOT_COORDINATOR)
    await end(world)


@pytest.mark.parametrize("end_of_wait", ["time", "close", "permission", "client"])
async def test_the_wait_of_a_request_is_bounded(world_type: Any, end_of_wait: str) -> None:
    world = await loading(world_type)
    world.open[0].read_failures = 1_000
    commit = asyncio.ensure_future(
        world.coordinator.commit_offsets("g", NO_MEMBER, {("t", 0): CommittedOffset(1)})
    )
    await world.clock.pass_ms(500)
    assert not commit.done()
    match end_of_wait:
        case "time":
            await world.clock.pass_ms(WAIT_MS - 500)
            assert await commit is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        case "close":
            world.led.discard(0)
            world.close_partition(0)
            assert await commit is ErrorCode.NOT_COORDINATOR
        case "permission":
            world.permission.withdraw()
            assert await commit is ErrorCode.NOT_COORDINATOR
        case _:
            commit.cancel()
            await asyncio.wait([commit])
    assert len(world.coordinator.shards._readiness) == 0
    await end(world)


async def test_members_survive_a_time_of_refused_heartbeats(world_type: Any) -> None:
    world = await loading(world_type)
    world.open[0].read_failures = 0
    await world.clock.pass_ms(1_000)
    join = asyncio.ensure_future(world.coordinator.join_group("g", joining()))
    await world.clock.pass_ms(3_000)
    joined = await join
    claim = MemberClaim(joined.member_id, None, joined.generation)
    synced = await world.coordinator.sync_group("g", SyncRequest(claim, None, None, {}))
    assert synced.error is ErrorCode.NONE
    await world.clock.pass_ms(6_000)
    world.permission.withdraw()
    assert world.coordinator.heartbeat("g", claim) is ErrorCode.NOT_COORDINATOR
    await world.clock.pass_ms(60_000)
    world.permission.restore()
    await world.clock.pass_ms(3_000)
    assert world.coordinator.heartbeat("g", claim) is ErrorCode.NONE, "9 of 10 s passed"
    await world.clock.pass_ms(11_000)
    assert world.coordinator.heartbeat("g", claim) is ErrorCode.UNKNOWN_MEMBER_ID
    await end(world)
