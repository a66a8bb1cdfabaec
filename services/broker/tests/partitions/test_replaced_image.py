"""A replaced image: no record shows the changes, and no row contains deleted partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from ponor.metadata.v1.records_pb2 import Record, RecordBatch, TopicDeleted
from ponor_broker.partitions.errors import PartitionError
from ponor_broker.partitions.identity import PartitionKey
from ponor_broker.partitions.partition import Partition
from ponor_kafka.errors import ErrorCode
from ponor_metadata.nouns.streams import STREAMS, StreamRow
from ponor_metadata.nouns.topics import MOVES, PARTITIONS, TOPICS, MoveCause, MoveRow
from ponor_runtime.identity import NodeEpoch, StreamEpoch, StreamId

from services.broker.tests.fetch_rig import NODE, OTHER_NODE, FetchRig, no_topic_id


async def test_parked_requests_end_when_the_topic_of_their_partition_is_deleted() -> None:
    async with FetchRig() as rig:
        await rig.create("t", leader=OTHER_NODE)
        key = (rig.topic_ids["t"], 0)
        rig.image[MOVES].put(MoveRow(*key, OTHER_NODE, NODE, 0, 10_000, MoveCause.REQUEST, "a story", ""))
        waiting = asyncio.ensure_future(rig.partitions.find_settled("t", 0))
        await rig.follow()
        assert not waiting.done()
        rig.image[MOVES].delete(key)
        await rig.delete("t")
        assert waiting.done(), "the topic is gone"
        with pytest.raises(PartitionError) as refusal:
            waiting.result()
        assert refusal.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert not list(rig.partitions.parking.partitions)


class Scanned(dict[PartitionKey, Partition]):
    """Counts iterations over it."""

    scans = 0

    def __iter__(self) -> Iterator[PartitionKey]:
        self.scans += 1
        return super().__iter__()


async def test_topics_deleted_together_cost_one_scan_of_the_partitions() -> None:
    async with FetchRig() as rig:
        names = [f"t{number}" for number in range(5)]
        for name in names:
            await rig.create(name, 2)
        ids = [rig.topic_ids[name] for name in names]
        rig.registry.by_key = rig.partitions._open = scanned = Scanned(rig.registry.by_key)
        for topic_id in ids[:4]:
            rig.image[TOPICS].delete(topic_id)
            for index in range(2):
                rig.image[PARTITIONS].delete((topic_id, index))
        deleted = [Record(topic_deleted=TopicDeleted(topic_id=topic_id)) for topic_id in ids[:4]]
        rig.partitions.image_changed(RecordBatch(records=deleted))
        assert scanned.scans == 1
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert list(scanned) == [(ids[4], 0), (ids[4], 1)]


async def test_a_deleted_partition_is_not_awaited() -> None:
    async with FetchRig() as rig:
        topic_id = no_topic_id("t")
        tags = ("kind", "meta", "partition", "0", "topic", topic_id.hex())
        rig.image[STREAMS].put(
            StreamRow(
                StreamId(7), StreamEpoch(0), True, 0, 0, OTHER_NODE, NodeEpoch(1), (0, OTHER_NODE, 0), tags
            )
        )
        await rig.create("t", epoch=1)
        settled = asyncio.ensure_future(rig.partitions.wait_settled())
        await rig.follow()
        assert not settled.done(), "its stream is open at another broker"
        await rig.delete("t")
        assert settled.done()
