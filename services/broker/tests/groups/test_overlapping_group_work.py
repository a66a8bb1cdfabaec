"""Work of consumer groups that overlaps other events: computations, rewrites of the log, deletions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from ponor_broker.groups.consumer.events import HeartbeatAnswer, HeartbeatRequest
from ponor_broker.groups.events import MemberClaim
from ponor_broker.groups.settings import GroupSettings
from ponor_broker.handlers.groups.consumer_group_describe import (
    MEMBERS_PER_STEP,
    ConsumerGroupDescribeHandler,
)
from ponor_broker.requests.api_handler import RequestContext
from ponor_broker.requests.connection import ConnectionContext
from ponor_kafka.errors import ErrorCode
from ponor_kafka.internal_topics import OFFSETS_TOPIC
from ponor_kafka.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from s3stream.errors import WalFullError

from services.broker.tests.classic_client import ClassicClient

MANY = 1_200
"""Partitions of a group whose target is computed in the background."""
BIG = UUID(int=2)
JOIN = HeartbeatRequest("m", 0, rebalance_timeout_ms=20_000, topics=frozenset({"big"}), owned={})


@pytest.fixture
async def worlds(world_type: Any) -> AsyncIterator[Callable[..., Any]]:
    started = []

    async def start(**fields: Any) -> Any:
        world = world_type(GroupSettings(offsets_topic_partitions=1, **fields))
        world.topics |= {OFFSETS_TOPIC: (UUID(int=99), 1), "big": (BIG, MANY)}
        await world.start()
        started.append(world)
        return world

    yield start
    for world in started:
        await world.coordinator.close()
        assert world.failures == []


def beat(world: Any, request: HeartbeatRequest) -> asyncio.Task[HeartbeatAnswer]:
    return asyncio.create_task(world.coordinator.consumer_heartbeat("g", request))


async def until(is_true: Callable[[], object]) -> None:
    for _ in range(10_000):
        if is_true():
            return
        await asyncio.sleep(0)
    raise AssertionError("it did not happen")


async def restarted(world: Any) -> None:
    await world.kill()
    await world.start()
    await until(lambda: world.coordinator.shards.is_whole)


def consumers(world: Any) -> Any:
    return world.coordinator.shards.by_index[0].consumers


def is_computing(world: Any) -> bool:
    return bool(consumers(world)._working)


def paused(world: Any) -> asyncio.Lock:
    """Return the lock that stops computations while it is held."""
    lock: asyncio.Lock = consumers(world)._turns._busy
    return lock


async def test_a_static_member_of_a_large_group_gets_its_assignment_with_its_first_answer(
    worlds: Any,
) -> None:
    world = await worlds()
    answer = await beat(world, replace(JOIN, instance_id="i"))
    assert (answer.error, answer.message) == (ErrorCode.NONE, None)
    assert len((answer.assignment or {})[BIG.bytes]) == MANY
    left = await beat(world, HeartbeatRequest("m", -2, "i"))
    assert left.error is ErrorCode.NONE
    again = await beat(world, replace(JOIN, member_id="n", instance_id="i"))
    assert (again.error, len((again.assignment or {})[BIG.bytes])) == (ErrorCode.NONE, MANY)


async def test_a_member_that_leaves_while_its_join_waits_does_not_return(worlds: Any) -> None:
    world = await worlds()
    async with paused(world):
        joining = beat(world, JOIN)
        await until(lambda: is_computing(world))
        assert (await beat(world, HeartbeatRequest("m", -1))).error is ErrorCode.NONE
    assert (await joining).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert len(world.coordinator.consumer_group("g")) == 0


async def test_a_join_that_waits_is_answered_when_the_partition_moves(worlds: Any) -> None:
    world = await worlds()
    async with paused(world):
        joining = beat(world, JOIN)
        await until(lambda: is_computing(world))
        await world.clock.settle()
        world.close_partition(0)
    assert (await joining).error is ErrorCode.NOT_COORDINATOR


@pytest.mark.parametrize("is_durable", [True, False])
async def test_a_group_that_is_deleted_during_a_computation_stays_deleted(
    worlds: Any, is_durable: bool
) -> None:
    world = await worlds()
    async with paused(world):
        joining = beat(world, JOIN)
        await until(lambda: is_computing(world))
        assert (await beat(world, HeartbeatRequest("m", -1))).error is ErrorCode.NONE
        if is_durable:
            assert await world.coordinator.delete_group("g") is ErrorCode.NONE
        else:
            world.open[0].is_slow = True
            deletion = asyncio.ensure_future(world.coordinator.delete_group("g"))
            await world.clock.settle()
        assert is_computing(world)
    await until(lambda: not is_computing(world))
    if not is_durable:
        world.open[0].is_slow = False
        world.open[0].sync()
        assert await deletion is ErrorCode.NONE
    await joining
    await restarted(world)
    assert world.coordinator.consumer_group("g") is ErrorCode.GROUP_ID_NOT_FOUND


async def test_a_group_whose_deletion_is_refused_during_a_computation_assigns_again(worlds: Any) -> None:
    world = await worlds()
    async with paused(world):
        joining = beat(world, JOIN)
        await until(lambda: is_computing(world))
        assert (await beat(world, HeartbeatRequest("m", -1))).error is ErrorCode.NONE
        world.open[0].is_slow = True
        deletion = asyncio.ensure_future(world.coordinator.delete_group("g"))
        await world.clock.settle()
    await until(lambda: not is_computing(world))
    world.open[0].fail(WalFullError("full"))
    world.open[0].is_slow = False
    assert await deletion is not ErrorCode.NONE
    await joining
    await world.clock.pass_ms(2_000)
    answer = await beat(world, replace(JOIN, member_id="n"))
    assert len((answer.assignment or {}).get(BIG.bytes, ())) == MANY


async def test_a_rewrite_does_not_write_members_again_after_a_downgrade(worlds: Any) -> None:
    world = await worlds()
    clients = [ClassicClient(world, f"c{number}", ["t"]) for number in range(150)]
    await beat(world, replace(JOIN, topics=frozenset({"t"})))
    for client in clients:
        assert await client.rejoin() is ErrorCode.NONE
    partition = world.open[0]
    partition.is_slow = True
    start = partition.log_end_offset
    rewriting = asyncio.ensure_future(world.coordinator.shards.by_index[0].rewrite.write())
    await until(lambda: partition.log_end_offset > start)
    leaving = beat(world, HeartbeatRequest("m", -1))
    await world.clock.settle()
    partition.is_slow = False
    partition.sync()
    assert (await leaving).error is ErrorCode.NONE
    assert await rewriting
    await restarted(world)
    group = world.coordinator.shards.by_index[0].get("g")
    assert group.consumer is None
    assert len(world.coordinator.describe_group("g").members) == 150


async def test_a_classic_member_that_joins_during_a_deletion_waits(worlds: Any) -> None:
    world = await worlds()
    await beat(world, JOIN)
    await beat(world, HeartbeatRequest("m", -1))
    await world.clock.settle()
    world.open[0].is_slow = True
    deletion = asyncio.ensure_future(world.coordinator.delete_group("g"))
    await world.clock.settle()
    joining = asyncio.ensure_future(
        world.coordinator.join_group(
            "g", replace(ClassicClient(world, "c", ["t"]).join_request(), requires_known_member_id=False)
        )
    )
    await world.clock.settle()
    world.open[0].sync()
    assert await deletion is ErrorCode.NONE
    assert (await joining).error is ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_a_computation_ends_when_the_group_becomes_a_classic_group(worlds: Any) -> None:
    world = await worlds()
    await beat(world, replace(JOIN, topics=frozenset({"t"})))
    classic = ClassicClient(world, "c", ["t"])
    assert await classic.rejoin() is ErrorCode.NONE
    async with paused(world):
        assert (await beat(world, replace(JOIN, member_id="n"))).error is ErrorCode.NONE
        await world.clock.pass_ms(1_000)
        await until(lambda: is_computing(world))
        for member_id in ("m", "n"):
            assert (await beat(world, HeartbeatRequest(member_id, -1))).error is ErrorCode.NONE
        assert len(world.coordinator.describe_group("g").members) == 1
        # The group changes back: the result does not belong to its new membership.
        again = beat(world, replace(JOIN, topics=frozenset({"t"})))
        await until(lambda: world.coordinator.consumer_group("g") is not ErrorCode.GROUP_ID_NOT_FOUND)
    assert (await again).error is ErrorCode.NONE
    assert world.coordinator.consumer_group("g").contents.targets.keys() == {"m", classic.member_id}
    world.coordinator.consumer_group("g").contents.validate()


async def test_results_of_expressions_exceed_one_batch(worlds: Any) -> None:
    world = await worlds(coordinator_batch_bytes_max=64 << 10)
    world.topics |= {f"x{number:019}": (UUID(int=100 + number), 1) for number in range(2_100)}
    for number in range(4):
        join = replace(JOIN, member_id=f"m{number}", topics=None, expression="x" + "." * number + ".*")
        assert (await beat(world, join)).error is ErrorCode.NONE
    await until(lambda: not is_computing(world))
    world.topics["x" * 20] = (UUID(int=50), 1)
    world.coordinator.topics_changed()
    await world.clock.pass_ms(10_000)
    contents = world.coordinator.consumer_group("g").contents
    epoch = contents.currents["m0"].epoch
    assert (await beat(world, HeartbeatRequest("m0", epoch))).error is ErrorCode.NONE
    await until(lambda: not is_computing(world))
    assert [len(each.topics) for each in contents.expressions.values()] == [2_101] * 4


async def test_many_members_leave_in_parts(worlds: Any) -> None:
    world = await worlds()
    joins = [
        beat(world, replace(JOIN, member_id=f"m{number}", topics=frozenset({"t"}))) for number in range(450)
    ]
    await asyncio.gather(*joins)
    batches = len(world.open[0].log)
    claims = tuple(MemberClaim(f"m{number}") for number in range(450))
    left = await world.coordinator.leave_group("g", (*claims, MemberClaim("x")))
    assert [error for _, error in left.results] == [ErrorCode.NONE] * 450 + [ErrorCode.UNKNOWN_MEMBER_ID]
    assert [claim for claim, _ in left.results][:450] == list(claims)
    assert len(world.open[0].log) == batches + 3
    assert len(world.coordinator.consumer_group("g")) == 0


async def test_a_turn_describes_a_bounded_number_of_groups(worlds: Any) -> None:
    world = await worlds()
    handler = ConsumerGroupDescribeHandler(world.coordinator, world)
    context = RequestContext(1, "client", ConnectionContext("127.0.0.1:5"))
    request = ConsumerGroupDescribeRequest([f"g{number}" for number in range(20 * MEMBERS_PER_STEP)])
    answering = asyncio.ensure_future(handler.handle(request, context))
    turns = 0
    while not answering.done():
        turns += 1
        await asyncio.sleep(0)
    assert len((await answering).groups) == 20 * MEMBERS_PER_STEP
    assert turns >= 20
