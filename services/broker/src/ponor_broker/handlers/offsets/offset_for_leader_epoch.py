"""OffsetForLeaderEpoch: where an epoch ended, for consumers that check for truncation (KIP-320).

Acknowledged data is never truncated, so the answer never moves a consumer back.
"""

from __future__ import annotations

from ponor_kafka.api import ApiKey
from ponor_kafka.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)

from ponor_broker.partitions.errors import PartitionError
from ponor_broker.partitions.partition_manager import PartitionManager
from ponor_broker.requests.api_handler import ApiHandler, RequestContext, WhenFenced
from ponor_broker.requests.bounded_gather import bounded_gather


class LeaderEpochsHandler:
    """Answers from memory."""

    def __init__(self, partitions: PartitionManager) -> None:
        self._partitions = partitions

    @property
    def api(self) -> ApiHandler:
        """For the dispatcher."""
        return ApiHandler(ApiKey.OFFSET_FOR_LEADER_EPOCH, 2, 4, self.handle, WhenFenced.REFUSES)

    async def handle(
        self, request: OffsetForLeaderEpochRequest, context: RequestContext
    ) -> OffsetForLeaderEpochResponse:
        """Return one result per partition."""
        del context
        return OffsetForLeaderEpochResponse(
            topics=[
                OffsetForLeaderTopicResult(
                    topic=topic.topic,
                    partitions=await bounded_gather(
                        self._answer(topic.topic, wanted) for wanted in topic.partitions
                    ),
                )
                for topic in request.topics
            ]
        )

    async def _answer(self, topic: str, wanted: OffsetForLeaderPartition) -> EpochEndOffset:
        try:
            partition = await self._partitions.find_settled(topic, wanted.partition)
            partition.check_epoch(wanted.current_leader_epoch)
        except PartitionError as error:
            return EpochEndOffset(error_code=error.code, partition=wanted.partition)
        epoch, end_offset = partition.epochs.end_offset(wanted.leader_epoch, partition.high_watermark)
        return EpochEndOffset(partition=wanted.partition, leader_epoch=epoch, end_offset=end_offset)
