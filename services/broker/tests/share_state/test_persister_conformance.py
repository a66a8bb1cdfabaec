"""Every implementation of `SharePersister` behaves in the same way."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from uuid import UUID

import pytest
from ponor_broker.coordination.partitioning import partition_for
from ponor_broker.coordination.share_persister import (
    DeliveryState,
    SharePartitionKey,
    SharePersister,
    ShareState,
    StateBatch,
)
from ponor_kafka.errors import ErrorCode

from services.broker.tests.share_kit import NO_STATE, MemoryPersister
from services.broker.tests.share_state.share_world import PARTITIONS, ShareWorld

KEY = SharePartitionKey("orders", UUID(int=7), 3)
AVAILABLE, ACKNOWLEDGED, ARCHIVED = (
    DeliveryState.AVAILABLE,
    DeliveryState.ACKNOWLEDGED,
    DeliveryState.ARCHIVED,
)


@pytest.fixture(params=["memory", "coordinator here", "coordinator elsewhere"])
async def persister(request: pytest.FixtureRequest) -> AsyncIterator[SharePersister]:
    if request.param == "memory":
        yield MemoryPersister()
        return
    world = ShareWorld()
    world.topics[KEY.topic_id] = ("orders", 10)
    world.start()
    world.create_topic()
    is_here = request.param == "coordinator here"
    home = world.leaders[partition_for(str(KEY), PARTITIONS)]
    yield world.nodes[home if is_here else 3 - home].persister
    await world.close()


async def write(
    persister: SharePersister,
    *batches: StateBatch,
    state_epoch: int = 1,
    leader_epoch: int = 5,
    start_offset: int = -1,
    complete: int = -1,
) -> ErrorCode:
    return await persister.write(
        KEY,
        state_epoch=state_epoch,
        leader_epoch=leader_epoch,
        start_offset=start_offset,
        delivery_complete_count=complete,
        batches=batches,
    )


async def state(persister: SharePersister, leader_epoch: int = 5) -> tuple[int, int, Sequence[StateBatch]]:
    found = await persister.read(KEY, leader_epoch)
    assert isinstance(found, ShareState), found
    return found.state_epoch, found.start_offset, list(found.batches)


async def test_a_missing_state(persister: SharePersister) -> None:
    assert await persister.read(KEY, 5) is ErrorCode.INVALID_REQUEST
    assert await write(persister) is ErrorCode.INVALID_REQUEST
    assert await persister.summary(KEY) == NO_STATE
    assert await persister.delete(KEY) is ErrorCode.NONE


async def test_initialization_replaces_only_states_of_older_epochs(persister: SharePersister) -> None:
    assert await persister.initialize(KEY, 1, 4) is ErrorCode.NONE
    assert await state(persister) == (1, 4, [])
    assert await write(persister, StateBatch(5, 5, ACKNOWLEDGED, 1)) is ErrorCode.NONE
    assert await persister.initialize(KEY, 1, 4) is ErrorCode.NONE
    assert await state(persister) == (1, 4, [StateBatch(5, 5, ACKNOWLEDGED, 1)])
    assert await persister.initialize(KEY, 2, 0) is ErrorCode.NONE
    assert await state(persister) == (2, 0, [])
    assert await persister.initialize(KEY, 1, 9) is ErrorCode.FENCED_STATE_EPOCH
    assert await state(persister) == (2, 0, [])


async def test_an_older_owner_is_fenced(persister: SharePersister) -> None:
    await persister.initialize(KEY, 2, 0)
    assert await state(persister, leader_epoch=5) == (2, 0, [])
    assert await persister.read(KEY, 4) is ErrorCode.FENCED_LEADER_EPOCH
    done = StateBatch(0, 0, ACKNOWLEDGED, 1)
    assert await write(persister, done, state_epoch=2, leader_epoch=4) is ErrorCode.FENCED_LEADER_EPOCH
    assert await write(persister, done, state_epoch=1, leader_epoch=5) is ErrorCode.FENCED_STATE_EPOCH
    assert await state(persister, leader_epoch=6) == (2, 0, [])
    assert await write(persister, done, state_epoch=2, leader_epoch=5) is ErrorCode.FENCED_LEADER_EPOCH


async def test_acknowledged_records_around_one_that_is_not(persister: SharePersister) -> None:
    await persister.initialize(KEY, 1, 5)
    await state(persister)
    assert await write(persister, StateBatch(5, 5, ACKNOWLEDGED, 1), start_offset=6) is ErrorCode.NONE
    assert await write(persister, StateBatch(8, 8, ACKNOWLEDGED, 1)) is ErrorCode.NONE
    assert await write(persister, StateBatch(6, 6, AVAILABLE, 1)) is ErrorCode.NONE
    assert await write(persister, StateBatch(7, 7, ACKNOWLEDGED, 1), complete=2) is ErrorCode.NONE
    expected = [StateBatch(6, 6, AVAILABLE, 1), StateBatch(7, 8, ACKNOWLEDGED, 1)]
    assert await state(persister, leader_epoch=6) == (1, 6, expected)
    assert await persister.summary(KEY) == (1, 6, 6, 2)


async def test_a_final_state_and_a_higher_count_win(persister: SharePersister) -> None:
    await persister.initialize(KEY, 1, 0)
    await state(persister)
    await write(persister, StateBatch(0, 9, AVAILABLE, 1))
    await write(persister, StateBatch(3, 4, ACKNOWLEDGED, 1), StateBatch(6, 7, AVAILABLE, 2))
    await write(persister, StateBatch(2, 8, AVAILABLE, 1))
    expected = [
        StateBatch(0, 2, AVAILABLE, 1),
        StateBatch(3, 4, ACKNOWLEDGED, 1),
        StateBatch(5, 5, AVAILABLE, 1),
        StateBatch(6, 7, AVAILABLE, 2),
        StateBatch(8, 9, AVAILABLE, 1),
    ]
    assert await state(persister) == (1, 0, expected)


async def test_a_raised_start_drops_the_batches_below_it(persister: SharePersister) -> None:
    await persister.initialize(KEY, 1, -1)
    assert await state(persister) == (1, -1, [])
    await write(persister, StateBatch(10, 19, ARCHIVED, 5), start_offset=10, complete=10)
    await write(persister, start_offset=15, complete=5)
    assert await state(persister) == (1, 15, [StateBatch(15, 19, ARCHIVED, 5)])
    # A write that arrives late changes neither the start nor what is final.
    await write(persister, StateBatch(12, 15, AVAILABLE, 1), start_offset=12, complete=9)
    assert await state(persister) == (1, 15, [StateBatch(15, 19, ARCHIVED, 5)])
    assert await persister.summary(KEY) == (1, 5, 15, 5)


async def test_a_deleted_state_is_gone(persister: SharePersister) -> None:
    await persister.initialize(KEY, 3, 0)
    assert await persister.delete(KEY) is ErrorCode.NONE
    assert await persister.read(KEY, 5) is ErrorCode.INVALID_REQUEST
    assert await persister.initialize(KEY, 1, 0) is ErrorCode.NONE
    assert await state(persister) == (1, 0, [])


async def test_a_leader_that_has_not_read_a_recreated_state_is_fenced(persister: SharePersister) -> None:
    await persister.initialize(KEY, 1, 0)
    await state(persister)
    await persister.delete(KEY)
    await persister.initialize(KEY, 1, 0)
    done = StateBatch(0, 0, ACKNOWLEDGED, 1)
    assert await write(persister, done, start_offset=3) is ErrorCode.FENCED_LEADER_EPOCH
    assert await state(persister) == (1, 0, [])
    assert await write(persister, done) is ErrorCode.NONE
