"""DeleteRecords: raises the log start of partitions.

The new start is durable before the answer. Maintenance trims the streams later.
"""

from __future__ import annotations

import asyncio
from typing import Final

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
from ponor_broker.requests.api_handler import RequestContext
from ponor_broker.requests.bounded_gather import bounded_gather

NO_WATERMARK: Final = -1


async def delete_records(
    partitions: PartitionManager, request: DeleteRecordsRequest, _: RequestContext
) -> DeleteRecordsResponse:
    """Return one result per partition. Partitions are handled concurrently: each waits for one group
    commit.
    """
    timeout_s = max(request.timeout_ms, 1) / 1000

    async def delete(topic: str, wanted: DeleteRecordsPartition) -> DeleteRecordsPartitionResult:
        try:
            partition = await partitions.find_settled(topic, wanted.partition_index)
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

    topics = [
        DeleteRecordsTopicResult(
            name=topic.name,
            partitions=await bounded_gather(delete(topic.name, wanted) for wanted in topic.partitions),
        )
        for topic in request.topics
    ]
    return DeleteRecordsResponse(topics=topics)
