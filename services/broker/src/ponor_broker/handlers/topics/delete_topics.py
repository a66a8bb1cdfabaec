"""DeleteTopics, by name and by id (KIP-516).

The controller removes a topic with its streams and objects in one step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ponor_kafka.errors import ErrorCode
from ponor_kafka.message import ZERO_UUID
from ponor_kafka.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)

from ponor_broker.partitions.errors import PartitionError
from ponor_broker.partitions.topics.topic_admin import TopicAdmin
from ponor_broker.partitions.topics.topics import Topics
from ponor_broker.requests.api_handler import RequestContext
from ponor_broker.requests.bounded_gather import bounded_gather

STATES_VERSION_MIN = 6


class DeleteTopicsHandler:
    """Sends one operation per topic."""

    def __init__(self, topics: Topics, admin: TopicAdmin) -> None:
        self._topics = topics
        self._admin = admin

    async def handle(self, request: DeleteTopicsRequest, context: RequestContext) -> DeleteTopicsResponse:
        """Return one result per topic; a topic that is named twice is not deleted."""
        states = (
            request.topics
            if context.api_version >= STATES_VERSION_MIN
            else [DeleteTopicState(name=name) for name in request.topic_names]
        )
        once, repeated = self._separate(states)
        deadline_ms = max(request.timeout_ms, 1)
        deleted = await bounded_gather(self._delete(state, deadline_ms) for state in once)
        return DeleteTopicsResponse(responses=[*repeated, *deleted])

    def _separate(
        self, states: Sequence[DeleteTopicState]
    ) -> tuple[list[DeleteTopicState], list[DeletableTopicResult]]:
        """Return the topics that are named once, and refusals for those named more often, by name or id."""
        times = Counter((state.name, state.topic_id) for state in states)
        named: dict[str | None, bytes] = {
            state.name: row.topic_id
            for state in states
            if state.name is not None and (row := self._topics.by_name(state.name)) is not None
        }
        given_ids = {state.topic_id for state in states}
        once: list[DeleteTopicState] = []
        repeated: list[DeletableTopicResult] = []
        for (name, topic_id), count in times.items():
            state = DeleteTopicState(name, topic_id)
            if count > 1:
                what = "name" if topic_id == ZERO_UUID else "id"
                repeated.append(_refused(state, ErrorCode.INVALID_REQUEST, f"Duplicate topic {what}."))
            elif topic_id == ZERO_UUID and named.get(name) in given_ids:
                state.topic_id = named[name]
                problem = "The provided topic name maps to an ID that was already supplied."
                repeated.append(_refused(state, ErrorCode.INVALID_REQUEST, problem))
            elif name is not None or topic_id not in named.values():
                once.append(state)
        return once, repeated

    async def _delete(self, state: DeleteTopicState, deadline_ms: int) -> DeletableTopicResult:
        by_id = state.topic_id != ZERO_UUID
        if by_id == (state.name is not None):
            problem = (
                "You may not specify both topic name and topic id."
                if by_id
                else "Neither topic name nor id were specified."
            )
            return _refused(state, ErrorCode.INVALID_REQUEST, problem)
        row = self._topics.by_id(state.topic_id) if by_id else self._topics.by_name(state.name or "")
        if row is None:
            code = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return _refused(state, code, "There is no such topic.")
        try:
            await self._admin.delete(row.topic_id, deadline_ms=deadline_ms)
        except PartitionError as error:
            return _refused(state, error.code, str(error))
        return DeletableTopicResult(name=row.name, topic_id=row.topic_id, error_message=None)


def _refused(state: DeleteTopicState, code: ErrorCode, message: str) -> DeletableTopicResult:
    return DeletableTopicResult(
        name=state.name, topic_id=state.topic_id, error_code=code, error_message=message
    )
