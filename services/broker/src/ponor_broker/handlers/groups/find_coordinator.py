"""FindCoordinator: which broker keeps a group.

What lives here: the two shapes of the request (one key, from version 4 on many) and the kinds of keys. Transactions and share groups have no
coordinator yet; asking for one is refused by name, and a transactional id with a code that every client takes for final: after
INVALID_REQUEST librdkafka asks again and again, so that `init_transactions()` does not return.
"""

from __future__ import annotations

import asyncio
from typing import Final

from ponor_kafka.api import ApiKey
from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

from ponor_broker.groups.coordinator import GroupCoordinator
from ponor_broker.requests.api_handler import ApiHandler, RequestContext, WhenFenced

BATCHED_FROM: Final = 4
GROUP: Final = 0
TRANSACTION: Final = 1
NO_NODE: Final = -1
SINGLE_SUCCESS: Final = "NONE"
"""What Kafka writes as the error message of a success, before version 4."""


class FindCoordinatorHandler:
    """Answers from the image; the first question makes `__consumer_offsets`."""

    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator

    @property
    def api(self) -> ApiHandler:
        """For the dispatcher."""
        return ApiHandler(ApiKey.FIND_COORDINATOR, 0, 6, self.handle, WhenFenced.REFUSES)

    async def handle(
        self, request: FindCoordinatorRequest, context: RequestContext
    ) -> FindCoordinatorResponse:
        """One answer per key."""
        if context.api_version >= BATCHED_FROM:
            answers = await asyncio.gather(
                *(self._find(key, request.key_type) for key in request.coordinator_keys)
            )
            return FindCoordinatorResponse(coordinators=answers)
        answer = await self._find(request.key, request.key_type)
        return FindCoordinatorResponse(
            error_code=answer.error_code,
            error_message=answer.error_message or SINGLE_SUCCESS,
            node_id=answer.node_id,
            host=answer.host,
            port=answer.port,
        )

    async def _find(self, key: str, key_type: int) -> Coordinator:
        if key_type == TRANSACTION:
            return _none(
                key,
                ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                "there are no transactions on this broker yet",
            )
        if key_type != GROUP:
            return _none(
                key,
                ErrorCode.INVALID_REQUEST,
                f"key type {key_type} has no coordinator here, only 0 (groups)",
            )
        address = await self._coordinator.find(key)
        if address is None:
            return _none(
                key, ErrorCode.COORDINATOR_NOT_AVAILABLE, "no broker coordinates this group yet; ask again"
            )
        return Coordinator(key, address.node_id, address.host, address.port, ErrorCode.NONE, "")


def _none(key: str, error: ErrorCode, message: str) -> Coordinator:
    return Coordinator(key, NO_NODE, "", NO_NODE, error, message)
