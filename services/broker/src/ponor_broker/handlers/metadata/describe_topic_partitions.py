"""DescribeTopicPartitions: topics in pages (KIP-966). `kafka-topics --describe` tries this API first."""

from __future__ import annotations

from typing import Final

from ponor_kafka.configs.catalogue import BROKER_CONFIGS
from ponor_kafka.errors import ErrorCode
from ponor_kafka.internal_topics import INTERNAL_TOPICS
from ponor_kafka.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponseCursor,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from ponor_metadata.nouns.topics import NO_LEADER, PartitionRow
from ponor_runtime.turns import turn

from ponor_broker.handlers.authorization import TOPIC_OPERATIONS
from ponor_broker.partitions.topics.topics import Topics, is_valid_name, shown_replicas
from ponor_broker.requests.api_handler import RequestContext

PARTITIONS_MAX: Final = int(BROKER_CONFIGS["max.request.partition.size.limit"].default or 0)
PARTITIONS_PER_TURN: Final = 500
"""Partitions per event-loop turn; a single topic may have more."""


async def describe_topic_partitions(
    topics: Topics, request: DescribeTopicPartitionsRequest, _: RequestContext
) -> DescribeTopicPartitionsResponse:
    """Describe topics by name from the cursor on, until the page is full. Topics with errors do not count."""
    names = sorted({topic.name for topic in request.topics})
    cursor = request.cursor
    if cursor is not None and (cursor.partition_index < 0 or (names and cursor.topic_name not in names)):
        # The cursor is invalid, or belongs to another list of topics.
        return DescribeTopicPartitionsResponse(
            topics=[
                DescribeTopicPartitionsResponseTopic(ErrorCode.INVALID_REQUEST, name=topic.name)
                for topic in request.topics
            ]
        )
    start = "" if cursor is None else cursor.topic_name
    described: list[DescribeTopicPartitionsResponseTopic] = []
    response = DescribeTopicPartitionsResponse(topics=described)
    since_turn = 0
    left = max(min(request.response_partition_limit, PARTITIONS_MAX), 1)
    for name in [name for name in names or [row.name for row in topics.all()] if name >= start]:
        first = cursor.partition_index if cursor is not None and name == cursor.topic_name else 0
        if left == 0:
            response.next_cursor = DescribeTopicPartitionsResponseCursor(name, 0)
            break
        topic, following = _page(topics, name, first, left)
        described.append(topic)
        left -= len(topic.partitions)
        since_turn += max(len(topic.partitions), 1)  # an unknown topic has none
        if since_turn >= PARTITIONS_PER_TURN:
            since_turn = 0
            await turn()
        if following is not None:
            response.next_cursor = DescribeTopicPartitionsResponseCursor(name, following)
            break
    return response


def _page(
    topics: Topics, name: str, first: int, limit: int
) -> tuple[DescribeTopicPartitionsResponseTopic, int | None]:
    """Return a topic with at most `limit` partitions from `first` on, and the next index if there are
    more.
    """
    row = topics.by_name(name)
    if row is None:
        is_valid = is_valid_name(name)
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_valid else ErrorCode.INVALID_TOPIC_EXCEPTION
        return DescribeTopicPartitionsResponseTopic(
            code, name=name, topic_authorized_operations=TOPIC_OPERATIONS
        ), None
    partitions = topics.partitions(row.topic_id)
    end = first + limit
    topic = DescribeTopicPartitionsResponseTopic(
        ErrorCode.NONE,
        name=row.name,
        topic_id=row.topic_id,
        is_internal=row.name in INTERNAL_TOPICS,
        partitions=[_partition(topics, partition) for partition in partitions[first:end]],
        topic_authorized_operations=TOPIC_OPERATIONS,
    )
    return topic, end if end < len(partitions) else None


def _partition(topics: Topics, row: PartitionRow) -> DescribeTopicPartitionsResponsePartition:
    has_leader = topics.announced_leader(row) is not None
    return DescribeTopicPartitionsResponsePartition(
        ErrorCode.NONE if has_leader else ErrorCode.LEADER_NOT_AVAILABLE,
        row.partition,
        row.leader_id if has_leader else NO_LEADER,
        row.leader_epoch,
        replica_nodes=shown_replicas(row),
        isr_nodes=shown_replicas(row),
        eligible_leader_replicas=(),
        last_known_elr=(),
        offline_replicas=() if has_leader else shown_replicas(row),
    )
