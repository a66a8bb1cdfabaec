"""OffsetForLeaderEpoch: where an epoch ended, for consumers that check for truncation (KIP-320).

Acknowledged data is never truncated, so the answer never moves a consumer back.
"""

from __future__ import annotations

from ponor_kafka.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)

from ponor_broker.partitions.errors import PartitionError
from ponor_broker.partitions.partition_manager import PartitionManager
from ponor_broker.requests.api_handler import RequestContext
from ponor_broker.requests.bounded_gather import bounded_gather


async def offsets_for_leader_epochs(
    partitions: PartitionManager, request: OffsetForLeaderEpochRequest, _: RequestContext
) -> OffsetForLeaderEpochResponse:
    """Return one result per partition, from memory."""

    async def answer(topic: str, wanted: OffsetForLeaderPartition) -> EpochEndOffset:
        try:
            partition = await partitions.find_settled(topic, wanted.partition)
            partition.check_epoch(wanted.current_leader_epoch)
        except PartitionError as error:
            return EpochEndOffset(error_code=error.code, partition=wanted.partition)
        epoch, end_offset = partition.epochs.end_offset(wanted.leader_epoch, partition.high_watermark)
        return EpochEndOffset(partition=wanted.partition, leader_epoch=epoch, end_offset=end_offset)

    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=await bounded_gather(answer(topic.topic, wanted) for wanted in topic.partitions),
            )
            for topic in request.topics
        ]
    )
