"""DescribeProducers: the producers whose state a partition keeps, and their open transactions (KIP-664)."""

from __future__ import annotations

from typing import Final

from ponor_kafka.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from ponor_runtime.turns import Steps, Turns

from ponor_broker.partitions.errors import PartitionError
from ponor_broker.partitions.partition_manager import PartitionManager
from ponor_broker.requests.api_handler import RequestContext
from ponor_broker.requests.request_rows import check_rows

ROWS_PER_STEP: Final = 1_000
"""Producers that one step describes."""


class DescribeProducersHandler:
    """Answers from memory."""

    def __init__(self, partitions: PartitionManager) -> None:
        self._partitions = partitions
        self._turns = Turns()

    async def handle(self, request: DescribeProducersRequest, _: RequestContext) -> DescribeProducersResponse:
        """Return one result per partition."""
        check_rows(sum(len(topic.partition_indexes) for topic in request.topics))
        # Each partition once: it may have thousands of producers.
        wanted: dict[str, dict[int, None]] = {}
        for topic in request.topics:
            wanted.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
        return DescribeProducersResponse(
            topics=[
                TopicResponse(
                    name=name,
                    partitions=[
                        await self._turns.run_short(self._describe(name, index)) for index in indexes
                    ],
                )
                for name, indexes in wanted.items()
            ]
        )

    def _describe(self, topic: str, index: int) -> Steps[PartitionResponse]:
        try:
            partition = self._partitions.find(topic, index)
        except PartitionError as error:
            return PartitionResponse(index, error_code=error.code, error_message=str(error))
        producers: list[ProducerState] = []
        for number, (producer_id, entry) in enumerate(partition.producers.active(), 1):
            producers.append(
                ProducerState(
                    producer_id,
                    entry.epoch,
                    last_sequence=entry.last_sequence,
                    last_timestamp=entry.updated_ms,
                    coordinator_epoch=entry.coordinator_epoch,
                    current_txn_start_offset=entry.first_offset,
                )
            )
            if number % ROWS_PER_STEP == 0:
                yield
        return PartitionResponse(index, active_producers=producers)
