"""DescribeLogDirs: bytes of a broker's partitions, for monitoring.

The object store is the only log directory. It has no size limit, so total and usable bytes are
Kafka's "unknown" (−1). Sizes are those of the retained segments, without replication by the store.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ponor_kafka.api import ApiKey
from ponor_kafka.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

from ponor_broker.partitions.partition import Partition
from ponor_broker.partitions.partition_manager import PartitionManager
from ponor_broker.requests.api_handler import ApiHandler, RequestContext

LOG_DIR: Final = "object-store"


class DescribeLogDirsHandler:
    """Answers from memory, about the partitions that this broker leads."""

    def __init__(self, partitions: PartitionManager) -> None:
        self._partitions = partitions

    @property
    def api(self) -> ApiHandler:
        """For the dispatcher."""
        return ApiHandler(ApiKey.DESCRIBE_LOG_DIRS, 1, 5, self.handle)

    async def handle(
        self, request: DescribeLogDirsRequest, context: RequestContext
    ) -> DescribeLogDirsResponse:
        """Describe the requested partitions, or all for null. Partitions of other brokers are
        omitted, as in Kafka.
        """
        del context
        if request.topics is None:
            wanted: Iterable[Partition] = self._partitions.all()
        else:
            found = (
                self._partitions.get(topic.topic, index)
                for topic in request.topics
                for index in topic.partitions
            )
            wanted = [partition for partition in found if partition is not None]
        topics: dict[str, list[DescribeLogDirsPartition]] = {}
        for partition in wanted:
            row = DescribeLogDirsPartition(partition.index, partition.log.size_bytes)
            topics.setdefault(partition.identity.topic, []).append(row)
        listed = [DescribeLogDirsTopic(name, rows) for name, rows in topics.items()]
        return DescribeLogDirsResponse(results=[DescribeLogDirsResult(log_dir=LOG_DIR, topics=listed)])
