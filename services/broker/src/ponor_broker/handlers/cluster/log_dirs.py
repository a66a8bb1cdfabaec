"""DescribeLogDirs (bytes of a broker's partitions) and AlterReplicaLogDirs (KIP-113).

The object store is the only log directory. It has no size limit, so total and usable bytes are
Kafka's "unknown" (−1). Sizes are those of the retained segments, without replication by the store.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from ponor_kafka.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

from ponor_broker.partitions.partition import Partition
from ponor_broker.partitions.partition_manager import PartitionManager
from ponor_broker.partitions.topics.topics import Topics
from ponor_broker.requests.api_handler import RequestContext
from ponor_broker.requests.request_rows import check_rows

LOG_DIR: Final = "object-store"


async def alter_replica_log_dirs(
    topics: Topics, request: AlterReplicaLogDirsRequest, _: RequestContext
) -> AlterReplicaLogDirsResponse:
    """Accept moves to the only log directory and refuse others; return a result per partition. If a partition
    is named for two directories, the last entry counts.
    """
    check_rows(sum(len(topic.partitions) for directory in request.dirs for topic in directory.topics))
    results: dict[str, dict[int, ErrorCode]] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            for index in topic.partitions:
                code = _move(topics, directory.path, topic.name, index)
                results.setdefault(topic.name, {})[index] = code
    return AlterReplicaLogDirsResponse(
        results=[
            AlterReplicaLogDirTopicResult(
                name, [AlterReplicaLogDirPartitionResult(index, code) for index, code in codes.items()]
            )
            for name, codes in results.items()
        ]
    )


def _move(topics: Topics, path: str, topic: str, index: int) -> ErrorCode:
    if path != LOG_DIR:
        return ErrorCode.LOG_DIR_NOT_FOUND
    row = topics.by_name(topic)
    if row is None or topics.partition(row.topic_id, index) is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.NONE


async def describe_log_dirs(
    partitions: PartitionManager, request: DescribeLogDirsRequest, _: RequestContext
) -> DescribeLogDirsResponse:
    """Describe the requested partitions, or all if the request names none (null), from memory. Partitions of
    other brokers are omitted, as in Kafka.
    """
    if request.topics is None:
        wanted: Iterable[Partition | None] = partitions.all()
    else:
        check_rows(sum(len(topic.partitions) for topic in request.topics))
        wanted = (
            partitions.get(topic.topic, index) for topic in request.topics for index in topic.partitions
        )
    topics: dict[str, list[DescribeLogDirsPartition]] = {}
    for partition in wanted:
        if partition is not None:
            row = DescribeLogDirsPartition(partition.index, partition.log.size_bytes)
            topics.setdefault(partition.identity.topic, []).append(row)
    listed = [DescribeLogDirsTopic(name, rows) for name, rows in topics.items()]
    return DescribeLogDirsResponse(results=[DescribeLogDirsResult(log_dir=LOG_DIR, topics=listed)])
