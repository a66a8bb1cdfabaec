"""DeleteRecords: raises the log start of partitions.

The new start is durable before the answer. Maintenance trims the streams later.
"""

from __future__ import annotations

import asyncio
from typing import Final

from ponor_kafka.api import ApiKey
from ponor_kafka.errors import ErrorCode
from ponor_kafka.internal_topics import INTERNAL_TOPICS
from ponor_kafka.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from s3stream.errors import S3StreamError

from ponor_broker.partitions.errors import PartitionError, storage_error
from ponor_broker.partitions.partition_manager import PartitionManager
from ponor_broker.requests.api_handler import ApiHandler, RequestContext, WhenFenced
from ponor_broker.requests.bounded_gather import bounded_gather

NO_WATERMARK: Final = -1


class DeleteRecordsHandler:
    """Handles all partitions of a request concurrently: each waits for one group commit."""

    def __init__(self, partitions: PartitionManager) -> None:
        self._partitions = partitions

    @property
    def api(self) -> ApiHandler:
        """For the dispatcher."""
        return ApiHandler(ApiKey.DELETE_RECORDS, 0, 2, self.handle, WhenFenced.REFUSES)

    async def handle(self, request: DeleteRecordsRequest, context: RequestContext) -> DeleteRecordsResponse:
        """Return one result per partition."""
        del context
        timeout_s = max(request.timeout_ms, 1) / 1000
        topics = [
            DeleteRecordsTopicResult(
                name=topic.name,
                partitions=await bounded_gather(
                    self._delete(topic.name, wanted, timeout_s) for wanted in topic.partitions
                ),
            )
            for topic in request.topics
        ]
        return DeleteRecordsResponse(topics=topics)

    async def _delete(
        self, topic: str, wanted: DeleteRecordsPartition, timeout_s: float
    ) -> DeleteRecordsPartitionResult:
        try:
            partition = await self._partitions.find_settled(topic, wanted.partition_index)
            if topic in INTERNAL_TOPICS:
                raise PartitionError(
                    ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic} is internal: only brokers delete its records"
                )
            async with asyncio.timeout(timeout_s):
                low_watermark = await partition.delete_records(wanted.offset)
        except (PartitionError, S3StreamError, TimeoutError) as error:
            return DeleteRecordsPartitionResult(
                wanted.partition_index, NO_WATERMARK, error_code=storage_error(error).code
            )
        return DeleteRecordsPartitionResult(wanted.partition_index, low_watermark)
