"""The memory of consumer groups is bounded: subscriptions, names, targets and current assignments."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from ponor_broker.groups.consumer.events import HeartbeatRequest
from ponor_broker.groups.settings import GroupSettings
from ponor_kafka.errors import ErrorCode
from ponor_kafka.internal_topics import OFFSETS_TOPIC

from services.broker.tests.consumer_kit import SETTINGS, Client, GroupWorld, MemoryTopics

X = frozenset({"x"})
MANY = frozenset(f"{number:0200}" for number in range(1_000))


@pytest.fixture
def topics() -> MemoryTopics:
    topics = MemoryTopics()
    topics.create("x", 4)
    return topics


@pytest.fixture
def world(topics: MemoryTopics) -> GroupWorld:
    return GroupWorld(topics)


def test_an_existing_member_cannot_escape_the_bound_with_a_large_subscription(world: GroupWorld) -> None:
    a = Client(world, "a", X)
    a.beat()
    world.room_bytes = 100_000
    refused = world.heartbeat(HeartbeatRequest("a", 2, topics=MANY))
    assert refused.error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert "groups_memory_bytes_max" in (refused.message or "")
    assert world.group.subscribed_topics() == X
    quiet = a.beat()
    assert (quiet.error, quiet.member_epoch) == (ErrorCode.NONE, 2)


def test_a_new_member_counts_with_its_names(world: GroupWorld) -> None:
    world.room_bytes = 10_000
    join = HeartbeatRequest("a", 0, rebalance_timeout_ms=60_000, topics=X, owned={})
    for large in (
        replace(join, topics=MANY),
        replace(join, client_id="c" * 10_000),
        replace(join, client_id="\N{SNOWMAN}" * 2_500),
        replace(join, member_id="a" * 10_000),
        replace(join, rack_id="r" * 10_000),
    ):
        assert world.heartbeat(large).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert not world.group.contents.members
    assert world.heartbeat(join).error is ErrorCode.NONE


@pytest.mark.parametrize("at_once", [True, False])
def test_a_target_waits_for_memory_and_members_continue(topics: MemoryTopics, at_once: bool) -> None:
    world = GroupWorld(topics, replace(SETTINGS, assigned_at_once_max=1_000 if at_once else 0))
    a = Client(world, "a", X)
    a.beat()
    for _ in world.work():
        pass
    a.beat()
    assert a.owned == world.group.contents.target_of("a")
    world.pass_ms(1_000)
    world.room_bytes = 10_000
    topic_id = topics.create("x", 500)
    for _ in range(5):
        assert a.beat().error is ErrorCode.NONE
        for _ in world.work():
            pass
        world.pass_ms(1_000)
    assert len(a.owned[topic_id]) == 4
    world.room_bytes = 1 << 20
    world.pass_ms(1_000)
    for _ in world.work():
        pass
    a.beat()
    assert len(a.owned[topic_id]) == 500


def test_a_target_reserves_the_memory_of_its_reconciliation(world: GroupWorld) -> None:
    a, b = Client(world, "a", X), Client(world, "b", X)
    a.beat()
    b.beat()
    world.pass_ms(1_000)
    size_bytes = world.group.size_bytes
    for client in (b, a, a, b, b):
        client.beat()
    assert world.group.size_bytes == size_bytes
    assert world.group.contents.all_reached_target


async def test_the_budget_of_the_broker_counts_consumer_groups(world_type: Any) -> None:
    bound_bytes = 1 << 18
    world = world_type(GroupSettings(offsets_topic_partitions=1, groups_memory_bytes_max=bound_bytes))
    world.topics[OFFSETS_TOPIC] = (UUID(int=99), 1)
    await world.start()
    join = HeartbeatRequest("m", 0, rebalance_timeout_ms=60_000, topics=frozenset({"t"}), owned={})
    answer = await world.coordinator.consumer_heartbeat("g", join)
    beat = HeartbeatRequest("m", answer.member_epoch, topics=MANY)
    refused = await world.coordinator.consumer_heartbeat("g", beat)
    assert refused.error is ErrorCode.GROUP_MAX_SIZE_REACHED
    other = await world.coordinator.consumer_heartbeat("h", replace(join, topics=MANY))
    assert other.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.coordinator.consumer_group("h") is ErrorCode.GROUP_ID_NOT_FOUND
    assert 0 < world.coordinator.budget.size_bytes < bound_bytes
    await world.coordinator.consumer_heartbeat("g", HeartbeatRequest("m", -1))
    await world.coordinator.delete_group("g")
    assert world.coordinator.budget.size_bytes == 0
    await world.coordinator.close()
    assert world.failures == []
