"""Builders of requests for stories: one topic, one partition, other fields by keyword."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ponor_kafka.codec import encode_versioned
from ponor_kafka.messages.consumer_protocol_assignment import ConsumerProtocolAssignment
from ponor_kafka.messages.consumer_protocol_assignment import TopicPartition as Assigned
from ponor_kafka.messages.consumer_protocol_subscription import ConsumerProtocolSubscription
from ponor_kafka.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ponor_kafka.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from ponor_kafka.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from ponor_kafka.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ponor_kafka.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from ponor_kafka.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ponor_kafka.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from ponor_kafka.record_builder import NewRecord, build_batch

from tests.oracle.narrator import Topic

LONG_AGO_MS: Final = 1_000_000
"""The timestamp of most records: fixed, so that recordings do not depend on the day."""


def record(value: bytes | None = b"value", key: bytes | None = b"key", at: int = LONG_AGO_MS) -> NewRecord:
    """One record."""
    return NewRecord(at, key, value)


def batch(count: int = 1, *, at: int = LONG_AGO_MS, **settings: Any) -> bytes:
    """A batch of `count` records with their numbers as values and timestamps that rise by 10 ms."""
    return bytes(build_batch([record(b"%d" % n, at=at + 10 * n) for n in range(count)], **settings))


def idempotent(
    producer: Any, sequence: int, count: int = 1, *, epoch: int | None = None, **settings: Any
) -> bytes:
    """A batch of a producer with an id from InitProducerId."""
    its_epoch = producer.producer_epoch if epoch is None else epoch
    return batch(
        count, producer_id=producer.producer_id, producer_epoch=its_epoch, base_sequence=sequence, **settings
    )


def produce(
    topic: Topic,
    records: bytes | None,
    *,
    partition: int = 0,
    acks: int = -1,
    transactional_id: str | None = None,
) -> ProduceRequest:
    """Produce to one partition, by name or id, depending on the version."""
    data = [PartitionProduceData(partition, records)]
    return ProduceRequest(transactional_id, acks, 10_000, [TopicProduceData(topic.name, topic.id, data)])


def fetch(
    topic: Topic,
    offset: int,
    *,
    partition: int = 0,
    partition_bytes: int = 1 << 20,
    max_bytes: int = 1 << 22,
    min_bytes: int = 0,
    wait_ms: int = 0,
    epoch: int = -1,
    isolation: int = 0,
    **settings: Any,
) -> FetchRequest:
    """Fetch from one partition, by name or id, depending on the version."""
    wanted = FetchPartition(partition, epoch, offset, partition_max_bytes=partition_bytes)
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation,
        topics=[FetchTopic(topic.name, topic.id, [wanted])],
        **settings,
    )


def list_offsets(
    topic: Topic,
    timestamp: int,
    *,
    partition: int = 0,
    epoch: int = -1,
    isolation: int = 0,
    replica_id: int = -1,
) -> ListOffsetsRequest:
    """List one offset."""
    wanted = ListOffsetsPartition(partition, epoch, timestamp)
    return ListOffsetsRequest(replica_id, isolation, [ListOffsetsTopic(topic.name, [wanted])], 10_000)


def subscription(*topics: str) -> bytes:
    """The subscription of a joining consumer."""
    return encode_versioned(ConsumerProtocolSubscription(topics=list(topics)), 1)


def assignment(topic: str, *partitions: int) -> bytes:
    """The assignment that a leader gives to a consumer."""
    return encode_versioned(ConsumerProtocolAssignment([Assigned(topic, list(partitions))]), 1)


def join(
    group: str,
    member: str = "",
    *,
    instance: str | None = None,
    topics: Sequence[str] = ("a-topic",),
    protocols: Sequence[str] = ("range",),
    protocol_type: str = "consumer",
    session_ms: int = 30_000,
    rebalance_ms: int = 30_000,
) -> JoinGroupRequest:
    """Join as a consumer."""
    offered = [JoinGroupRequestProtocol(name, subscription(*topics)) for name in protocols]
    return JoinGroupRequest(group, session_ms, rebalance_ms, member, instance, protocol_type, offered, None)


def sync(
    group: str,
    generation: int,
    member: str,
    given: dict[str, bytes] | None = None,
    *,
    instance: str | None = None,
    protocol_type: str | None = "consumer",
    protocol: str | None = "range",
) -> SyncGroupRequest:
    """Sync; the leader gives assignments by member id."""
    assignments = [SyncGroupRequestAssignment(name, data) for name, data in (given or {}).items()]
    return SyncGroupRequest(group, generation, member, instance, protocol_type, protocol, assignments)


def commit(
    group: str,
    topic: Topic,
    offset: int,
    *,
    partition: int = 0,
    generation: int = -1,
    member: str = "",
    instance: str | None = None,
    metadata: str | None = "",
    leader_epoch: int = -1,
) -> OffsetCommitRequest:
    """Commit one offset."""
    row = OffsetCommitRequestPartition(partition, offset, leader_epoch, metadata)
    topics = [OffsetCommitRequestTopic(topic.name, topic.id, [row])]
    return OffsetCommitRequest(group, generation, member, instance, -1, topics)


def committed(group: str, topic: Topic | None, version: int, *partitions: int) -> OffsetFetchRequest:
    """Fetch committed offsets in the form of the version; None requests all topics."""
    if version < 8:
        old = None if topic is None else [OffsetFetchRequestTopic(topic.name, list(partitions))]
        return OffsetFetchRequest(group_id=group, topics=old)
    new = None if topic is None else [OffsetFetchRequestTopics(topic.name, topic.id, list(partitions))]
    return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group, topics=new)])
