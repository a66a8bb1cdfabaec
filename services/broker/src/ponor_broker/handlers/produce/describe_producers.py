"""DescribeProducers: the idempotent producers that a partition remembers (KIP-664).

What lives here: the answer. There are no transactions yet, so no producer has a coordinator or an open one.
"""

from __future__ import annotations

from typing import Final

from ponor_kafka.api import ApiKey
from ponor_kafka.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)

from ponor_broker.partitions.errors import PartitionError
from ponor_broker.partitions.partition_manager import PartitionManager
from ponor_broker.requests.api_handler import ApiHandler, RequestContext, WhenFenced

NO_COORDINATOR: Final = -1


class DescribeProducersHandler:
    """Answers from memory."""

    def __init__(self, partitions: PartitionManager) -> None:
        self._partitions = partitions

    @property
    def api(self) -> ApiHandler:
        """For the dispatcher."""
        return ApiHandler(ApiKey.DESCRIBE_PRODUCERS, 0, 0, self.handle, WhenFenced.REFUSES)

    async def handle(
        self, request: DescribeProducersRequest, context: RequestContext
    ) -> DescribeProducersResponse:
        """One answer per partition."""
        del context
        return DescribeProducersResponse(
            topics=[
                TopicResponse(
                    name=topic.name,
                    partitions=[self._describe(topic.name, index) for index in topic.partition_indexes],
                )
                for topic in request.topics
            ]
        )

    def _describe(self, topic: str, index: int) -> PartitionResponse:
        try:
            partition = self._partitions.find(topic, index)
        except PartitionError as error:
            return PartitionResponse(index, error_code=error.code, error_message=str(error))
        return PartitionResponse(
            index,
            active_producers=[
                ProducerState(
                    producer_id,
                    entry.epoch,
                    last_sequence=entry.last_sequence,
                    last_timestamp=entry.updated_ms,
                    coordinator_epoch=NO_COORDINATOR,
                )
                for producer_id, entry in partition.producers.active()
            ],
        )
