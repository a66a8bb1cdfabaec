"""The persister of a broker: joined requests, retries, deadlines and bounds."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from ponor_broker.coordination.partitioning import partition_for
from ponor_broker.coordination.share_persister import (
    DeliveryState,
    SharePartitionKey,
    ShareState,
    StateBatch,
)
from ponor_broker.share_state.settings import ShareStateSettings
from ponor_broker.share_state.state_requests import READS_PER_REQUEST_MAX
from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.read_share_group_state import ReadShareGroupStateRequest

from services.broker.tests.share_kit import MemoryPersister
from services.broker.tests.share_state.share_world import PARTITIONS, TOPIC_ID, ShareWorld

SETTINGS = ShareStateSettings(share_state_topic_partitions=PARTITIONS)
ACKNOWLEDGED = DeliveryState.ACKNOWLEDGED


def keys_at(world: ShareWorld, node_id: int, group_id: str = "orders") -> list[SharePartitionKey]:
    keys = [SharePartitionKey(group_id, TOPIC_ID, partition) for partition in range(60)]
    return [key for key in keys if world.leaders[partition_for(str(key), PARTITIONS)] == node_id]


async def acknowledge(world: ShareWorld, key: SharePartitionKey, offset: int) -> ErrorCode:
    return await world.nodes[1].persister.write(
        key,
        state_epoch=1,
        leader_epoch=-1,
        start_offset=-1,
        delivery_complete_count=-1,
        batches=[StateBatch(offset, offset, ACKNOWLEDGED, 1)],
    )


async def test_the_first_call_creates_the_topic() -> None:
    world = ShareWorld(SETTINGS)
    world.start()
    key = SharePartitionKey("orders", TOPIC_ID, 0)
    assert await world.nodes[1].persister.initialize(key, 1, 0) is ErrorCode.NONE
    assert len(world.logs) == PARTITIONS
    await world.close()


async def test_calls_of_one_group_that_are_ready_together_share_a_request() -> None:
    world = ShareWorld(SETTINGS)
    world.start()
    world.create_topic()
    persister = world.nodes[1].persister
    keys = keys_at(world, 2) + keys_at(world, 2, "others")
    assert len(keys) > 2 * READS_PER_REQUEST_MAX
    created = await asyncio.gather(*(persister.initialize(key, 1, 0) for key in keys))
    assert set(created) == {ErrorCode.NONE}
    by_group = Counter(request.group_id for _, request in world.requests)  # type: ignore[attr-defined]
    assert by_group == {"orders": 1, "others": 1}
    world.requests.clear()
    states = await asyncio.gather(*(persister.read(key, 1) for key in keys))
    assert all(isinstance(state, ShareState) for state in states)
    rows = []
    for _, request in world.requests:
        assert isinstance(request, ReadShareGroupStateRequest)
        rows.append(sum(len(topic.partitions) for topic in request.topics))
    assert max(rows) == READS_PER_REQUEST_MAX
    assert world.in_flight_max <= len(world.nodes[1].persister._ports)
    await world.close()


async def test_two_writes_of_one_share_partition_use_two_requests() -> None:
    world = ShareWorld(SETTINGS)
    world.start()
    world.create_topic()
    key = keys_at(world, 2)[0]
    await world.nodes[1].persister.initialize(key, 1, 0)
    world.requests.clear()
    assert await asyncio.gather(*(acknowledge(world, key, offset) for offset in (1, 2, 3))) == [0, 0, 0]
    assert len(world.requests) == 3
    await world.close()


async def test_a_lost_answer_is_repeated() -> None:
    world = ShareWorld(SETTINGS)
    world.start()
    world.create_topic()
    key = keys_at(world, 2)[0]
    await world.nodes[1].persister.initialize(key, 1, 0)
    world.requests.clear()
    world.unanswered = 2
    assert await acknowledge(world, key, 4) is ErrorCode.NONE
    assert len(world.requests) == 3
    await world.close()


async def test_a_call_follows_its_coordinator() -> None:
    world = ShareWorld(SETTINGS)
    world.start()
    world.create_topic()
    key = keys_at(world, 2)[0]
    index = partition_for(str(key), PARTITIONS)
    await world.nodes[1].persister.initialize(key, 1, 0)
    world.nodes[2].is_up = False
    write = asyncio.create_task(acknowledge(world, key, 4))
    await asyncio.sleep(0.02)
    assert not write.done()
    world.move(index)
    assert await write is ErrorCode.NONE
    state = await world.nodes[2].persister.read(key, 2)
    assert state == ShareState(1, 0, [StateBatch(4, 4, ACKNOWLEDGED, 1)])
    await world.close()


async def test_a_call_ends_at_its_deadline() -> None:
    world = ShareWorld(replace(SETTINGS, share_state_request_timeout_ms=50))
    world.start()
    world.create_topic()
    world.nodes[2].is_up = False
    key = keys_at(world, 2)[0]
    assert await acknowledge(world, key, 4) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.nodes[1].persister._waiting_bytes == 0
    await world.close()


async def test_waiting_calls_are_bounded() -> None:
    world = ShareWorld(replace(SETTINGS, share_state_waiting_bytes_max=64 << 10))
    world.start()
    world.create_topic()
    world.nodes[2].is_up = False
    key = keys_at(world, 2)[0]
    calls = [asyncio.create_task(acknowledge(world, key, offset)) for offset in range(200)]
    await asyncio.sleep(0.01)
    refused = [call for call in calls if call.done()]
    assert 0 < len(refused) < len(calls)
    await world.nodes[1].persister.close()
    assert {await call for call in calls} == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
    await world.close()


async def test_a_call_for_a_deleted_topic_ends_at_once() -> None:
    world = ShareWorld(SETTINGS)
    world.start()
    world.create_topic()
    key = keys_at(world, 2)[0]
    world.topics.clear()
    assert await world.nodes[1].persister.delete(key) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert not world.requests
    await world.close()


CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("initialize"), st.integers(0, 3), st.integers(-1, 9)),
        st.tuples(st.just("read"), st.integers(0, 4), st.just(0)),
        st.tuples(st.just("write"), st.integers(0, 3), st.integers(0, 4)),
        st.tuples(st.just("delete"), st.just(0), st.just(0)),
        st.tuples(st.just("summary"), st.just(0), st.just(0)),
        st.tuples(st.just("move"), st.just(0), st.just(0)),
    ),
    max_size=12,
)


@settings(deadline=None, max_examples=60)
@given(CALLS, st.lists(st.tuples(st.integers(0, 12), st.integers(0, 3)), min_size=12, max_size=12))
def test_it_behaves_as_the_persister_in_memory(
    calls: list[tuple[str, int, int]], writes: list[tuple[int, int]]
) -> None:
    asyncio.run(_compare(calls, writes))


async def _compare(calls: list[tuple[str, int, int]], writes: list[tuple[int, int]]) -> None:
    world = ShareWorld(replace(SETTINGS, share_state_updates_per_snapshot=2))
    world.start()
    world.create_topic()
    key = SharePartitionKey("orders", TOPIC_ID, 1)
    index = partition_for(str(key), PARTITIONS)
    ours, model = world.nodes[1].persister, MemoryPersister()
    for (name, one, other), (first, count) in zip(calls, writes, strict=False):
        if name == "move":
            world.move(index)
            continue
        answers: list[object] = []
        for persister in (ours, model):
            if name == "initialize":
                answers.append(await persister.initialize(key, one, other))
            elif name == "read":
                found = await persister.read(key, one)
                answers.append(
                    found if isinstance(found, ErrorCode) else replace(found, batches=list(found.batches))
                )
            elif name == "write":
                batch = StateBatch(first, first + other, DeliveryState.ACKNOWLEDGED, count)
                answer = await persister.write(
                    key,
                    state_epoch=one,
                    leader_epoch=other,
                    start_offset=max(-1, first - 4),
                    delivery_complete_count=count,
                    batches=[batch],
                )
                answers.append(answer)
            else:
                answers.append(await getattr(persister, name)(key))
        assert answers[0] == answers[1], (name, one, other)
    await world.close()
