"""AlterPartitionReassignments and ListPartitionReassignments: moves, of which there are none yet (KIP-455).

What lives here: the answers. A partition is where its leader is; to be assigned to that broker is done at once, and nothing is ever under way.
"""

from __future__ import annotations

from ponor_kafka.api import ApiKey
from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from ponor_kafka.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)

from ponor_broker.handlers.registry import ApiHandler, RequestContext
from ponor_broker.partitions.errors import PartitionError
from ponor_broker.partitions.manual_assignment import check_replicas
from ponor_broker.partitions.topics import Topics


class PartitionReassignmentsHandler:
    """Answers from the image."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    @property
    def apis(self) -> list[ApiHandler]:
        """For the dispatcher."""
        return [
            ApiHandler(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, 1, self.alter),
            ApiHandler(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, 0, self.list),
        ]

    async def alter(
        self, request: AlterPartitionReassignmentsRequest, context: RequestContext
    ) -> AlterPartitionReassignmentsResponse:
        """A result per partition."""
        del context
        return AlterPartitionReassignmentsResponse(
            allow_replication_factor_change=request.allow_replication_factor_change,
            error_code=ErrorCode.NONE,
            error_message=None,
            responses=[
                ReassignableTopicResponse(
                    topic.name, [self._alter(topic.name, partition) for partition in topic.partitions]
                )
                for topic in request.topics
            ],
        )

    async def list(
        self, request: ListPartitionReassignmentsRequest, context: RequestContext
    ) -> ListPartitionReassignmentsResponse:
        """None."""
        del request, context
        return ListPartitionReassignmentsResponse(error_code=ErrorCode.NONE, error_message=None)

    def _alter(self, topic: str, wanted: ReassignablePartition) -> ReassignablePartitionResponse:
        index = wanted.partition_index
        try:
            self._check(topic, wanted)
        except PartitionError as error:
            return ReassignablePartitionResponse(index, error.code, str(error) or None)
        return ReassignablePartitionResponse(index, ErrorCode.NONE, None)

    def _check(self, topic: str, wanted: ReassignablePartition) -> None:
        index = wanted.partition_index
        row = self._topics.by_name(topic)
        if row is None:
            raise PartitionError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {topic}."
            )
        partition = self._topics.partition(row.topic_id, index)
        if partition is None:
            raise PartitionError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {topic}:{index}."
            )
        if wanted.replicas is None:
            raise PartitionError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "")
        check_replicas(wanted.replicas, self._topics)
        if list(wanted.replicas) != [partition.leader_id]:
            raise PartitionError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"partition {topic}-{index} is at broker {partition.leader_id} and cannot be moved; give that broker alone",
            )
