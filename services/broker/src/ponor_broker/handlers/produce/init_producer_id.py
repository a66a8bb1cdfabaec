"""InitProducerId for idempotent producers (KIP-98, KIP-360).

A transactional id gets UNSUPPORTED_VERSION: the transaction APIs are not advertised, and this code
ends a client's attempt immediately. A retriable code would keep it waiting for a transaction
coordinator.
"""

from __future__ import annotations

from ponor_kafka.api import ApiKey
from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ponor_kafka.record_batch import NO_PRODUCER_ID

from ponor_broker.handlers.produce.producer_ids import ProducerIds
from ponor_broker.partitions.errors import PartitionError
from ponor_broker.requests.api_handler import ApiHandler, RequestContext

FIRST_EPOCH = 0
NO_EPOCH = -1


class InitProducerIdHandler:
    """Assigns a new producer id to every request without a transactional id, as Kafka does."""

    def __init__(self, producer_ids: ProducerIds) -> None:
        self._producer_ids = producer_ids

    @property
    def api(self) -> ApiHandler:
        """For the dispatcher."""
        return ApiHandler(ApiKey.INIT_PRODUCER_ID, 0, 5, self.handle)

    async def handle(self, request: InitProducerIdRequest, context: RequestContext) -> InitProducerIdResponse:
        """Return a new id with epoch 0. An id without an epoch, or an epoch without an id, is
        refused.
        """
        del context
        if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_EPOCH):
            return InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST, producer_epoch=NO_EPOCH)
        if request.transactional_id is not None:
            code = ErrorCode.UNSUPPORTED_VERSION if request.transactional_id else ErrorCode.INVALID_REQUEST
            return InitProducerIdResponse(error_code=code, producer_epoch=NO_EPOCH)
        try:
            producer_id = await self._producer_ids.take()
        except PartitionError as error:
            return InitProducerIdResponse(error_code=error.code, producer_epoch=NO_EPOCH)
        return InitProducerIdResponse(producer_id=producer_id, producer_epoch=FIRST_EPOCH)
