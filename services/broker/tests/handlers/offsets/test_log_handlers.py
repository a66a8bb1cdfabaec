"""ListOffsets, DeleteRecords, DescribeLogDirs and DescribeProducers over a real partition."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, cast

import pytest
from ponor_broker.handlers.cluster.log_dirs import LOG_DIR, describe_log_dirs
from ponor_broker.handlers.offsets import offset_lookup
from ponor_broker.handlers.offsets.delete_records import delete_records
from ponor_broker.handlers.offsets.list_offsets import ListOffsetsHandler
from ponor_broker.handlers.produce.describe_producers import DescribeProducersHandler
from ponor_broker.partitions.errors import MESSAGE_CHARS_MAX, PartitionError
from ponor_broker.partitions.partition import Partition
from ponor_broker.partitions.partition_manager import PartitionManager
from ponor_broker.requests.api_handler import RequestContext
from ponor_kafka.compression import Codec
from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from ponor_kafka.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from ponor_kafka.messages.describe_producers import DescribeProducersRequest, TopicRequest
from ponor_kafka.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from ponor_kafka.record_batch import BatchView
from ponor_kafka.record_builder import build_batch
from ponor_partition.segment import DATA
from s3stream.records import StreamRecord

from services.broker.tests.memory_streams import MemoryStream
from services.broker.tests.partition_rig import PartitionRig
from services.broker.tests.partitions.transactions.transaction_kit import transactional

NONE, UNSUPPORTED = ErrorCode.NONE, ErrorCode.UNSUPPORTED_VERSION


@dataclass
class OnePartition:
    """The look-ups of the partition manager, for one partition."""

    partition: Partition

    def find(self, topic: str, index: int) -> Partition:
        found = self.get(topic, index)
        if found is None:
            raise PartitionError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no such partition")
        return found

    async def find_settled(self, topic: str, index: int) -> Partition:
        return self.find(topic, index)

    def get(self, topic: str, index: int) -> Partition | None:
        return self.partition if (topic, index) == ("t", 0) else None

    def all(self) -> list[Partition]:
        return [self.partition]


async def manager() -> PartitionManager:
    """Return a manager with offsets 0..4 and timestamps 10, 40, 30, 20, 40. The first record is deleted; the
    third batch has producer 7.
    """
    partition = await PartitionRig().open()
    for timestamps, producer in (((10, 40), -1), ((30,), -1), ((20, 40), 7)):
        records = [(at, b"k", b"v") for at in timestamps]
        epoch, sequence = (3, 5) if producer >= 0 else (-1, -1)
        await partition.append_batch(
            build_batch(records, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)
        )
    await partition.delete_records(1)
    return cast("PartitionManager", OnePartition(partition))


def context(version: int) -> RequestContext:
    return RequestContext(version, None, cast("Any", None))


@pytest.mark.parametrize(
    ("timestamp", "version_min", "offset", "found_timestamp"),
    [
        (-1, 1, 5, -1),
        (-2, 1, 1, -1),
        (-3, 7, 1, 40),
        (-4, 8, 1, -1),
        (-5, 9, -1, -1),
        (-6, 11, -1, -1),
        (0, 1, 1, 40),
        (35, 1, 1, 40),
        (41, 1, -1, -1),
    ],
)
async def test_every_special_timestamp_in_every_version(
    timestamp: int, version_min: int, offset: int, found_timestamp: int
) -> None:
    handler = ListOffsetsHandler(await manager())
    for version in range(1, 12):
        partitions = [ListOffsetsPartition(0, timestamp=timestamp)]
        request = ListOffsetsRequest(topics=[ListOffsetsTopic("t", partitions=partitions)])
        (row,) = (await handler.handle(request, context(version))).topics[0].partitions
        if version < version_min:
            assert (row.error_code, row.offset) == (UNSUPPORTED, -1)
            continue
        assert (row.error_code, row.offset, row.timestamp) == (NONE, offset, found_timestamp)
        knows_epoch = version >= 4 and offset >= 0
        assert row.leader_epoch == (0 if knows_epoch else -1)


@pytest.mark.parametrize(
    ("timestamp", "new_start", "found"),
    [(20, 3, (3, 20)), (20, 5, (-1, -1)), (-3, 3, (4, 40)), (-3, 5, (-1, -1))],
)
async def test_a_search_continues_at_the_new_log_start(
    timestamp: int, new_start: int, found: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    partitions = await manager()
    partition = partitions.find("t", 0)
    stream = cast("MemoryStream", partition.log.streams[DATA])
    stream.is_cold = True
    fetch = stream.fetch

    async def fetch_late(start_offset: int, max_bytes: int) -> list[StreamRecord]:
        """Delete and trim before the fetch."""
        if partition.log_start_offset < new_start:
            await partition.delete_records(new_start)
            await stream.trim(new_start)
        return await fetch(start_offset, max_bytes)

    monkeypatch.setattr(stream, "fetch", fetch_late)
    wanted = ListOffsetsTopic("t", partitions=[ListOffsetsPartition(0, timestamp=timestamp)])
    answer = await ListOffsetsHandler(partitions).handle(ListOffsetsRequest(topics=[wanted]), context(9))
    (row,) = answer.topics[0].partitions
    assert (row.error_code, (row.offset, row.timestamp)) == (NONE, found)


@pytest.mark.parametrize("log_start", [0, 1])
async def test_the_newest_record_is_found_without_python_objects_for_records(
    monkeypatch: pytest.MonkeyPatch, log_start: int
) -> None:
    """The header of the batch has a larger timestamp than all of its records, as after a Produce with one
    time for all records. A million records of such a batch, 800 KB, stopped the event loop for 6 s.
    """
    partition = await PartitionRig().open()
    sent = build_batch([(3, None, b"a"), (7, None, b"b"), (7, None, b"c")], log_append_time_ms=9)
    batch = BatchView(memoryview(sent))
    batch.set_create_time(9)
    await partition.append_batch(sent)
    await partition.advance_log_start(log_start)
    monkeypatch.delattr(BatchView, "records")
    assert await offset_lookup.largest(partition) == (1, 7)


class SamePartition(OnePartition):
    """One partition under every index."""

    def get(self, topic: str, index: int) -> Partition | None:
        return self.partition


@pytest.mark.parametrize(("timestamp", "version"), [(5, 1), (-3, 7)])
async def test_one_turn_decompresses_one_batch(
    monkeypatch: pytest.MonkeyPatch, timestamp: int, version: int
) -> None:
    """Batches of 3 KB that decompress to 60 MiB, in 64 partitions: turns of 1 s."""
    partition = await PartitionRig().open()
    await partition.append_batch(build_batch([(5, b"k", b"v")], codec=Codec.ZSTD))
    now = 0
    turns: list[int] = []

    async def count_turns() -> None:
        nonlocal now
        while True:
            now += 1
            await asyncio.sleep(0)

    find = BatchView.find_timestamp

    def found(batch: BatchView, *arguments: int) -> tuple[int, int] | None:
        turns.append(now)
        return find(batch, *arguments)

    monkeypatch.setattr(BatchView, "find_timestamp", found)
    counting = asyncio.create_task(count_turns())
    wanted = [ListOffsetsPartition(index, timestamp=timestamp) for index in range(40)]
    handler = ListOffsetsHandler(cast("PartitionManager", SamePartition(partition)))
    request = ListOffsetsRequest(topics=[ListOffsetsTopic("t", wanted)])
    (topic,) = (await handler.handle(request, context(version))).topics
    counting.cancel()
    assert {(answer.offset, answer.timestamp) for answer in topic.partitions} == {(0, 5)}
    assert len(set(turns)) == len(turns) == len(wanted)


@pytest.mark.parametrize(
    ("topic", "offset", "low_watermark", "code"),
    [
        ("t", 3, 3, ErrorCode.NONE),
        ("t", -1, 5, ErrorCode.NONE),
        ("t", 6, -1, ErrorCode.OFFSET_OUT_OF_RANGE),
        ("t", -7, -1, ErrorCode.OFFSET_OUT_OF_RANGE),
        ("u", 1, -1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
async def test_delete_records(topic: str, offset: int, low_watermark: int, code: ErrorCode) -> None:
    partitions = await manager()
    wanted = DeleteRecordsTopic(topic, [DeleteRecordsPartition(0, offset)])
    request = DeleteRecordsRequest([wanted], 1_000)
    (answer,) = (await delete_records(partitions, request, context(2))).topics
    (row,) = answer.partitions
    assert (row.low_watermark, row.error_code) == (low_watermark, code)


async def test_log_dirs_of_all_and_of_some() -> None:
    partitions = await manager()
    (every,) = (await describe_log_dirs(partitions, DescribeLogDirsRequest(None), context(5))).results
    assert (every.error_code, every.log_dir, every.total_bytes) == (0, LOG_DIR, -1)
    (row,) = every.topics[0].partitions
    assert row.partition_size == partitions.find("t", 0).log.size_bytes > 3 * 61
    assert (row.offset_lag, row.is_future_key) == (0, False)
    some = DescribeLogDirsRequest([DescribableLogDirTopic("t", [0, 1]), DescribableLogDirTopic("u", [0])])
    (found,) = (await describe_log_dirs(partitions, some, context(1))).results
    assert [(topic.name, len(topic.partitions)) for topic in found.topics] == [("t", 1)]


async def test_producers_are_described() -> None:
    handler = DescribeProducersHandler(await manager())
    request = DescribeProducersRequest([TopicRequest("t", [0, 1])])
    (topic,) = (await handler.handle(request, context(0))).topics
    known, unknown = topic.partitions
    (producer,) = known.active_producers
    assert (producer.producer_id, producer.producer_epoch, producer.last_sequence) == (7, 3, 6)
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    request = DescribeProducersRequest([TopicRequest("t", [0, 0, 1]), TopicRequest("t", [1, 0])])
    (topic,) = (await handler.handle(request, context(0))).topics
    assert list(topic.partitions) == [known, unknown], "each partition once"


async def test_readers_of_committed_records_find_offsets_below_the_last_stable_offset() -> None:
    partitions = await manager()
    partition = partitions.find("t", 0)
    proof = partition.transactions.begin_verification(9, 0, generation=1)
    partition.append(transactional(9, 0, 0), 5, lambda _: None, verification=proof)
    late = build_batch([(99, b"k", b"v")])
    await partition.append_batch(late)
    handler = ListOffsetsHandler(partitions)

    async def found(timestamp: int, isolation_level: int) -> int:
        request = ListOffsetsRequest(
            -1, isolation_level, [ListOffsetsTopic("t", [ListOffsetsPartition(0, -1, timestamp)])]
        )
        (topic,) = (await handler.handle(request, context(7))).topics
        return topic.partitions[0].offset

    assert [await found(-1, level) for level in (0, 1)] == [7, 5]
    assert [await found(99, level) for level in (0, 1)] == [6, -1]
    assert [await found(-3, level) for level in (0, 1)] == [6, -1]
    assert [await found(-2, level) for level in (0, 1)] == [1, 1]
    assert [await found(40, level) for level in (0, 1)] == [1, 1]
    request = DescribeProducersRequest([TopicRequest("t", [0])])
    (topic,) = (await DescribeProducersHandler(partitions).handle(request, context(0))).topics
    (described,) = topic.partitions
    open_at = {one.producer_id: one.current_txn_start_offset for one in described.active_producers}
    assert open_at == {7: -1, 9: 5}


async def test_a_long_name_is_not_repeated_for_every_partition_without_producers() -> None:
    handler = DescribeProducersHandler(await manager())
    (topic,) = (
        await handler.handle(DescribeProducersRequest([TopicRequest("x" * 600, [0])]), context(0))
    ).topics
    (row,) = topic.partitions
    assert row.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert row.error_message is not None
    assert len(row.error_message) <= MESSAGE_CHARS_MAX
