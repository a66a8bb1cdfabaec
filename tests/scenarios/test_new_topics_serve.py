"""A client that gets the leader of a new partition can immediately produce to it, even with acks=0."""

from __future__ import annotations

import asyncio

import pytest
from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from ponor_kafka.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ponor_kafka.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from ponor_kafka.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ponor_kafka.record_builder import build_batch
from ponor_metadata.nouns.nodes import WalKind

from tests.scenarios.moving_world import TOPIC, MovingWorld

TOPICS = 40
ASK_S_MAX = 60.0
METADATA_VERSION = 12
PRODUCE_VERSION = 10


async def create(world: MovingWorld, name: str, partitions: int) -> None:
    client = await world.client(world.cluster.brokers[0])
    request = CreateTopicsRequest(
        topics=[CreatableTopic(name, num_partitions=partitions, replication_factor=-1)], timeout_ms=10_000
    )
    answer = await client.ask(request, 7, CreateTopicsResponse, timeout_s=ASK_S_MAX)
    assert answer.topics[0].error_code == ErrorCode.NONE


async def leaders(world: MovingWorld, topic: str, by: str) -> dict[int, str]:
    """The leaders of a topic by partition, according to a broker."""
    client = await world.client(by)
    request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
    answer = await client.ask(request, METADATA_VERSION, MetadataResponse, timeout_s=ASK_S_MAX)
    found = {}
    for partition in answer.topics[0].partitions:
        name = world.cluster.broker_of(partition.leader_id)
        if name is not None:
            found[partition.partition_index] = name
    return found


async def write_silently(world: MovingWorld, topic: str, index: int, leader: str) -> None:
    batch = build_batch([(1_000, b"key", b"value")])
    data = [TopicProduceData(topic, partition_data=[PartitionProduceData(index, bytes(batch))])]
    client = await world.client(leader)
    await client.tell(ProduceRequest(acks=0, timeout_ms=1_000, topic_data=data), PRODUCE_VERSION)


async def end_offset(world: MovingWorld, topic: str, index: int, leader: str) -> int:
    client = await world.client(leader)
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(topic, [ListOffsetsPartition(index, -1, -1)])])
    answer = await client.ask(request, 7, ListOffsetsResponse, timeout_s=ASK_S_MAX)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE
    return answer.topics[0].partitions[0].offset


@pytest.mark.parametrize("wal", [WalKind.FILE, WalKind.OBJECT])
def test_records_sent_with_acks_0_to_a_new_topic_are_stored(wal: WalKind) -> None:
    async def story(world: MovingWorld) -> None:
        for number in range(TOPICS):
            name = f"new-{number}"
            await create(world, name, 2)
            told = await leaders(world, name, world.cluster.brokers[number % 2])
            if len(told) < 2:  # the other broker's image may lag: it names no leader yet
                told = await leaders(world, name, world.cluster.brokers[0])
            assert sorted(told) == [0, 1], "CreateTopics answers when leaders are named"
            for index, leader in told.items():
                await write_silently(world, name, index, leader)
        await asyncio.sleep(1)
        for number in range(TOPICS):
            name = f"new-{number}"
            for index, leader in (await leaders(world, name, world.cluster.brokers[0])).items():
                assert await end_offset(world, name, index, leader) == 1, f"{name}-{index}"

    MovingWorld(8, wal=wal).tell(story)


def test_records_sent_with_acks_0_during_a_cancelled_move_are_stored() -> None:
    """A sealed partition that stays stores the records that arrived meanwhile."""

    async def story(world: MovingWorld) -> None:
        source = world.leader()
        assert (await world.produce(source)).error_code == ErrorCode.NONE
        world.store_of_faults().down = True
        assert await world.move(world.other(source)) == [ErrorCode.NONE]
        await world.until(lambda: world.handoff(source) is not None)
        for _ in range(10):
            await write_silently(world, TOPIC, 0, source)
        assert await world.move(None) == [ErrorCode.NONE]
        world.store_of_faults().down = False
        await asyncio.sleep(1)
        assert await end_offset(world, TOPIC, 0, source) == 11

    MovingWorld(9, wal=WalKind.FILE).tell(story)
