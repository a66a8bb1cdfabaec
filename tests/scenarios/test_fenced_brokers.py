"""A broker that was replaced, or may have been, does not answer from its old state."""

from __future__ import annotations

import asyncio

import pytest
from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from ponor_kafka.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from ponor_metadata.client.errors import NodeFencedError
from ponor_runtime.network import ConnectionClosedError

from tests.scenarios.moving_world import ASK_S_MAX
from tests.scenarios.test_brokers_without_disks import World
from tests.scenarios.test_coordinators_move import Member

LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER
COORDINATOR = ErrorCode.NOT_COORDINATOR


class Reader:
    """A consumer with an incremental fetch session at one broker, and a member of a group with the
    same broker as coordinator.
    """

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self.name = name
        self.member = Member(world)
        self.session_id = 0
        self.session_epoch = 0

    async def begin(self) -> None:
        """Join the group, commit 1, open the session."""
        while await self.member.join(self.name) != ErrorCode.NONE:
            await asyncio.sleep(0.2)
        assert await self.member.sync(self.name) == ErrorCode.NONE
        assert await self.member.commit(self.name, 1) == ErrorCode.NONE
        found = await self.fetch(0)
        assert found.error_code == ErrorCode.NONE
        assert found.responses[0].partitions[0].error_code == ErrorCode.NONE
        self.session_id = found.session_id

    async def fetch(self, offset: int | None = None, *, max_wait_ms: int = 0) -> FetchResponse:
        """Send the next request of the session; with an offset, it continues there."""
        row = FetchPartition(0, fetch_offset=offset or 0, partition_max_bytes=1 << 20)
        request = FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=1 << 20,
            session_id=self.session_id,
            session_epoch=self.session_epoch,
            topics=[FetchTopic("", self._world.topic_id, [row])] if offset is not None else [],
        )
        self.session_epoch += 1
        client = await self._world.client(self.name)
        return await client.ask(request, 16, FetchResponse, timeout_s=ASK_S_MAX)


async def leads_and_coordinates(world: World) -> str:
    """Find a broker that leads the topic's partition and coordinates the group."""
    member = Member(world)
    while (name := await member.coordinator(world.cluster.brokers[0])) is None:
        await asyncio.sleep(0.2)
    if world.leader() != name:
        await world.move(name)
        await world.until(lambda: world.leader() == name and world.serves_somewhere())
    return name


def cut_from_controllers(world: World, name: str) -> None:
    """Cut a broker off from the controllers. Its clients and the store still reach it."""
    for source, target in (("controller", name), (name, "controller")):
        world.simulation.network.cut(source, target)


@pytest.mark.parametrize("seed", [14, 15])
def test_an_isolated_and_replaced_broker_answers_no_reader_and_no_group(seed: int) -> None:
    async def story(world: World) -> None:
        lost = await leads_and_coordinates(world)
        reader = Reader(world, lost)
        await world.fill(lost)
        await reader.begin()
        cut_from_controllers(world, lost)
        successor = await world.taken_over(lost)
        await world.fill(successor, 5)
        while await reader.member.commit(successor, 5) != ErrorCode.NONE:
            await asyncio.sleep(0.2)
        assert world.cluster.processes[lost].running, "its replacement did not reach it"

        assert (await reader.fetch()).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        assert (await world.fetch(lost)).error_code == LEADER
        assert (await world.end_offset(lost))[0] == LEADER
        assert await reader.member.heartbeat(lost) == COORDINATOR
        assert await reader.member.commit(lost, 2) == COORDINATOR
        assert await reader.member.join(lost) == COORDINATOR
        assert await reader.member.coordinator(lost) is None
        with pytest.raises(AssertionError):  # its helper expects an answer without an error
            await reader.member.committed(lost)
        client = await world.client(lost)
        with pytest.raises(ConnectionClosedError):
            await client.ask(DescribeClusterRequest(), 1, DescribeClusterResponse, timeout_s=ASK_S_MAX)
        world.forget_client(lost)

        world.simulation.network.heal()
        await world.until(lambda: not world.cluster.processes[lost].running)
        assert isinstance(world.cluster.processes[lost].failure, NodeFencedError)
        assert await reader.member.committed(successor) == 5
        await world.back(lost)

    World(seed).happen(story)


def test_requests_waiting_at_an_isolated_broker_are_refused_before_it_is_replaced() -> None:
    async def story(world: World) -> None:
        lost = await leads_and_coordinates(world)
        reader = Reader(world, lost)
        await world.fill(lost)
        await reader.begin()
        assert not (await reader.fetch()).responses[0].partitions[0].error_code
        cut_from_controllers(world, lost)
        waiting = asyncio.ensure_future(reader.fetch(6, max_wait_ms=60_000))
        await world.until(waiting.done)
        assert world.leader() == lost, "it was not replaced yet"
        assert waiting.result().error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        world.simulation.network.heal()

    World(16).happen(story)


def test_a_broker_that_reaches_the_controllers_again_in_time_continues() -> None:
    async def story(world: World) -> None:
        lost = await leads_and_coordinates(world)
        reader = Reader(world, lost)
        await world.fill(lost)
        await reader.begin()
        serving = world.services[lost].serving
        cut_from_controllers(world, lost)
        await world.until(lambda: serving.refusal is not None)
        assert (await world.fetch(lost)).error_code == LEADER
        assert await reader.member.heartbeat(lost) == COORDINATOR
        world.simulation.network.heal()
        await world.until(lambda: serving.refusal is None)
        assert world.leader() == lost
        await world.holds(lost, 6)
        assert await reader.member.heartbeat(lost) == ErrorCode.NONE, "the group is unchanged"
        assert await reader.member.committed(lost) == 1
        assert (await reader.fetch()).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND

    World(17).happen(story)


@pytest.mark.parametrize("seed", range(20, 24))
def test_a_resumed_zombie_does_not_answer_from_its_old_state(seed: int) -> None:
    """After its pause it first processes requests that arrived before and during the pause."""

    async def story(world: World) -> None:
        zombie = await leads_and_coordinates(world)
        successor = world.other(zombie)
        reader = Reader(world, zombie)
        await world.fill(zombie)
        await reader.begin()
        process = world.cluster.processes[zombie]
        process.pause()
        asked = [
            asyncio.ensure_future(reader.fetch(0)),
            asyncio.ensure_future(reader.member.heartbeat(zombie)),
            asyncio.ensure_future(reader.member.committed(zombie)),
            asyncio.ensure_future(world.end_offset(zombie)),
        ]
        await world.taken_over(zombie)
        await world.fill(successor, 5)
        while await reader.member.commit(successor, 5) != ErrorCode.NONE:
            await asyncio.sleep(0.2)
        process.resume()
        await world.until(lambda: not process.running)
        await asyncio.wait(asked)
        answers = [one.result() for one in asked if one.exception() is None]
        for answer in answers:
            if isinstance(answer, FetchResponse):
                assert answer.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            elif isinstance(answer, tuple):
                assert answer[0] == LEADER
            else:
                assert answer == COORDINATOR
        await world.back(zombie)

    World(seed).happen(story)
