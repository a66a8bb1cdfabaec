"""InitProducerId for idempotent producers (KIP-98, KIP-360), and the blocks of producer ids from
the controller.

A transactional id gets UNSUPPORTED_VERSION: the transaction APIs are not advertised, and this code ends a
client's attempt immediately. A retriable code would keep it waiting for a transaction coordinator.
"""

from __future__ import annotations

import asyncio

from ponor.controller.v1.session_service_pb2 import AllocateProducerIds, Operation
from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ponor_kafka.record_batch import NO_PRODUCER_ID
from ponor_metadata.client.errors import OperationTimeoutError, SessionClosedError
from ponor_rpc.errors import OperationError
from ponor_runtime.identity import ProducerId

from ponor_broker.partitions.errors import PartitionError
from ponor_broker.partitions.topics.topic_admin import Session
from ponor_broker.requests.api_handler import RequestContext

FIRST_EPOCH = 0
NO_EPOCH = -1


class ProducerIds:
    """Assigns producer ids. An id is never assigned twice; the unused rest of a block is lost when
    the process ends.
    """

    def __init__(self, session: Session, *, per_block: int, deadline_ms: int) -> None:
        self._session = session
        self._per_block = per_block
        self._deadline_ms = deadline_ms
        self._next = 0
        self._end = 0
        self._refill = asyncio.Lock()

    async def take(self) -> ProducerId:
        """Return a new id.

        Raises:
            PartitionError: COORDINATOR_LOAD_IN_PROGRESS, as in Kafka, if the controller grants no
                block in time.
        """
        if self._next >= self._end:
            async with self._refill:
                if self._next >= self._end:
                    await self._take_block()
        taken = ProducerId(self._next)
        self._next += 1
        return taken

    async def _take_block(self) -> None:
        operation = Operation(allocate_producer_ids=AllocateProducerIds(count=self._per_block))
        try:
            result = await self._session.submit(operation, deadline_ms=self._deadline_ms)
        except (OperationError, OperationTimeoutError, SessionClosedError) as error:
            raise PartitionError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"the controller gave no producer ids: {error}"
            ) from error
        granted = result.producer_ids_granted
        self._next = granted.first_producer_id
        self._end = granted.first_producer_id + granted.count


async def init_producer_id(
    producer_ids: ProducerIds, request: InitProducerIdRequest, _: RequestContext
) -> InitProducerIdResponse:
    """Return a new id with epoch 0 for every request without a transactional id, as Kafka does. An id
    without an epoch, or an epoch without an id, is refused.
    """
    if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_EPOCH):
        return InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST, producer_epoch=NO_EPOCH)
    if request.transactional_id is not None:
        code = ErrorCode.UNSUPPORTED_VERSION if request.transactional_id else ErrorCode.INVALID_REQUEST
        return InitProducerIdResponse(error_code=code, producer_epoch=NO_EPOCH)
    try:
        producer_id = await producer_ids.take()
    except PartitionError as error:
        return InitProducerIdResponse(error_code=error.code, producer_epoch=NO_EPOCH)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=FIRST_EPOCH)
