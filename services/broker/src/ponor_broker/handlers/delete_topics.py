"""DeleteTopics, by name and by id (KIP-516).

What lives here: the request's forms and the answer; the controller removes the topic with its streams and objects in one step.
"""

from __future__ import annotations

import asyncio

from ponor_kafka.api import ApiKey
from ponor_kafka.errors import ErrorCode
from ponor_kafka.message import ZERO_UUID
from ponor_kafka.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)

from ponor_broker.handlers.registry import ApiHandler, RequestContext
from ponor_broker.partitions.errors import PartitionError
from ponor_broker.partitions.topic_admin import TopicAdmin
from ponor_broker.partitions.topics import Topics

STATES_VERSION_MIN = 6


class DeleteTopicsHandler:
    """Asks the controller."""

    def __init__(self, topics: Topics, admin: TopicAdmin) -> None:
        self._topics = topics
        self._admin = admin

    @property
    def api(self) -> ApiHandler:
        """For the dispatcher."""
        return ApiHandler(ApiKey.DELETE_TOPICS, 1, 6, self.handle)

    async def handle(self, request: DeleteTopicsRequest, context: RequestContext) -> DeleteTopicsResponse:
        """One result per topic."""
        states = (
            request.topics
            if context.api_version >= STATES_VERSION_MIN
            else [DeleteTopicState(name=name) for name in request.topic_names]
        )
        deadline_ms = max(request.timeout_ms, 1)
        return DeleteTopicsResponse(
            responses=await asyncio.gather(*(self._delete(state, deadline_ms) for state in states))
        )

    async def _delete(self, state: DeleteTopicState, deadline_ms: int) -> DeletableTopicResult:
        by_id = state.topic_id != ZERO_UUID
        if by_id and state.name is not None:
            return _refused(
                state, ErrorCode.INVALID_REQUEST, "a topic is named by its name or by its id, not by both"
            )
        row = self._topics.by_id(state.topic_id) if by_id else self._topics.by_name(state.name or "")
        if row is None:
            code = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return _refused(state, code, "there is no such topic")
        try:
            await self._admin.delete(row.topic_id, deadline_ms=deadline_ms)
        except PartitionError as error:
            return _refused(state, error.code, str(error))
        return DeletableTopicResult(name=row.name, topic_id=row.topic_id)


def _refused(state: DeleteTopicState, code: ErrorCode, message: str) -> DeletableTopicResult:
    return DeletableTopicResult(
        name=state.name, topic_id=state.topic_id, error_code=code, error_message=message
    )
