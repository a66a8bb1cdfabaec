"""Scenarios of the group coordinator: a group with many offsets, and many groups, over a log in memory."""

from __future__ import annotations

import asyncio
from typing import Final
from uuid import UUID

from ponor_broker.groups.coordinator import GroupCoordinator
from ponor_broker.groups.events import MemberClaim
from ponor_broker.groups.records import CommittedOffset
from ponor_broker.groups.settings import GroupSettings
from ponor_broker.handlers.groups.find_coordinator import FindCoordinatorHandler
from ponor_broker.handlers.groups.groups import group_handlers
from ponor_broker.requests.api_handler import ApiHandler
from ponor_kafka.api import ApiKey
from ponor_kafka.errors import ErrorCode
from ponor_kafka.message import Message
from ponor_kafka.messages.delete_groups import DeleteGroupsRequest
from ponor_kafka.messages.describe_groups import DescribeGroupsRequest
from ponor_kafka.messages.find_coordinator import FindCoordinatorRequest
from ponor_kafka.messages.list_groups import ListGroupsRequest
from ponor_kafka.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup

from services.broker.tests.groups.conftest import BrokerWorld
from tests.benchmarks.turns.answers import Desk
from tests.benchmarks.turns.scenario import scenario
from tests.benchmarks.turns.turn_recorder import TurnRecorder

TOPICS: Final = 100
PARTITIONS: Final = 1_000
OFFSETS: Final = TOPICS * PARTITIONS
RETENTION_MS: Final = 1_000_000
GROUPS: Final = 20_000
COMMITS_TOGETHER: Final = 500
KEYS: Final = 20_000


def _offset(number: int) -> CommittedOffset:
    return CommittedOffset(number, 0, "where this was left off", commit_timestamp_ms=1_700_000_000_000)


async def _world() -> tuple[BrokerWorld, GroupCoordinator]:
    settings = GroupSettings(offsets_topic_partitions=1, offsets_retention_ms=RETENTION_MS)
    world = BrokerWorld(settings, wait_ms_max=2_000)
    world.topics = {"__consumer_offsets": (UUID(int=99), 1)}
    world.topics |= {f"t{number}": (UUID(int=1 + number), PARTITIONS) for number in range(TOPICS)}
    return world, await world.start()


async def _commit_all(coordinator: GroupCoordinator) -> None:
    for topic in range(TOPICS):
        commits = {(f"t{topic}", index): _offset(index) for index in range(PARTITIONS)}
        assert await coordinator.commit_offsets("g", MemberClaim(""), commits) is ErrorCode.NONE


async def _until_offsets(coordinator: GroupCoordinator, count: int) -> None:
    while coordinator.budget.offsets != count:
        await asyncio.sleep(0)


@scenario("group-fetch", f"OffsetFetch of all of {OFFSETS:,} offsets, in three versions")
async def group_fetch(recorder: TurnRecorder) -> None:
    """Requests of an administrator's tool."""
    world, coordinator = await _world()
    await _commit_all(coordinator)
    desk = Desk(group_handlers(coordinator, world, world.clock), {})
    new: Message = OffsetFetchRequest(groups=[OffsetFetchRequestGroup("g", topics=None)])
    old: Message = OffsetFetchRequest("g", topics=None)
    few: Message = OffsetFetchRequest(groups=[OffsetFetchRequestGroup("unknown", topics=None)])
    for version in (8, 10):
        await desk.ask(ApiKey.OFFSET_FETCH, version, few)  # the codecs are created at the first use
    await desk.ask(ApiKey.OFFSET_FETCH, 7, OffsetFetchRequest("unknown", topics=None))
    recorder.start_recording()
    for version, request in ((7, old), (8, new), (10, new)):
        assert await desk.ask(ApiKey.OFFSET_FETCH, version, request) > 30 * OFFSETS
    recorder.stop_recording()
    await coordinator.close()


