"""OffsetDelete: removes a group's offsets of a topic (KIP-496).

Offsets of a topic that a live member reads are not removed; the coordinator checks this.
"""

from __future__ import annotations

from ponor_kafka.api import ApiKey
from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)

from ponor_broker.groups.coordinator import GroupCoordinator
from ponor_broker.groups.ports import TopicDirectory
from ponor_broker.requests.api_handler import ApiHandler, RequestContext, WhenFenced


class OffsetDeleteHandler:
    """Answered when the removal is durable."""

    def __init__(self, coordinator: GroupCoordinator, topics: TopicDirectory) -> None:
        self._coordinator = coordinator
        self._topics = topics

    @property
    def api(self) -> ApiHandler:
        """For the dispatcher."""
        return ApiHandler(ApiKey.OFFSET_DELETE, 0, 0, self.handle, WhenFenced.REFUSES)

    async def handle(self, request: OffsetDeleteRequest, context: RequestContext) -> OffsetDeleteResponse:
        """Return one result per partition, or one error for the group."""
        del context
        known = [
            (topic.name, partition.partition_index)
            for topic in request.topics
            for partition in topic.partitions
            if 0 <= partition.partition_index < (self._topics.partition_count(topic.name) or 0)
        ]
        answers = await self._coordinator.delete_offsets(request.group_id, known)
        if isinstance(answers, ErrorCode):
            return OffsetDeleteResponse(error_code=answers)
        missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return OffsetDeleteResponse(
            topics=[
                OffsetDeleteResponseTopic(
                    topic.name,
                    [
                        OffsetDeleteResponsePartition(index, answers.get((topic.name, index), missing))
                        for index in dict.fromkeys(
                            partition.partition_index for partition in topic.partitions
                        )
                    ],
                )
                for topic in request.topics
            ]
        )
