"""A coordinator of share groups with its log and a persister, from request bytes to response bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any
from uuid import UUID

import pytest
from ponor_broker.coordination.share_persister import SharePartitionKey
from ponor_broker.groups.settings import GroupSettings
from ponor_broker.handlers.groups.groups import group_handlers, share_group_handlers
from ponor_broker.requests.api_handler import RequestContext
from ponor_broker.requests.connection import ConnectionContext
from ponor_kafka.api import ApiKey
from ponor_kafka.codec import decode, decode_response, encode
from ponor_kafka.errors import ErrorCode
from ponor_kafka.internal_topics import OFFSETS_TOPIC
from ponor_kafka.message import Message
from ponor_kafka.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
)
from ponor_kafka.messages.delete_groups import DeleteGroupsRequest
from ponor_kafka.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
)
from ponor_kafka.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
)
from ponor_kafka.messages.share_group_describe import ShareGroupDescribeRequest
from ponor_kafka.messages.share_group_heartbeat import ShareGroupHeartbeatRequest

TOPIC = UUID(int=1)
TOPIC_ID = TOPIC.bytes
ALL = {TOPIC_ID: [0, 1, 2, 3]}
INTERVAL_MS = 1_000
OFFSETS_KEYS = (
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
    ApiKey.ALTER_SHARE_GROUP_OFFSETS,
    ApiKey.DELETE_SHARE_GROUP_OFFSETS,
)


class MemoryEnds:
    """Partitions that end at offset 100."""

    async def find(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int | ErrorCode]:
        return dict.fromkeys(partitions, 100)


class Wire:
    """Sends requests as bytes and reads answers from bytes."""

    def __init__(self, world: Any) -> None:
        self.world = world
        self.attach()

    def attach(self) -> None:
        """Use the coordinator of the newest start."""
        world = self.world
        handlers = [
            *group_handlers(world.coordinator, world, world.clock),
            *share_group_handlers(world.coordinator, world.persister, world, MemoryEnds()),
        ]
        self.handlers = {handler.key: handler for handler in handlers}

    async def send(self, key: ApiKey, request: Message) -> Any:
        handler = self.handlers[key]
        version = handler.version_max
        read, _ = decode(key, version, encode(request, version))
        context = RequestContext(version, "client", ConnectionContext("127.0.0.1:5"))
        response = await handler.handle(read, context)
        assert response is not None
        answered, _ = decode_response(key, version, encode(response, version))
        return answered

    async def beat(
        self, member_id: str, epoch: int, topics: list[str] | None = None, group: str = "g"
    ) -> Any:
        request = ShareGroupHeartbeatRequest(group, member_id, epoch, None, topics)
        return await self.send(ApiKey.SHARE_GROUP_HEARTBEAT, request)

    async def join(self, member_id: str, *topics: str) -> int:
        """Join and wait for an assignment; return the member epoch."""
        answer = await self.beat(member_id, 0, list(topics))
        assert answer.error_code == 0, answer
        await self.world.clock.pass_ms(INTERVAL_MS)
        answer = await self.beat(member_id, answer.member_epoch)
        epoch: int = answer.member_epoch
        return epoch

    async def restart(self) -> None:
        await self.world.kill()
        await self.world.start()
        self.attach()

    async def describe(self, group_id: str = "g") -> Any:
        answer = await self.send(ApiKey.SHARE_GROUP_DESCRIBE, ShareGroupDescribeRequest([group_id], False))
        return answer.groups[0]

    async def alter(self, start_offset: int, topic: str = "t", partition: int = 0) -> Any:
        rows = [AlterShareGroupOffsetsRequestPartition(partition, start_offset)]
        request = AlterShareGroupOffsetsRequest("g", [AlterShareGroupOffsetsRequestTopic(topic, rows)])
        return await self.send(ApiKey.ALTER_SHARE_GROUP_OFFSETS, request)

    async def delete_offsets(self, *topics: str) -> Any:
        rows = [DeleteShareGroupOffsetsRequestTopic(topic) for topic in topics]
        return await self.send(ApiKey.DELETE_SHARE_GROUP_OFFSETS, DeleteShareGroupOffsetsRequest("g", rows))

    async def offsets(self, topics: list[DescribeShareGroupOffsetsRequestTopic] | None = None) -> Any:
        group = DescribeShareGroupOffsetsRequestGroup("g", topics)
        answer = await self.send(
            ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, DescribeShareGroupOffsetsRequest([group])
        )
        return answer.groups[0]

    async def delete_group(self) -> ErrorCode:
        answer = await self.send(ApiKey.DELETE_GROUPS, DeleteGroupsRequest(["g"]))
        return ErrorCode(answer.results[0].error_code)


def partitions_of(answer: Any) -> dict[bytes, list[int]] | None:
    if answer.assignment is None:
        return None
    return {row.topic_id: row.partitions for row in answer.assignment.topic_partitions}


def key(partition: int, topic_id: UUID = TOPIC) -> SharePartitionKey:
    return SharePartitionKey("g", topic_id, partition)


@pytest.fixture
async def wire(world_type: Any) -> AsyncIterator[Wire]:
    world = world_type(GroupSettings(offsets_topic_partitions=1, offsets_rewrite_log_bytes_min=16 << 10))
    world.topics[OFFSETS_TOPIC] = (UUID(int=99), 1)
    await world.start()
    yield Wire(world)
    await world.coordinator.close()
    assert world.failures == []
