"""The coordinator of a group moves with its partition: members keep their ids and their generation,
and none rejoins.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

import pytest
from ponor_kafka.errors import ErrorCode
from ponor_kafka.message import Message
from ponor_kafka.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ponor_kafka.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ponor_kafka.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from ponor_kafka.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from ponor_kafka.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from ponor_kafka.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)
from ponor_kafka.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from ponor_metadata.nouns.topics import MOVES, PARTITIONS, TOPICS, PartitionRow
from ponor_simulation.links import DelayLaw

from tests.scenarios.moving_world import ASK_S_MAX, TOPIC, MovingWorld

OFFSETS = "__consumer_offsets"
GROUP = "readers"
M = TypeVar("M", bound=Message)


class Member:
    """A client of the group that sends individual requests."""

    def __init__(self, world: MovingWorld) -> None:
        self._world = world
        self.member_id = ""
        self.generation = -1

    async def ask(self, name: str, request: Message, version: int, expected: type[M]) -> M:
        """Send one request to a broker."""
        client = await self._world.client(name)
        return await client.ask(request, version, expected, timeout_s=ASK_S_MAX)

    async def coordinator(self, asked: str) -> str | None:
        """The coordinator that a broker names; None if there is none yet."""
        answer = await self.ask(asked, FindCoordinatorRequest(GROUP), 3, FindCoordinatorResponse)
        if answer.error_code:
            assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
            return None
        return self._world.cluster.broker_of(answer.node_id)

    async def join(self, name: str) -> int:
        """JoinGroup with the id that the coordinator assigns."""
        while True:
            request = JoinGroupRequest(
                GROUP,
                10_000,
                10_000,
                self.member_id,
                None,
                "consumer",
                [JoinGroupRequestProtocol("range", b"")],
            )
            answer = await self.ask(name, request, 5, JoinGroupResponse)
            self.member_id = answer.member_id
            if answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
                self.member_id = (
                    ""  # as every client does: the id became invalid with a rebalance that was not written
                )
            elif answer.error_code != ErrorCode.MEMBER_ID_REQUIRED:
                self.generation = answer.generation_id
                return answer.error_code

    async def sync(self, name: str) -> int:
        """SyncGroup as the leader."""
        plan = [SyncGroupRequestAssignment(self.member_id, b"all of it")]
        request = SyncGroupRequest(GROUP, self.generation, self.member_id, None, assignments=plan)
        return (await self.ask(name, request, 3, SyncGroupResponse)).error_code

    async def heartbeat(self, name: str) -> int:
        """Send a Heartbeat."""
        request = HeartbeatRequest(GROUP, self.generation, self.member_id)
        return (await self.ask(name, request, 3, HeartbeatResponse)).error_code

    async def commit(self, name: str, offset: int) -> int:
        """Commit an offset."""
        rows = [OffsetCommitRequestTopic(TOPIC, partitions=[OffsetCommitRequestPartition(0, offset)])]
        request = OffsetCommitRequest(GROUP, self.generation, self.member_id, topics=rows)
        answer = await self.ask(name, request, 7, OffsetCommitResponse)
        return answer.topics[0].partitions[0].error_code

    async def committed(self, name: str) -> int:
        """Fetch the committed offset."""
        request = OffsetFetchRequest(GROUP, [OffsetFetchRequestTopic(TOPIC, [0])])
        answer = await self.ask(name, request, 5, OffsetFetchResponse)
        assert answer.error_code == ErrorCode.NONE
        return answer.topics[0].partitions[0].committed_offset


async def begin(world: MovingWorld) -> tuple[Member, str, int]:
    """Create a stable group with one member; return its coordinator and its partition."""
    member = Member(world)
    while (name := await member.coordinator(world.cluster.brokers[0])) is None:
        await asyncio.sleep(0.1)
    while await member.join(name) != ErrorCode.NONE:
        await asyncio.sleep(0.1)
    assert await member.sync(name) == ErrorCode.NONE
    assert await member.commit(name, 17) == ErrorCode.NONE
    return member, name, world.services[name].coordinator.shards.partition_of(GROUP)


def row_of(world: MovingWorld, index: int) -> PartitionRow:
    """The controller's row of the offsets partition."""
    assert world.cluster.watch.controller is not None
    image = world.cluster.watch.controller.image
    (topic,) = [row for row in image[TOPICS] if row.name == OFFSETS]
    row = image[PARTITIONS].get((topic.topic_id, index))
    assert row is not None
    return row


