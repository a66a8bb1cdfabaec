"""AlterReplicaLogDirs: moves between log directories (KIP-113), of which there is one."""

from __future__ import annotations

from ponor_kafka.api import ApiKey
from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)

from ponor_broker.handlers.cluster.describe_log_dirs import LOG_DIR
from ponor_broker.partitions.topics.topics import Topics
from ponor_broker.requests.api_handler import ApiHandler, RequestContext


class AlterReplicaLogDirsHandler:
    """Answers from the image."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    @property
    def api(self) -> ApiHandler:
        """For the dispatcher."""
        return ApiHandler(ApiKey.ALTER_REPLICA_LOG_DIRS, 1, 2, self.handle)

    async def handle(
        self, request: AlterReplicaLogDirsRequest, context: RequestContext
    ) -> AlterReplicaLogDirsResponse:
        """Return a result per partition. Of a partition named for two directories, the last entry
        counts.
        """
        del context
        results: dict[str, dict[int, ErrorCode]] = {}
        for directory in request.dirs:
            for topic in directory.topics:
                for index in topic.partitions:
                    code = self._move(directory.path, topic.name, index)
                    results.setdefault(topic.name, {})[index] = code
        return AlterReplicaLogDirsResponse(
            results=[
                AlterReplicaLogDirTopicResult(
                    name, [AlterReplicaLogDirPartitionResult(index, code) for index, code in codes.items()]
                )
                for name, codes in results.items()
            ]
        )

    def _move(self, path: str, topic: str, index: int) -> ErrorCode:
        if path != LOG_DIR:
            return ErrorCode.LOG_DIR_NOT_FOUND
        row = self._topics.by_name(topic)
        if row is None or self._topics.partition(row.topic_id, index) is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ErrorCode.NONE
