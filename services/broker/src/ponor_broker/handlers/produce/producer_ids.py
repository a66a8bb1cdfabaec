"""Producer ids, which the controller grants in blocks."""

from __future__ import annotations

import asyncio

from ponor.controller.v1.session_service_pb2 import AllocateProducerIds, Operation
from ponor_kafka.errors import ErrorCode
from ponor_metadata.client.errors import OperationTimeoutError, SessionClosedError
from ponor_rpc.errors import OperationError
from ponor_runtime.identity import ProducerId

from ponor_broker.partitions.errors import PartitionError
from ponor_broker.partitions.topics.topic_admin import Session


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

    async def take_or_none(self) -> ProducerId | None:
        """Return a new id; None if the controller grants no block in time."""
        try:
            return await self.take()
        except PartitionError:
            return None

    async def _take_block(self) -> None:
        operation = Operation(allocate_producer_ids=AllocateProducerIds(count=self._per_block))
        try:
            result = await self._session.submit(operation, deadline_ms=self._deadline_ms)
        except (OperationError, OperationTimeoutError, SessionClosedError) as error:
            raise PartitionError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"the controller granted no producer ids: {error}"
            ) from error
        granted = result.producer_ids_granted
        self._next = granted.first_producer_id
        self._end = granted.first_producer_id + granted.count
