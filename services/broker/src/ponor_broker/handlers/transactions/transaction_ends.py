"""AddOffsetsToTxn and EndTxn of transactional producers."""

from __future__ import annotations

from typing import Final

from ponor_kafka.errors import ErrorCode
from ponor_kafka.internal_topics import OFFSETS_TOPIC
from ponor_kafka.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from ponor_kafka.messages.end_txn import EndTxnRequest, EndTxnResponse
from ponor_runtime.identity import ProducerId

from ponor_broker.groups.coordinator import GroupCoordinator
from ponor_broker.handlers.transactions.error_versions import error_of_version
from ponor_broker.partitions.topics.topics import Topics
from ponor_broker.requests.api_handler import RequestContext
from ponor_broker.transactions.coordinator import TransactionCoordinator
from ponor_broker.transactions.events import EndRequest, ProducerClaim

RAISING_FROM: Final = 5
"""First version of EndTxn whose answer contains the producer's next epoch (generation 2)."""


class TransactionEndHandlers:
    """Pass requests to the coordinator."""

    def __init__(self, coordinator: TransactionCoordinator, groups: GroupCoordinator, topics: Topics) -> None:
        self._coordinator = coordinator
        self._groups = groups
        self._topics = topics

    async def add_offsets(
        self, request: AddOffsetsToTxnRequest, context: RequestContext
    ) -> AddOffsetsToTxnResponse:
        """Add the partition of a group's offsets to a transaction of generation 1."""
        error = await self._add_offsets(request)
        return AddOffsetsToTxnResponse(error_code=error_of_version(error, context.api_version))

    async def _add_offsets(self, request: AddOffsetsToTxnRequest) -> ErrorCode:
        if self._coordinator.shards.refusal is None and not self._has_offsets(request.group_id):
            # A partition that is missing at the end of the transaction counts as deleted, so it must exist
            # before it is added. A producer may send this request before any request that creates the topic.
            await self._groups.shards.find((request.group_id,))
            if not self._has_offsets(request.group_id):
                return ErrorCode.COORDINATOR_NOT_AVAILABLE
        claim = ProducerClaim(ProducerId(request.producer_id), request.producer_epoch)
        return await self._coordinator.add_offsets(request.transactional_id, claim, request.group_id)

    def _has_offsets(self, group_id: str) -> bool:
        index = self._groups.shards.partition_of(group_id)
        return self._topics.leader_id(OFFSETS_TOPIC, index) is not None

    async def end(self, request: EndTxnRequest, context: RequestContext) -> EndTxnResponse:
        """Commit or abort a transaction; answer when the outcome is durable."""
        claim = ProducerClaim(ProducerId(request.producer_id), request.producer_epoch)
        is_generation_2 = context.api_version >= RAISING_FROM
        answer = await self._coordinator.end(
            request.transactional_id, EndRequest(claim, request.committed, is_generation_2)
        )
        return EndTxnResponse(
            error_code=error_of_version(answer.error, context.api_version),
            producer_id=answer.producer_id,
            producer_epoch=answer.producer_epoch,
        )
