"""InitProducerId (KIP-98, KIP-360): for idempotent producers, and for transactional ones."""

from __future__ import annotations

from typing import Final

from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ponor_kafka.record_batch import NO_PRODUCER_ID
from ponor_runtime.identity import ProducerId

from ponor_broker.handlers.produce.producer_ids import ProducerIds
from ponor_broker.handlers.transactions.error_versions import FENCED_FROM_OF_INIT, error_of_version
from ponor_broker.partitions.errors import PartitionError
from ponor_broker.requests.api_handler import RequestContext
from ponor_broker.transactions.coordinator import TransactionCoordinator
from ponor_broker.transactions.events import InitRequest, ProducerClaim

FIRST_EPOCH: Final = 0
NO_EPOCH: Final = -1


class InitProducerIdHandler:
    """Passes requests with a transactional id to the coordinator; answers others with a new producer id."""

    def __init__(self, producer_ids: ProducerIds, coordinator: TransactionCoordinator) -> None:
        self._producer_ids = producer_ids
        self._coordinator = coordinator

    async def handle(self, request: InitProducerIdRequest, context: RequestContext) -> InitProducerIdResponse:
        """Return id and epoch. An id without an epoch, or an epoch without an id, is refused."""
        if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_EPOCH):
            return _refusal(ErrorCode.INVALID_REQUEST)
        if request.transactional_id is None:
            return await self._new_producer()
        expected = None
        if request.producer_id != NO_PRODUCER_ID:
            expected = ProducerClaim(ProducerId(request.producer_id), request.producer_epoch)
        answer = await self._coordinator.init_producer_id(
            request.transactional_id, InitRequest(request.transaction_timeout_ms, expected)
        )
        if answer.error is not ErrorCode.NONE:
            return _refusal(
                error_of_version(answer.error, context.api_version, fenced_from=FENCED_FROM_OF_INIT)
            )
        return InitProducerIdResponse(producer_id=answer.producer_id, producer_epoch=answer.producer_epoch)

    async def _new_producer(self) -> InitProducerIdResponse:
        """Return a new producer id; as in Kafka, also for a request with an id and an epoch."""
        try:
            producer_id = await self._producer_ids.take()
        except PartitionError as error:
            return _refusal(error.code)
        return InitProducerIdResponse(producer_id=producer_id, producer_epoch=FIRST_EPOCH)


def _refusal(code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_epoch=NO_EPOCH)