@scenario("group-expiry", f"{OFFSETS:,} offsets of a group expire")
async def group_expiry(recorder: TurnRecorder) -> None:
    """The group expires with its offsets."""
    world, coordinator = await _world()
    await _commit_all(coordinator)
    world.clock.wall_ahead_ms += 2 * RETENTION_MS
    (shard,) = coordinator.shards.loaded()
    recorder.start_recording()
    assert await shard.removal.expire() == OFFSETS
    await _until_offsets(coordinator, 0)
    recorder.stop_recording()
    await asyncio.sleep(0)
    assert not len(shard)
    await coordinator.close()


@scenario("group-deletion", f"a group with {OFFSETS:,} offsets is deleted")
async def group_deletion(recorder: TurnRecorder) -> None:
    """Deletion by an administrator."""
    _, coordinator = await _world()
    await _commit_all(coordinator)
    recorder.start_recording()
    assert await coordinator.delete_group("g") is ErrorCode.NONE
    recorder.stop_recording()
    assert coordinator.budget.groups == 0
    await coordinator.close()


async def _many_groups() -> tuple[BrokerWorld, GroupCoordinator]:
    world, coordinator = await _world()
    for first in range(0, GROUPS, COMMITS_TOGETHER):
        commits = (
            coordinator.commit_offsets(f"g{number}", MemberClaim(""), {("t0", 0): _offset(number)})
            for number in range(first, first + COMMITS_TOGETHER)
        )
        assert set(await asyncio.gather(*commits)) == {ErrorCode.NONE}
    return world, coordinator


@scenario("groups-found", f"FindCoordinator of {KEYS:,} groups")
async def groups_found(recorder: TurnRecorder) -> None:
    """The first request of an administrator's tool about all groups."""
    _, coordinator = await _world()
    finds = FindCoordinatorHandler(
        coordinator.shards, coordinator.shards, coordinator.shards, lambda node_id, listener: None
    )
    desk = Desk([ApiHandler(ApiKey.FIND_COORDINATOR, 0, 6, finds.handle)], {})
    await desk.ask(ApiKey.FIND_COORDINATOR, 4, FindCoordinatorRequest(coordinator_keys=["g"]))
    request = FindCoordinatorRequest(coordinator_keys=[f"g{number}" for number in range(KEYS)])
    recorder.start_recording()
    assert await desk.ask(ApiKey.FIND_COORDINATOR, 4, request) > 20 * KEYS
    recorder.stop_recording()
    await coordinator.close()


@scenario("groups-listed", f"ListGroups and DescribeGroups of {GROUPS:,} groups")
async def groups_listed(recorder: TurnRecorder) -> None:
    """The periodic request of monitoring."""
    world, coordinator = await _many_groups()
    desk = Desk(group_handlers(coordinator, world, world.clock), {})
    await desk.ask(ApiKey.DESCRIBE_GROUPS, 5, DescribeGroupsRequest(groups=["g0"]))
    await desk.ask(ApiKey.LIST_GROUPS, 4, ListGroupsRequest(states_filter=["none"]))
    every = DescribeGroupsRequest(groups=[f"g{number}" for number in range(GROUPS)])
    recorder.start_recording()
    assert await desk.ask(ApiKey.LIST_GROUPS, 4, ListGroupsRequest()) > 10 * GROUPS
    assert await desk.ask(ApiKey.DESCRIBE_GROUPS, 5, every) > 10 * GROUPS
    recorder.stop_recording()
    await coordinator.close()


@scenario("groups-deleted", f"DeleteGroups of {GROUPS:,} groups in one request")
async def groups_deleted(recorder: TurnRecorder) -> None:
    """Deletion by an administrator."""
    world, coordinator = await _many_groups()
    desk = Desk(group_handlers(coordinator, world, world.clock), {})
    await desk.ask(ApiKey.DELETE_GROUPS, 2, DeleteGroupsRequest(["unknown"]))
    every = DeleteGroupsRequest([f"g{number}" for number in range(GROUPS)])
    recorder.start_recording()
    await desk.ask(ApiKey.DELETE_GROUPS, 2, every)
    recorder.stop_recording()
    assert coordinator.budget.groups == 0
    await coordinator.close()
