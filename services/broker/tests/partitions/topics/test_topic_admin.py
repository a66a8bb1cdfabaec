"""Creation of topics: the operations that the broker sends to the controller."""

from __future__ import annotations

import asyncio

import pytest
from ponor.controller.v1.session_service_pb2 import Operation, OperationResult
from ponor_broker.partitions.errors import PartitionError
from ponor_broker.partitions.topics.announcements import Announcements
from ponor_broker.partitions.topics.topic_admin import OPERATIONS_MAX, TopicAdmin
from ponor_broker.partitions.topics.topics import Topics
from ponor_kafka.errors import ErrorCode
from ponor_metadata.image.image import MetadataImage


class RecordingSession:
    """Records operations; all of them succeed."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def submit(self, operation: Operation, *, deadline_ms: int | None = None) -> OperationResult:
        self.operations.append(operation)
        await self.may_answer.wait()
        return OperationResult(commit_index=0)

    async def wait_for(self, index: int, deadline_ms: int | None = None) -> None:
        assert index == 0


async def test_the_offsets_topic_is_created_once_with_kafkas_configs() -> None:
    session, image = RecordingSession(), MetadataImage()
    topics = Topics(lambda: image)
    admin = TopicAdmin(session, session, topics, Announcements(topics), deadline_ms=1_000)
    await asyncio.gather(*(admin.ensure("__consumer_offsets", partitions=50) for _ in range(3)))
    (operation,) = session.operations
    made = operation.create_topic
    assert (made.name, made.partitions) == ("__consumer_offsets", 50)
    assert dict(made.configs) == {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": "104857600",
    }


async def test_other_topics_are_created_with_the_defaults() -> None:
    session, image = RecordingSession(), MetadataImage()
    topics = Topics(lambda: image)
    admin = TopicAdmin(session, session, topics, Announcements(topics), deadline_ms=1_000)
    await admin.ensure("orders")
    assert dict(session.operations[0].create_topic.configs) == {}


async def test_operations_of_many_clients_leave_room_in_the_session() -> None:
    """60 clients that each created 250 topics delayed all operations of the broker, also those of uploads, by
    16 s.
    """
    session, image = RecordingSession(), MetadataImage()
    session.may_answer.clear()
    topics = Topics(lambda: image)
    admin = TopicAdmin(session, session, topics, Announcements(topics), deadline_ms=60_000)
    topic_ids = [number.to_bytes(16, "big") for number in range(2 * OPERATIONS_MAX)]
    deletions = [asyncio.ensure_future(admin.delete(topic_id)) for topic_id in topic_ids]
    hurried = asyncio.ensure_future(admin.delete(bytes(16), deadline_ms=1))
    with pytest.raises(PartitionError) as refused:
        await hurried
    assert refused.value.code is ErrorCode.REQUEST_TIMED_OUT
    assert len(session.operations) == OPERATIONS_MAX
    session.may_answer.set()
    await asyncio.gather(*deletions)
    assert len(session.operations) == len(deletions)


async def test_an_operation_keeps_its_room_after_its_client_gave_up() -> None:
    """The session keeps a sent operation until its answer. Clients with a timeout of 1 ms filled it."""
    session, image = RecordingSession(), MetadataImage()
    session.may_answer.clear()
    topics = Topics(lambda: image)
    admin = TopicAdmin(session, session, topics, Announcements(topics), deadline_ms=60_000)
    for _ in range(2):
        hurried = [admin.delete(bytes(16), deadline_ms=1) for _ in range(OPERATIONS_MAX)]
        outcomes = await asyncio.gather(*hurried, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {PartitionError}
    assert len(session.operations) <= OPERATIONS_MAX
    session.may_answer.set()
    await admin.delete(bytes(16))
