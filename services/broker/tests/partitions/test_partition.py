"""A partition from append to acknowledgement, over failures, moves and crashes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
from ponor_broker.handlers.offsets import offset_lookup
from ponor_broker.partitions.errors import PartitionError, storage_error
from ponor_broker.partitions.handoff import partition_closing
from ponor_broker.partitions.partition import Partition
from ponor_broker.partitions.topics.topic_config import TopicConfig
from ponor_kafka.errors import ErrorCode
from ponor_kafka.record_batch import BatchView
from ponor_partition.errors import PartitionCorruptError
from s3stream.errors import AppendBackpressureError, StorageFailedError, StreamClosedError

from services.broker.tests.partition_rig import PartitionRig, batch, turns


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@dataclass
class Appended:
    """Outcomes of one append."""

    base_offset: int
    told: list[BaseException | None]


def append(partition: Partition, one: BatchView) -> Appended:
    """Append as a Produce request does, and record the outcome."""
    told: list[BaseException | None] = []
    return Appended(partition.append(one, partition._clock.wall_ms(), told.append), told)


async def test_a_record_is_readable_only_when_it_is_durable() -> None:
    rig = PartitionRig()
    partition = await rig.open()
    rig.stream("log").hold = True
    pending = append(partition, batch(3))
    assert (pending.base_offset, partition.high_watermark, partition.log_end_offset) == (0, 0, 3)
    assert await partition.read(0, 1000) == []
    assert await partition.read(2, 1000) == []  # above the high watermark, below the log end
    rig.stream("log").confirm()
    await settle()
    assert partition.high_watermark == 3
    (record,) = await partition.read(1, 1)
    view = BatchView(memoryview(record.payload))
    assert (view.base_offset, view.leader_epoch, record.count) == (0, 0, 3)
    with pytest.raises(PartitionError, match="not within") as refused:
        await partition.read(4, 1000)
    assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


async def test_a_repeated_batch_is_answered_only_when_the_first_one_is_durable() -> None:
    rig = PartitionRig()
    partition = await rig.open()
    rig.stream("log").hold = True
    first = append(partition, batch(2, producer_id=9, epoch=0, sequence=0))
    again = [append(partition, batch(2, producer_id=9, epoch=0, sequence=0)) for _ in range(3)]
    assert [one.base_offset for one in (first, *again)] == [0] * 4
    assert not any(one.told for one in (first, *again))
    assert partition.log_end_offset == 2
    rig.stream("log").confirm()
    assert [one.told for one in (first, *again)] == [[None]] * 4
    assert append(partition, batch(2, producer_id=9, epoch=0, sequence=0)) == Appended(0, [None])


async def test_a_repeated_batch_fails_with_the_first_one() -> None:
    rig = PartitionRig()
    partition = await rig.open()
    rig.stream("log").hold = True
    first = append(partition, batch(2, producer_id=9, epoch=0, sequence=0))
    later = append(partition, batch(1, producer_id=9, epoch=0, sequence=2))
    again = append(partition, batch(2, producer_id=9, epoch=0, sequence=0))
    rig.stream("log").fail()
    for one in (first, later, again):
        (error,) = one.told
        assert isinstance(error, StorageFailedError)
    assert partition.producers.entry(9) is None


async def test_appends_after_a_failed_one_are_not_acknowledged() -> None:
    rig = PartitionRig()
    partition = await rig.open()
    data = rig.stream("log")
    data.hold = True
    first, second = append(partition, batch(1)), append(partition, batch(1))
    _, told_first = data.waiting.popleft()
    told_first(StorageFailedError("the disk is gone"))
    data.confirm()  # which no storage does
    assert all(isinstance(one.told[0], StorageFailedError) for one in (first, second))


async def test_sealing_waits_for_appends_in_flight() -> None:
    rig = PartitionRig()
    partition = await rig.open()
    rig.stream("log").hold = True
    pending = append(partition, batch(1))
    sealing = asyncio.ensure_future(partition_closing.seal(partition, turns()))
    await settle()
    assert not sealing.done()
    with pytest.raises(StreamClosedError):
        append(partition, batch(1))
    rig.stream("log").confirm()
    await sealing
    assert pending.told == [None]
    assert (await rig.open()).high_watermark == 1


async def test_an_old_duplicate_is_refused_retriably_while_appends_are_in_flight() -> None:
    rig = PartitionRig()
    partition = await rig.open()
    rig.stream("log").hold = True
    for sequence in range(7):
        append(partition, batch(1, producer_id=9, epoch=0, sequence=sequence))
    with pytest.raises(PartitionError) as refused:
        append(partition, batch(1, producer_id=9, epoch=0, sequence=0))
    assert refused.value.code is ErrorCode.REQUEST_TIMED_OUT
    rig.stream("log").confirm()
    await settle()
    with pytest.raises(PartitionError) as refused:
        append(partition, batch(1, producer_id=9, epoch=0, sequence=0))
    assert refused.value.code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER


async def test_backpressure_leaves_no_state_and_the_retry_is_accepted() -> None:
    rig = PartitionRig()
    partition = await rig.open()
    rig.stream("log").is_full = True
    with pytest.raises(AppendBackpressureError) as refused:
        append(partition, batch(1, producer_id=9, epoch=0, sequence=0))
    assert storage_error(refused.value).code is ErrorCode.REQUEST_TIMED_OUT
    rig.stream("log").is_full = False
    assert append(partition, batch(1, producer_id=9, epoch=0, sequence=0)).base_offset == 0


async def test_after_a_failed_append_the_sequence_is_rolled_back_and_readers_are_woken() -> None:
    rig = PartitionRig()
    partition = await rig.open()
    woken: list[int] = []

    def watcher(_: Partition, size_bytes: int) -> None:
        woken.append(size_bytes)

    partition.watch(watcher)
    rig.stream("log").hold = True
    pending = [append(partition, batch(1, producer_id=9, epoch=0, sequence=number)) for number in range(3)]
    rig.stream("log").confirm(1)
    rig.stream("log").fail()
    await settle()
    assert partition.high_watermark == 1
    assert not partition.is_serving
    assert woken[-1] == 0
    entry = partition.producers.entry(9)
    assert entry is not None
    assert entry.last_sequence == 0
    assert pending[0].told == [None]
    for failed in pending[1:]:
        assert isinstance(failed.told[0], StorageFailedError)
    with pytest.raises(StreamClosedError):
        append(partition, batch(1))


async def test_appends_in_flight_at_a_checkpoint_are_in_the_next_one() -> None:
    rig = PartitionRig()
    partition = await rig.open()
    data = rig.stream("log")
    data.hold = True
    append(partition, batch(1, producer_id=9, epoch=0, sequence=0))
    append(partition, batch(1, producer_id=9, epoch=0, sequence=1))
    data.confirm(1)
    await settle()
    partition.before_upload()  # as of sequence 0
    data.confirm()
    await settle()
    partition.before_upload()  # nothing was appended since, but sequence 1 is durable now
    again = await rig.open()
    assert append(again, batch(1, producer_id=9, epoch=0, sequence=1)) == Appended(1, [None])


async def test_an_empty_segment_is_not_rolled_again() -> None:
    rig = PartitionRig(config=TopicConfig(segment_bytes=100))
    partition = await rig.open()
    await _durable(partition, batch(1))
    partition.before_upload()  # as of the end of a full segment
    rig.stream("log").is_full = True
    with pytest.raises(AppendBackpressureError):
        append(partition, batch(1))  # rolled, and then not taken
    for end_offset in (2, 3):
        partition = await rig.open()
        await _durable(partition, batch(1))
        assert partition.high_watermark == end_offset


async def test_a_clean_close_restores_everything_without_reading_data() -> None:
    rig = PartitionRig()
    partition = await rig.open()
    for number in range(4):
        await _durable(partition, batch(1, timestamp=100 - number, producer_id=9, epoch=0, sequence=number))
    await partition_closing.close(partition, turns())
    again = await rig.open()
    assert await again.recover() == 0
    assert again.max_timestamp == (100, 0)
    assert again.epochs.entries == ((0, 0), (1, 4))
    assert append(again, batch(1, producer_id=9, epoch=0, sequence=3)) == Appended(3, [None])
    assert append(again, batch(1, producer_id=9, epoch=0, sequence=4)).base_offset == 4


async def test_after_a_crash_only_data_after_the_last_upload_is_replayed() -> None:
    rig = PartitionRig()
    partition = await rig.open()
    for number in range(10):
        await _durable(partition, batch(1, producer_id=9, epoch=0, sequence=number))
    rig.streams.hooks[rig.stream("log").stream_id]()
    for number in range(10, 13):
        await _durable(partition, batch(1, timestamp=50, producer_id=9, epoch=0, sequence=number))
    again = await rig.open()
    assert again.max_timestamp == (50, 10)
    entry = again.producers.entry(9)
    assert entry is not None
    assert [taken.base_offset for taken in entry.batches] == [8, 9, 10, 11, 12]
    assert await again.recover() == 3


async def test_a_snapshot_newer_than_the_checkpoint_is_not_replayed_twice() -> None:
    rig = PartitionRig()
    partition = await rig.open()
    for number in range(3):
        await _durable(partition, batch(1, producer_id=9, epoch=0, sequence=number))
    # The producer snapshot reached the log, the checkpoint behind it did not.
    await partition.meta_stream.put(partition.producers.key, partition.producers.snapshot_at(3))
    again = await rig.open()
    entry = again.producers.entry(9)
    assert entry is not None
    assert len(entry.batches) == 3


async def test_a_damaged_data_stream_is_named_and_affects_no_other_partition() -> None:
    rig = PartitionRig()
    partition = await rig.open()
    await _durable(partition, batch(1))
    await rig.stream("log").append(b"no record batch", count=1, max_timestamp=-1)
    with pytest.raises(PartitionCorruptError, match=f"stream {rig.stream('log').stream_id}, offset 1"):
        await rig.open()


async def test_leader_epochs_are_checked_as_kafka_does() -> None:
    rig = PartitionRig()
    await rig.open()
    partition = await rig.open()
    partition.check_epoch(-1)
    partition.check_epoch(1)
    for epoch, code in ((0, ErrorCode.FENCED_LEADER_EPOCH), (2, ErrorCode.UNKNOWN_LEADER_EPOCH)):
        with pytest.raises(PartitionError) as refused:
            partition.check_epoch(epoch)
        assert refused.value.code is code


async def test_segments_roll_by_size_and_age_and_survive_a_crash() -> None:
    rig = PartitionRig(config=TopicConfig(segment_bytes=300, segment_ms=1000))
    partition = await rig.open()
    for _ in range(6):
        await _durable(partition, batch(2))
    rig.clock.now_ms += 2000
    await _durable(partition, batch(2))
    bases = [segment.base_offset for segment in partition.log.log_meta.segments]
    assert bases == [0, 6, 12]  # three batches fill a segment, the last one is rolled by age
    again = await rig.open()
    assert again.log.log_meta.segments == partition.log.log_meta.segments
    offset = 0
    while offset < again.high_watermark:
        for record in await again.read(offset, 100):
            assert BatchView(memoryview(record.payload)).base_offset == offset
            offset += record.count
    assert offset == 14


@pytest.mark.parametrize("is_cold", [False, True])
async def test_offsets_by_time_with_and_without_a_time_stream(is_cold: bool) -> None:
    rig = PartitionRig()
    partition = await rig.open()
    hook = rig.streams.hooks[rig.stream("log").stream_id]
    for number in range(20):
        await _durable(partition, batch(5, timestamp=1000 * (number + 1)))
        if number == 3:
            assert partition.state.needs_time_stream
            await rig.owned.add_time_streams([partition])
        if number % 4 == 0:
            hook()
    assert rig.stream("time").next_offset == 4
    rig.stream("time").is_cold = rig.stream("log").is_cold = is_cold
    assert await offset_lookup.first_at_or_after(partition, 0) == (0, 1000)
    assert await offset_lookup.first_at_or_after(partition, 7003) == (33, 7003)
    assert await offset_lookup.first_at_or_after(partition, 7005) == (35, 8000)
    assert await offset_lookup.first_at_or_after(partition, 20_005) is None
    assert await offset_lookup.largest(partition) == (99, 20_004)


async def test_a_refused_time_stream_is_closed_and_created_again() -> None:
    rig = PartitionRig()
    partition = await rig.open()
    rig.stream("meta").is_full = True
    with pytest.raises(AppendBackpressureError):
        await rig.owned.add_time_streams([partition])
    refused = rig.stream("time")
    assert refused.closed  # left open, it would keep the partition from ever being led elsewhere
    assert refused not in partition.streams
    rig.stream("meta").is_full = False
    await rig.owned.add_time_streams([partition])
    assert rig.stream("time") is not refused
    assert rig.stream("time") in partition.streams
    await partition_closing.close(partition, turns())
    assert all(stream.closed for stream in rig.streams.streams.values() if stream.epoch >= 0)


async def test_a_time_stream_opened_during_a_move_is_closed() -> None:
    rig = PartitionRig()
    partition = await rig.open()
    partition_closing.begin_move(partition)
    await rig.owned.add_time_streams([partition])
    assert rig.stream("time").closed
    assert rig.stream("time") not in partition.streams


async def test_an_upload_without_new_data_writes_nothing() -> None:
    rig = PartitionRig()
    partition = await rig.open()
    await _durable(partition, batch(1))
    hook = rig.streams.hooks[rig.stream("log").stream_id]
    hook()
    written = rig.stream("meta").next_offset
    hook()
    assert rig.stream("meta").next_offset == written


async def test_the_meta_stream_stays_small_over_many_uploads() -> None:
    rig = PartitionRig()
    partition = await rig.open()
    hook = rig.streams.hooks[rig.stream("log").stream_id]
    meta = rig.stream("meta")
    for number in range(3000):
        await _durable(partition, batch(1, producer_id=9, epoch=0, sequence=number))
        hook()
        if number % 50 == 0:
            meta.committed_offset = meta.confirmed_offset
            await partition.meta_stream.trim_rewritten()
    held = sum(len(record.payload) for record in meta.records)
    assert meta.start_offset > 0
    assert held < 200_000
    again = await rig.open()
    assert again.high_watermark == 3000
    entry = again.producers.entry(9)
    assert entry is not None
    assert entry.last_sequence == 2999


async def _durable(partition: Partition, one: BatchView) -> None:
    pending = append(partition, one)
    await settle()
    assert pending.told == [None]


async def test_producers_missing_in_one_write_are_in_the_next() -> None:
    rig = PartitionRig()
    partition = await rig.open()
    for producer_id in (8, 9):
        await _durable(partition, batch(1, producer_id=producer_id, epoch=0, sequence=0))
    partition.before_upload()
    meta = rig.stream("meta")
    await _durable(partition, batch(1, producer_id=9, epoch=0, sequence=1))
    meta.is_full = True
    partition.before_upload()
    meta.is_full = False
    await _durable(partition, batch(1, producer_id=8, epoch=0, sequence=1))
    partition.before_upload()
    again = await rig.open()
    assert again.recovers_from is None
    last_sequences = {id_: entry.last_sequence for id_, entry in again.producers.active()}
    assert last_sequences == {8: 1, 9: 1}


@pytest.mark.parametrize("segment_bytes", [1 << 20, 1])
async def test_batches_in_flight_at_a_checkpoint_count_once_after_a_crash(segment_bytes: int) -> None:
    rig = PartitionRig(config=TopicConfig(segment_bytes=segment_bytes))
    partition = await rig.open()
    await _durable(partition, batch(1))
    log = rig.stream("log")
    log.hold = True
    append(partition, batch(1, timestamp=9))
    append(partition, batch(1, timestamp=8))
    partition.before_upload()
    log.confirm()
    again = await rig.open()
    assert again.recovers_from is not None
    assert again.log.active_content == partition.log.active_content
    assert again.log.size_bytes == sum(len(record.payload) for record in log.records)
