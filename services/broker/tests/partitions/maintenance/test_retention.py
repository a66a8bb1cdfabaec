"""Retention and DeleteRecords: deleted and remaining data, also after a crash."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from ponor_broker.handlers.offsets import offset_lookup
from ponor_broker.partitions.errors import PartitionError
from ponor_broker.partitions.handoff import partition_closing
from ponor_broker.partitions.maintenance import retention
from ponor_broker.partitions.maintenance.maintenance import PartitionMaintenance
from ponor_broker.partitions.maintenance.maintenance_schedule import MaintenanceSchedule
from ponor_broker.partitions.maintenance.retention import NEVER_MS, Extent
from ponor_broker.partitions.partition import HIGH_WATERMARK, Partition
from ponor_broker.partitions.topics.topic_config import TopicConfig
from ponor_kafka.errors import ErrorCode
from ponor_kafka.record_batch import BatchView
from ponor_kafka.record_builder import build_batch
from ponor_runtime.telemetry import Telemetry
from s3stream.errors import StorageFailedError

from services.broker.tests.partition_rig import PartitionRig, batch, turns

FOREVER = TopicConfig(retention_ms=-1)
ONE_BATCH_A_SEGMENT = TopicConfig(segment_bytes=100, retention_ms=-1)


async def append(partition: Partition, *timestamps: int) -> int:
    """One batch; returns its base offset."""
    base_offset = partition.log_end_offset
    await partition.append_batch(build_batch([(at, b"key", b"value" * 8) for at in timestamps]))
    return base_offset


class Keeper:
    """The real maintenance over the partitions of a rig."""

    def __init__(self, rig: PartitionRig) -> None:
        self.rig = rig
        self.schedule = MaintenanceSchedule(rig.clock)
        rig.opener._attend = self.schedule.touch
        self.failures_noticed = 0
        self.opened: list[Partition] = []
        self.maintenance = PartitionMaintenance(
            self,  # type: ignore[arg-type]  # of the manager it needs the one call below
            rig.owned,
            self.schedule,
            rig.clock,
            Telemetry(),
            interval_ms=5_000,
            producer_expiration_ms=10_000,
        )

    def all(self) -> list[Partition]:
        return self.opened

    def notice_failures(self) -> None:
        self.failures_noticed += 1


# The decision


def extent(base: int, end: int, newest_ms: int, size_bytes: int = 100) -> Extent:
    return Extent(base, end, size_bytes, newest_ms)


THREE = [extent(0, 10, 1_000), extent(10, 20, 3_000), extent(20, 30, 2_000)]
SIZE_BYTES = 300


@pytest.mark.parametrize(
    ("now_ms", "start"),
    [(1_500, 0), (1_600, 0), (1_601, 10), (3_600, 10), (3_601, 30), (10_000, 30)],
)
def test_retention_by_age_deletes_old_segments_from_the_oldest_on(now_ms: int, start: int) -> None:
    config = TopicConfig(retention_ms=600)
    assert retention.retained_from(THREE, SIZE_BYTES, 30, config, now_ms) == start
    assert retention.next_due_ms(THREE, config) == 1_601


@pytest.mark.parametrize(
    ("retention_bytes", "start"), [(-1, 0), (301, 0), (300, 0), (201, 0), (200, 10), (99, 20), (0, 30)]
)
def test_retention_by_size_deletes_a_segment_if_the_rest_reaches_the_bound(
    retention_bytes: int, start: int
) -> None:
    config = TopicConfig(retention_ms=-1, retention_bytes=retention_bytes)
    assert retention.retained_from(THREE, SIZE_BYTES, 30, config, 0) == start
    assert retention.next_due_ms(THREE, config) == NEVER_MS


def test_unreadable_and_compacted_data_is_kept() -> None:
    assert retention.retained_from(THREE, SIZE_BYTES, 25, TopicConfig(retention_ms=1), 10_000) == 20
    compacted = TopicConfig(retention_ms=1, retention_bytes=0, is_compacted=True, deletes_old=False)
    assert retention.retained_from(THREE, SIZE_BYTES, 30, compacted, 10_000) == 0
    assert retention.next_due_ms(THREE, compacted) == NEVER_MS
    assert retention.retained_from([], 0, 0, TopicConfig(retention_ms=1), 10_000) == 0


# The partition


async def test_deleted_segments_stay_deleted_after_a_crash() -> None:
    rig = PartitionRig(config=replace(ONE_BATCH_A_SEGMENT, retention_ms=50_000))
    keeper = Keeper(rig)
    partition = await rig.open()
    for at in range(4):
        await append(partition, rig.clock.now_ms + at * 10_000)
    await keeper.maintenance.round()
    assert partition.log_start_offset == 0
    rig.clock.now_ms += 50_000 + 10_001  # the first two are too old now
    await keeper.maintenance.round()
    assert (partition.log_start_offset, partition.high_watermark) == (2, 4)
    assert rig.stream("log").start_offset == 2
    with pytest.raises(PartitionError) as refused:
        await partition.read(1, 1000)
    assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    again = await rig.open()
    assert (again.log_start_offset, again.high_watermark) == (2, 4)
    assert [segment.base_offset for segment in again.log.log_meta.segments] == [2, 3]


async def test_an_old_active_segment_is_deleted() -> None:
    rig = PartitionRig(config=TopicConfig(retention_ms=50_000))
    keeper = Keeper(rig)
    partition = await rig.open()
    await append(partition, rig.clock.now_ms, rig.clock.now_ms + 5)
    await keeper.maintenance.round()
    rig.clock.now_ms += 50_006
    await keeper.maintenance.round()
    assert (partition.log_start_offset, partition.high_watermark, partition.log.size_bytes) == (2, 2, 0)
    assert await offset_lookup.largest(partition) is None
    assert await append(partition, rig.clock.now_ms) == 2
    again = await rig.open()
    assert (again.log_start_offset, again.high_watermark) == (2, 3)
    assert await offset_lookup.largest(again) == (2, rig.clock.now_ms)


async def test_size_is_counted_over_moves_and_crashes() -> None:
    rig = PartitionRig(config=ONE_BATCH_A_SEGMENT)
    partition = await rig.open()
    for _ in range(3):
        await append(partition, 5)
    size_bytes = partition.log.size_bytes
    rig.streams.hooks[rig.stream("log").stream_id]()
    await append(partition, 5)
    crashed = await rig.open()
    assert crashed.log.size_bytes == size_bytes // 3 * 4
    await partition_closing.close(crashed, turns())
    moved = await rig.open()
    assert moved.log.size_bytes == size_bytes // 3 * 4
    keeper = Keeper(rig)
    moved._attend = keeper.schedule.touch
    keeper.schedule.touch(moved)
    moved.apply_config(replace(ONE_BATCH_A_SEGMENT, retention_bytes=size_bytes // 3 * 2))
    await keeper.maintenance.round()
    assert (moved.log_start_offset, moved.high_watermark) == (2, 4)


async def test_idle_partitions_are_not_checked_and_config_changes_apply() -> None:
    rig = PartitionRig(config=TopicConfig(retention_ms=1_000_000))
    keeper = Keeper(rig)
    partition = await rig.open()
    await append(partition, rig.clock.now_ms)
    await keeper.maintenance.round()
    rig.clock.now_ms += 500_000
    assert keeper.schedule.take_due(rig.clock.now_ms) == []
    partition.apply_config(TopicConfig(retention_ms=1_000))
    await keeper.maintenance.round()
    assert partition.log_start_offset == 1
    rig.clock.now_ms += 1_000_000
    await keeper.maintenance.round()  # the deadline that was set first
    assert keeper.schedule.take_due(NEVER_MS) == []
    assert len(keeper.schedule) == 0


async def test_a_partition_that_closed_is_forgotten() -> None:
    rig = PartitionRig()
    keeper = Keeper(rig)
    partition = await rig.open()
    await append(partition, rig.clock.now_ms)
    await keeper.maintenance.round()
    assert len(keeper.schedule) == 1
    await partition_closing.close(partition, turns())
    await keeper.maintenance.round()
    assert (len(keeper.schedule), keeper.failures_noticed) == (0, 1)


async def test_a_trim_that_failed_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = PartitionRig(config=FOREVER)
    keeper = Keeper(rig)
    partition = await rig.open()
    await append(partition, 1, 2, 3)
    await partition.delete_records(2)
    stream = rig.stream("log")

    async def broken(_: int) -> None:
        raise StorageFailedError("the controller is away")

    with monkeypatch.context() as patch:
        patch.setattr(stream, "trim", broken)
        await keeper.maintenance.round()
        assert stream.start_offset == 0
    await keeper.maintenance.round()
    assert stream.start_offset == 2


# Producers


async def test_a_shorter_expiration_of_producers_applies_at_once() -> None:
    rig = PartitionRig(config=FOREVER)
    keeper = Keeper(rig)
    partition = await rig.open()
    keeper.opened.append(partition)
    partition.append(batch(producer_id=7, epoch=0, sequence=0), rig.clock.now_ms, lambda _: None)
    await partition.drained()
    await keeper.maintenance.round()
    rig.clock.now_ms += 5_000
    keeper.maintenance.expire_producers_after(6_000)
    await keeper.maintenance.round()
    assert len(list(partition.producers.active())) == 1
    keeper.maintenance.expire_producers_after(4_000)
    await keeper.maintenance.round()
    assert list(partition.producers.active()) == []


# DeleteRecords


async def test_a_cancelled_delete_records_shows_the_start_that_became_durable() -> None:
    rig = PartitionRig()
    keeper = Keeper(rig)
    partition = await rig.open()
    for at in range(10):
        await append(partition, at)
    meta = rig.stream("meta")
    meta.hold = True
    deletion = asyncio.ensure_future(partition.delete_records(7))
    await asyncio.sleep(0)
    deletion.cancel()
    await asyncio.wait([deletion])
    assert deletion.cancelled()
    assert partition.log_start_offset == 0, "not durable yet"
    meta.hold = False
    meta.confirm()
    await asyncio.sleep(0)
    assert partition.log_start_offset == 7
    await keeper.maintenance.round()
    assert rig.stream("log").start_offset == 7
    again = await rig.open()
    assert again.log_start_offset == 7


async def test_delete_records_moves_the_start_into_a_batch_and_survives_a_crash() -> None:
    rig = PartitionRig(config=FOREVER)
    partition = await rig.open()
    await append(partition, 10, 30, 20)
    await append(partition, 40)
    assert await partition.delete_records(1) == 1
    assert await partition.delete_records(0) == 1  # below the start nothing happens
    crashed = await rig.open()
    assert crashed.log_start_offset == 1
    (record, _) = await crashed.read(1, 1 << 20)
    assert BatchView(memoryview(record.payload)).base_offset == 0  # whole batches only
    assert await offset_lookup.first_at_or_after(crashed, 5) == (1, 30)
    assert await crashed.delete_records(HIGH_WATERMARK) == 4
    await partition_closing.close(crashed, turns())
    moved = await rig.open()
    assert (moved.log_start_offset, moved.high_watermark) == (4, 4)


@pytest.mark.parametrize("offset", [5, -2])
async def test_delete_records_outside_of_the_log_is_refused(offset: int) -> None:
    partition = await PartitionRig(config=FOREVER).open()
    await append(partition, 1, 2, 3, 4)
    with pytest.raises(PartitionError) as refused:
        await partition.delete_records(offset)
    assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert partition.log_start_offset == 0


async def test_delete_records_of_a_compacted_topic_is_refused() -> None:
    partition = await PartitionRig(config=TopicConfig(is_compacted=True, deletes_old=False)).open()
    await append(partition, 1)
    with pytest.raises(PartitionError) as refused:
        await partition.delete_records(HIGH_WATERMARK)
    assert refused.value.code is ErrorCode.POLICY_VIOLATION


async def test_delete_records_is_answered_when_it_is_durable() -> None:
    rig = PartitionRig(config=FOREVER)
    partition = await rig.open()
    await append(partition, 1, 2)
    rig.stream("meta").hold = True
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await partition.delete_records(1)
    crashed = await rig.open()
    assert crashed.log_start_offset == 0


async def test_the_largest_timestamp_is_that_of_the_remaining_records() -> None:
    rig = PartitionRig(config=ONE_BATCH_A_SEGMENT)
    partition = await rig.open()
    for timestamps in ((5,), (90, 91), (70, 95, 60), (80,), (95,)):
        await append(partition, *timestamps)
    assert await offset_lookup.largest(partition) == (4, 95)
    await partition.delete_records(4)
    assert await offset_lookup.largest(partition) == (4, 95)
    await partition.delete_records(5)  # behind it, within its batch
    assert await offset_lookup.largest(partition) == (7, 95)
    again = await rig.open()
    assert await offset_lookup.largest(again) == (7, 95)
    await again.delete_records(HIGH_WATERMARK)
    assert await offset_lookup.largest(again) is None
