"""ListOffsets: the start and the end of a partition, and offsets by timestamp.

Kafka's special (negative) timestamps behave as in Apache Kafka 4.3.1 without tiered storage. -4 ("earliest
local") is the log start: all data counts as local.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final

from ponor_kafka.errors import ErrorCode, KafkaWireError
from ponor_kafka.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
)
from ponor_runtime.turns import Turns
from s3stream.errors import OffsetOutOfRangeError, S3StreamError

from ponor_broker.handlers.offsets import offset_lookup
from ponor_broker.handlers.offsets.offset_lookup import TimestampOffset
from ponor_broker.partitions.errors import PartitionError, storage_error
from ponor_broker.partitions.partition import Partition
from ponor_broker.partitions.partition_manager import PartitionManager
from ponor_broker.requests.api_handler import RequestContext
from ponor_broker.requests.bounded_gather import bounded_gather

LATEST: Final = -1
READ_COMMITTED: Final = 1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6
VERSION_MIN_OF: Final = {
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
NOWHERE: Final = TimestampOffset(-1, -1)
UNKNOWN_EPOCH: Final = -1
EPOCH_VERSION_MIN: Final = 4
SEARCHES_IN_FLIGHT_MAX: Final = 16


class ListOffsetsHandler:
    """Searches by timestamp have bounded concurrency, since they may read objects."""

    def __init__(self, partitions: PartitionManager) -> None:
        self._partitions = partitions
        self._searches = asyncio.Semaphore(SEARCHES_IN_FLIGHT_MAX)
        self._turns = Turns()

    async def handle(self, request: ListOffsetsRequest, context: RequestContext) -> ListOffsetsResponse:
        """ListOffsets."""
        return await self.answer(request, context.api_version)

    async def answer(self, request: ListOffsetsRequest, version: int) -> ListOffsetsResponse:
        """Return one result per partition."""
        topics = [
            ListOffsetsTopicResponse(topic.name, await self._answers(topic, version, request.isolation_level))
            for topic in request.topics
        ]
        return ListOffsetsResponse(topics=topics)

    async def _answers(
        self, topic: ListOffsetsTopic, version: int, isolation_level: int
    ) -> list[ListOffsetsPartitionResponse]:
        """Answer for one topic. A partition that is named several times gets one error, as in Kafka."""
        asked = Counter(wanted.partition_index for wanted in topic.partitions)
        once = [wanted for wanted in topic.partitions if asked[wanted.partition_index] == 1]
        answers = await bounded_gather(
            self._answer(topic.name, wanted, version, isolation_level) for wanted in once
        )
        twice = [index for index, count in asked.items() if count > 1]
        refused = [ListOffsetsPartitionResponse(index, ErrorCode.INVALID_REQUEST) for index in twice]
        return [*answers, *refused]

    async def _answer(
        self, topic: str, wanted: ListOffsetsPartition, version: int, isolation_level: int
    ) -> ListOffsetsPartitionResponse:
        try:
            partition = await self._partitions.find_settled(topic, wanted.partition_index)
            partition.check_epoch(wanted.current_leader_epoch)
            found, epoch = await self._find(partition, wanted.timestamp, version, isolation_level)
            # a search takes time: another broker may have appended by now
            partition.service.check_reads()
        except PartitionError as error:
            return ListOffsetsPartitionResponse(wanted.partition_index, error_code=error.code)
        except KafkaWireError:
            return ListOffsetsPartitionResponse(wanted.partition_index, error_code=ErrorCode.CORRUPT_MESSAGE)
        except S3StreamError as error:
            return ListOffsetsPartitionResponse(wanted.partition_index, error_code=storage_error(error).code)
        return ListOffsetsPartitionResponse(
            wanted.partition_index,
            timestamp=found.timestamp,
            offset=found.offset,
            leader_epoch=epoch if version >= EPOCH_VERSION_MIN else UNKNOWN_EPOCH,
        )

    async def _find(
        self, partition: Partition, timestamp: int, version: int, isolation_level: int
    ) -> tuple[TimestampOffset, int]:
        if timestamp < EARLIEST_PENDING_UPLOAD or version < VERSION_MIN_OF.get(timestamp, 0):
            raise PartitionError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"timestamp {timestamp} is not defined in ListOffsets version {version}",
            )
        is_committed = isolation_level == READ_COMMITTED
        end = partition.last_stable_offset if is_committed else partition.high_watermark
        if timestamp == LATEST:
            return TimestampOffset(end, -1), partition.leader_epoch
        if timestamp in {EARLIEST, EARLIEST_LOCAL}:
            start = partition.log_start_offset
            return TimestampOffset(start, -1), self._epoch_at(partition, start)
        if timestamp in {LATEST_TIERED, EARLIEST_PENDING_UPLOAD}:
            return NOWHERE, UNKNOWN_EPOCH
        async with self._searches:
            found = await self._search(partition, timestamp)
        if found is None or (is_committed and found.offset >= end):
            return NOWHERE, UNKNOWN_EPOCH
        return found, self._epoch_at(partition, found.offset)

    async def _search(self, partition: Partition, timestamp: int) -> TimestampOffset | None:
        while True:
            start = partition.log_start_offset
            try:
                if timestamp == MAX_TIMESTAMP:
                    return await offset_lookup.largest(partition, self._turns)
                return await offset_lookup.first_at_or_after(partition, timestamp, self._turns)
            except (PartitionError, OffsetOutOfRangeError) as error:
                is_outside = storage_error(error).code == ErrorCode.OFFSET_OUT_OF_RANGE
                if not is_outside or partition.log_start_offset == start:
                    raise
                # Retention moved the log start past the offset of the read: search the remaining log.

    def _epoch_at(self, partition: Partition, offset: int) -> int:
        epoch = partition.epochs.epoch_at(offset)
        return partition.leader_epoch if epoch < 0 else epoch