def test_a_group_continues_at_the_new_coordinator_without_a_rebalance() -> None:
    async def story(world: MovingWorld) -> None:
        member, source, index = await begin(world)
        target = world.other(source)
        generation = member.generation
        moving = asyncio.ensure_future(world.move(target, index, by=target, topic=OFFSETS))
        answers: set[int] = set()
        while row_of(world, index).leader_id != world.cluster.node_of(target):
            answers.add(await member.heartbeat(source))
            await asyncio.sleep(0.002)
        assert await moving == [ErrorCode.NONE]
        answers.add(await member.heartbeat(target))  # it may still be loading
        assert answers <= {ErrorCode.NONE, ErrorCode.NOT_COORDINATOR}
        await asyncio.sleep(0.5)
        assert await member.heartbeat(source) == ErrorCode.NOT_COORDINATOR
        for name in world.cluster.brokers:
            assert await member.coordinator(name) == target
        assert await member.heartbeat(target) == ErrorCode.NONE
        assert await member.committed(target) == 17
        assert await member.commit(target, 18) == ErrorCode.NONE
        assert await member.sync(target) == ErrorCode.NONE
        assert member.generation == generation
        listed = await member.ask(target, ListGroupsRequest(), 3, ListGroupsResponse)
        assert [group.group_id for group in listed.groups] == [GROUP]
        listed = await member.ask(source, ListGroupsRequest(), 3, ListGroupsResponse)
        assert [group.group_id for group in listed.groups] == []

    MovingWorld(1).tell(story)


def test_a_group_continues_at_its_coordinator_after_a_cancelled_move() -> None:
    async def story(world: MovingWorld) -> None:
        member, source, index = await begin(world)
        store = world.store_of_faults()
        await world.move(world.other(source), index, topic=OFFSETS)
        topic_id = row_of(world, index).topic_id
        handoffs = world.services[source].partitions.source
        await world.until(lambda: world.services[source].partitions.get(topic_id, index).service.is_sealed)  # type: ignore[union-attr]
        store.down = True
        assert await member.heartbeat(source) == ErrorCode.NONE
        assert await member.commit(source, 18) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert await world.move(None, index, topic=OFFSETS) == [ErrorCode.NONE]
        await world.until(lambda: not len(handoffs))
        store.down = False
        await asyncio.sleep(0.5)
        assert await member.heartbeat(source) == ErrorCode.NONE
        assert await member.commit(source, 19) == ErrorCode.NONE
        assert await member.committed(source) == 19

    MovingWorld(2).tell(story)


def test_a_member_waiting_in_a_join_is_redirected_to_the_new_coordinator() -> None:
    async def story(world: MovingWorld) -> None:
        first, source, index = await begin(world)
        second = Member(world)
        world.forget_client(source)  # a separate connection, because a join waits for the other members
        joining = asyncio.ensure_future(second.join(source))
        await asyncio.sleep(0.5)
        assert not joining.done()
        target = world.other(source)
        await world.move(target, index, by=target, topic=OFFSETS)
        assert await joining == ErrorCode.NOT_COORDINATOR
        await asyncio.sleep(0.5)
        # The group has its last written state: the first member is in it, and the second joins again.
        assert await first.heartbeat(target) == ErrorCode.NONE
        world.forget_client(target)
        again = asyncio.ensure_future(second.join(target))
        await asyncio.sleep(0.2)
        world.forget_client(target)
        assert await first.heartbeat(target) == ErrorCode.REBALANCE_IN_PROGRESS
        again.cancel()

    MovingWorld(3).tell(story)


@pytest.mark.parametrize("seed", range(1, 5))
def test_the_first_group_of_a_new_cluster_sees_no_error(seed: int) -> None:
    """The first request creates the offsets topic. This and the next requests wait until the
    group's partition serves.
    """

    async def story(world: MovingWorld) -> None:
        member = Member(world)
        name = await member.coordinator(world.cluster.brokers[seed % 2])
        assert name is not None
        assert await member.join(name) == ErrorCode.NONE
        assert await member.sync(name) == ErrorCode.NONE
        assert await member.commit(name, 17) == ErrorCode.NONE
        assert await member.committed(name) == 17

    MovingWorld(seed).tell(story)


LAG = DelayLaw((0.5, 0.6), 0.0)


async def hear_late_of_the_election(world: MovingWorld, target: str, index: int) -> None:
    """Move the offsets partition. The target's image shows the move immediately and the election
    half a second later.
    """
    source = row_of(world, index)
    moving = asyncio.ensure_future(world.move(target, index, by=target, topic=OFFSETS))
    moves = world.image_of(target)[MOVES]
    await world.until(lambda: moves.get((source.topic_id, index)) is not None)
    assert row_of(world, index).leader_id == source.leader_id, "not elected yet"
    world.simulation.network.links.delays["controller", target] = LAG
    assert await moving == [ErrorCode.NONE]


@pytest.mark.parametrize("seed", range(1, 5))
def test_a_coordinator_with_a_late_image_refuses_nothing(seed: int) -> None:
    """Its image shows the first open of the group's partition, and later the election after a move,
    later than the broker that answered FindCoordinator.
    """

    async def story(world: MovingWorld) -> None:
        asked, late = world.cluster.brokers
        delays = world.simulation.network.links.delays
        delays["controller", late] = LAG
        member = Member(world)
        name = await member.coordinator(asked)
        assert name is not None
        assert await member.join(name) == ErrorCode.NONE
        assert await member.sync(name) == ErrorCode.NONE
        assert await member.commit(name, 17) == ErrorCode.NONE
        for _ in range(2):
            delays.clear()
            target = world.other(name)
            await hear_late_of_the_election(
                world, target, world.services[name].coordinator.shards.partition_of(GROUP)
            )
            while await member.coordinator(name) != target:
                await asyncio.sleep(0.001)
            assert await member.committed(target) == 17
            name = target
        delays.clear()

    MovingWorld(seed).tell(story)
