"""The share coordinator: durable states through moves, rewrites, failed writes and deleted topics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

import pytest
from ponor_broker.coordination.partitioning import partition_for
from ponor_broker.coordination.share_persister import DeliveryState, SharePartitionKey, StateBatch
from ponor_broker.handlers.share_state import share_state as handlers_module
from ponor_broker.share_state.coordinator import ShareCoordinator
from ponor_broker.share_state.record_codec import decode_entry
from ponor_broker.share_state.records import ShareEntry, ShareSnapshot, ShareUpdate
from ponor_broker.share_state.settings import ShareStateSettings
from ponor_broker.share_state.transitions import BATCHES_MAX, WriteRequest
from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages import read_share_group_state as reading
from ponor_kafka.messages import write_share_group_state as writing
from ponor_kafka.record_batch import BatchView
from s3stream.errors import StreamFencedError

from services.broker.tests.coordination_kit import MemoryPartition
from services.broker.tests.share_kit import OffsetStates
from services.broker.tests.share_state.share_world import PARTITIONS, TOPIC_ID, ShareWorld

KEY = SharePartitionKey("orders", TOPIC_ID, 3)
ACKNOWLEDGED = DeliveryState.ACKNOWLEDGED
SETTINGS = ShareStateSettings(share_state_topic_partitions=PARTITIONS)


def a_write(*batches: StateBatch, start_offset: int = -1) -> WriteRequest:
    return WriteRequest(1, -1, start_offset, -1, batches)


def acknowledged(*offsets: int) -> list[StateBatch]:
    return [StateBatch(offset, offset, ACKNOWLEDGED, 1) for offset in offsets]


async def settled(is_true: Callable[[], bool]) -> None:
    while not is_true():
        await asyncio.sleep(0.001)


class Home:
    """The world, as the coordinator of one share partition."""

    def __init__(self, settings: ShareStateSettings = SETTINGS, key: SharePartitionKey = KEY) -> None:
        self.world = ShareWorld(settings)
        self.key = key
        self.index = partition_for(str(key), settings.share_state_topic_partitions)
        self.world.start()
        self.world.create_topic()

    @property
    def partition(self) -> MemoryPartition:
        return self.world.nodes[self.world.leaders[self.index]].partitions[self.index]

    @property
    def coordinator(self) -> ShareCoordinator:
        return self.world.nodes[self.world.leaders[self.index]].coordinator

    def is_home_of(self, partition: int) -> bool:
        key = self.key._replace(partition=partition)
        return partition_for(str(key), PARTITIONS) == self.index

    async def loaded(self) -> None:
        await settled(lambda: self.coordinator.shards.is_whole)

    def entries(self) -> list[ShareEntry]:
        found = []
        for batch in self.world.logs[self.index]:
            for record in BatchView(memoryview(batch)).records(1 << 20):
                entry = decode_entry(record.key, record.value)
                assert entry is not None
                found.append(entry)
        return found

    async def state(self) -> ShareSnapshot:
        found = await self.coordinator.read(self.key, -1)
        assert isinstance(found, ShareSnapshot), found
        return found


async def test_a_move_and_a_kill_keep_what_was_answered() -> None:
    home = Home()
    await home.loaded()
    assert await home.coordinator.initialize(KEY, 1, 5) is ErrorCode.NONE
    assert (
        await home.coordinator.write(KEY, a_write(*acknowledged(5, 7, 8), start_offset=6)) is ErrorCode.NONE
    )
    before = await home.state()
    assert (before.start_offset, list(before.batches)) == (6, [StateBatch(7, 8, ACKNOWLEDGED, 1)])
    home.world.move(home.index)
    await home.loaded()
    assert await home.state() == before
    home.partition.is_slow = True
    lost = asyncio.create_task(home.coordinator.write(KEY, a_write(*acknowledged(6))))
    await asyncio.sleep(0)
    home.world.kill(home.world.leaders[home.index])
    assert await lost is ErrorCode.NOT_COORDINATOR
    await home.loaded()
    assert await home.state() == before
    await home.world.close()


async def test_writes_of_one_share_partition_wait_for_each_other() -> None:
    home = Home()
    await home.loaded()
    await home.coordinator.initialize(KEY, 1, 0)
    home.partition.is_slow = True
    writes = [
        asyncio.create_task(home.coordinator.write(KEY, a_write(*acknowledged(offset)))) for offset in (1, 2)
    ]
    await settled(lambda: len(home.partition._under_way) == 1)
    home.partition.sync()
    await settled(lambda: len(home.partition._under_way) == 1 and writes[0].done())
    home.partition.sync()
    assert await asyncio.gather(*writes) == [ErrorCode.NONE, ErrorCode.NONE]
    assert list((await home.state()).batches) == [StateBatch(1, 2, ACKNOWLEDGED, 1)]
    await home.world.close()


async def test_a_failed_write_changes_nothing() -> None:
    home = Home()
    await home.loaded()
    await home.coordinator.initialize(KEY, 1, 0)
    charged = home.coordinator.budget.size_bytes
    home.partition.is_slow = True
    write = asyncio.create_task(home.coordinator.write(KEY, a_write(*acknowledged(1))))
    await settled(lambda: bool(home.partition._under_way))
    home.partition.fail(StreamFencedError("another broker leads the partition"))
    assert await write is ErrorCode.NOT_COORDINATOR
    home.partition.is_slow = False
    assert (await home.state()).batches == ()
    assert home.coordinator.budget.size_bytes == charged
    home.partition.refusal = StreamFencedError("another broker leads the partition")
    other = KEY._replace(partition=next(at for at in range(60) if at != 3 and home.is_home_of(at)))
    assert await home.coordinator.initialize(other, 1, 0) is ErrorCode.NOT_COORDINATOR
    assert len(home.coordinator.shards.by_index[home.index]) == 1
    await home.world.close()


async def test_a_snapshot_follows_a_number_of_updates() -> None:
    home = Home(replace(SETTINGS, share_state_updates_per_snapshot=3))
    await home.loaded()
    await home.coordinator.initialize(KEY, 1, 0)
    for offset in range(1, 9):
        await home.coordinator.write(KEY, a_write(*acknowledged(offset)))
    kinds = ["U" if isinstance(one.value, ShareUpdate) else "S" for one in home.entries()]
    assert "".join(kinds) == "SUUUSUUUS"
    last = home.entries()[-1].value
    assert isinstance(last, ShareSnapshot)
    assert (last.snapshot_epoch, list(last.batches)) == (2, [StateBatch(1, 8, ACKNOWLEDGED, 1)])
    home.world.move(home.index)
    await home.loaded()
    await home.coordinator.write(KEY, a_write(*acknowledged(9)))
    assert isinstance(home.entries()[-1].value, ShareUpdate)
    await home.world.close()


async def test_a_rewrite_shortens_the_log_while_writes_continue() -> None:
    settings = replace(SETTINGS, share_state_rewrite_log_bytes_min=1_024, share_state_rewrite_ratio=2)
    home = Home(settings)
    await home.loaded()
    keys = [KEY._replace(partition=at) for at in range(60) if home.is_home_of(at)]
    models = {key: OffsetStates(1, 0) for key in keys}
    for key in keys:
        await home.coordinator.initialize(key, 1, 0)

    async def write_often(key: SharePartitionKey) -> None:
        for offset in range(60):
            batches = [StateBatch(offset, offset + 1, ACKNOWLEDGED, 1 + offset % 3)]
            start_offset = offset - 10 if offset % 7 == 0 else -1
            assert (
                await home.coordinator.write(key, a_write(*batches, start_offset=start_offset))
                is ErrorCode.NONE
            )
            models[key].merge(start_offset, -1, batches)

    # The first share partition is quiet: only the rewrites keep its state in the log.
    await asyncio.gather(*(write_often(key) for key in keys[1:]))
    assert home.partition.log_start_offset > 0
    home.world.move(home.index)
    await home.loaded()
    for key in keys:
        found = await home.coordinator.read(key, -1)
        assert isinstance(found, ShareSnapshot)
        assert list(found.batches) == models[key].batches()
        assert found.start_offset == models[key].start_offset
    await home.world.close()


async def test_a_deleted_topic_takes_its_states_along() -> None:
    home = Home()
    await home.loaded()
    await home.coordinator.initialize(KEY, 1, 0)
    home.world.topics[UUID(int=8)] = ("other", 1)
    del home.world.topics[TOPIC_ID]
    home.coordinator.topics_deleted()
    await settled(lambda: not len(home.coordinator.shards.by_index[home.index]))
    assert home.entries()[-1] == ShareEntry(KEY, None)
    assert home.coordinator.budget.size_bytes == 0
    assert await home.coordinator.initialize(KEY, 1, 0) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await home.coordinator.delete(KEY) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    await home.world.close()


async def test_memory_is_bounded() -> None:
    home = Home(replace(SETTINGS, share_state_memory_bytes_max=64 << 10))
    await home.loaded()
    await home.coordinator.initialize(KEY, 1, 0)
    assert await home.coordinator.write(KEY, a_write(*acknowledged(*range(0, 400, 2)))) is ErrorCode.NONE
    grown = a_write(*acknowledged(*range(500, 900, 2)))
    assert await home.coordinator.write(KEY, grown) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    # A raised start offset frees memory, and is always allowed.
    assert await home.coordinator.write(KEY, a_write(start_offset=400)) is ErrorCode.NONE
    assert await home.coordinator.write(KEY, grown) is ErrorCode.NONE
    await home.world.close()


@pytest.mark.parametrize("batch", [(5, 4, 0, 1), (-1, 4, 0, 1), (0, 4, 1, 1), (0, 4, 3, 1), (0, 4, 0, -1)])
async def test_invalid_batches_are_refused(batch: tuple[int, int, int, int]) -> None:
    home = Home()
    await home.loaded()
    await home.coordinator.initialize(KEY, 1, 0)
    assert await written(home, [writing.StateBatch(*batch)]) is ErrorCode.INVALID_REQUEST
    await home.world.close()


async def written(home: Home, batches: list[writing.StateBatch]) -> ErrorCode:
    row = writing.PartitionData(KEY.partition, 1, -1, -1, -1, batches)
    topic = writing.WriteStateData(KEY.topic_id.bytes, [row])
    handlers = home.world.nodes[home.world.leaders[home.index]].handlers
    answer = await handlers.write(writing.WriteShareGroupStateRequest(KEY.group_id, [topic]))
    return ErrorCode(answer.results[0].partitions[0].error_code)


async def test_too_many_batches_are_refused() -> None:
    home = Home()
    await home.loaded()
    await home.coordinator.initialize(KEY, 1, 0)
    rows = [writing.StateBatch(2 * at, 2 * at, 2, 1) for at in range(BATCHES_MAX + 1)]
    assert await written(home, rows) is ErrorCode.INVALID_REQUEST
    assert await written(home, rows[1:]) is ErrorCode.NONE
    assert await written(home, rows[:1]) is ErrorCode.INVALID_REQUEST
    await home.world.close()


async def test_a_read_answer_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers_module, "ANSWER_BATCHES_MAX", 5)
    home = Home()
    await home.loaded()
    await home.coordinator.initialize(KEY, 1, 0)
    await home.coordinator.write(KEY, a_write(*acknowledged(1, 3)))
    topic = reading.ReadStateData(KEY.topic_id.bytes, [reading.PartitionData(KEY.partition, -1)] * 4)
    handlers = home.world.nodes[home.world.leaders[home.index]].handlers
    answer = await handlers.read(reading.ReadShareGroupStateRequest(KEY.group_id, [topic]))
    codes = [row.error_code for row in answer.results[0].partitions]
    assert codes == [0, 0, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_NOT_AVAILABLE]
    empty = await handlers.read(reading.ReadShareGroupStateRequest("", [topic]))
    assert not empty.results
    await home.world.close()
