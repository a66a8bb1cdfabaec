"""The APIs of the share coordinator (KIP-932). Brokers send them; `persister.py` of this broker calls the
handlers without a connection.

As in Kafka, an empty group id, or a topic without partitions, gets an answer without results.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol, TypeAlias, TypeVar
from uuid import UUID

from ponor_kafka.api import ApiKey
from ponor_kafka.errors import ErrorCode
from ponor_kafka.message import Message
from ponor_kafka.messages import delete_share_group_state as deletion
from ponor_kafka.messages import initialize_share_group_state as initialization
from ponor_kafka.messages import read_share_group_state as reading
from ponor_kafka.messages import read_share_group_state_summary as summing
from ponor_kafka.messages import write_share_group_state as writing
from ponor_runtime.clock import Clock
from ponor_runtime.turns import TurnBudget

from ponor_broker.coordination.share_persister import DeliveryState, SharePartitionKey, StateBatch
from ponor_broker.requests.api_handler import ApiHandler, Handle, RequestContext, WhenFenced
from ponor_broker.requests.bounded_gather import bounded_gather
from ponor_broker.requests.request_rows import check_rows
from ponor_broker.share_state.coordinator import ShareCoordinator
from ponor_broker.share_state.transitions import BATCHES_MAX, WriteRequest

_TURN_NS_MAX: Final = 4_000_000
"""A turn of the event loop begins no further partition after this time."""
_TURN_PARTITIONS_MAX: Final = 64
ANSWER_BATCHES_MAX: Final = 5_000
"""Batches in the answer to a read, which is decoded in one turn of the event loop. Partitions after the first
one that would exceed it get a retriable error."""
_STATES: Final = {int(state): state for state in DeliveryState if state is not DeliveryState.ACQUIRED}
P_co = TypeVar("P_co", covariant=True)
R = TypeVar("R")


class _Topic(Protocol[P_co]):
    """A topic of a request."""

    @property
    def topic_id(self) -> bytes: ...

    @property
    def partitions(self) -> Sequence[P_co]: ...


class _Partition(Protocol):
    """A partition of a request."""

    @property
    def partition(self) -> int: ...


Q = TypeVar("Q", bound=_Partition)
Ask: TypeAlias = Callable[[SharePartitionKey, Q], Awaitable[R]]
Results: TypeAlias = list[tuple[bytes, list[R]]]


class ShareStateHandlers:
    """Translate between the wire and the coordinator, one partition at a time."""

    def __init__(self, coordinator: ShareCoordinator, clock: Clock) -> None:
        self._coordinator = coordinator
        self._turn = TurnBudget(clock, count_max=_TURN_PARTITIONS_MAX, duration_ns_max=_TURN_NS_MAX)

    def handlers(self) -> list[ApiHandler]:
        """Return the five APIs."""
        refuses = WhenFenced.REFUSES
        return [
            ApiHandler(ApiKey.INITIALIZE_SHARE_GROUP_STATE, 0, 0, _handle(self.initialize), refuses),
            ApiHandler(ApiKey.READ_SHARE_GROUP_STATE, 0, 0, _handle(self.read), refuses),
            ApiHandler(ApiKey.WRITE_SHARE_GROUP_STATE, 0, 1, _handle(self.write), refuses),
            ApiHandler(ApiKey.DELETE_SHARE_GROUP_STATE, 0, 0, _handle(self.delete), refuses),
            ApiHandler(ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, 0, 1, _handle(self.summary), refuses),
        ]

    async def initialize(
        self, request: initialization.InitializeShareGroupStateRequest
    ) -> initialization.InitializeShareGroupStateResponse:
        """Create states."""

        async def ask(
            key: SharePartitionKey, row: initialization.PartitionData
        ) -> initialization.PartitionResult:
            error = await self._coordinator.initialize(key, row.state_epoch, row.start_offset)
            return initialization.PartitionResult(row.partition, error, _message(error))

        found = await self._each(request.group_id, [one for one in request.topics if one.partitions], ask)
        return initialization.InitializeShareGroupStateResponse(
            [initialization.InitializeStateResult(topic_id, rows) for topic_id, rows in found]
        )

    async def read(self, request: reading.ReadShareGroupStateRequest) -> reading.ReadShareGroupStateResponse:
        """Return states, and fence older leaders."""
        answered = 0

        async def ask(key: SharePartitionKey, row: reading.PartitionData) -> reading.PartitionResult:
            state = await self._coordinator.read(key, row.leader_epoch)
            nonlocal answered
            if not isinstance(state, ErrorCode):
                is_full = answered + len(state.batches) > ANSWER_BATCHES_MAX
                state = ErrorCode.COORDINATOR_NOT_AVAILABLE if answered and is_full else state
            if isinstance(state, ErrorCode):
                return reading.PartitionResult(row.partition, state, _message(state))
            answered += len(state.batches)
            batches = [reading.StateBatch(*batch) for batch in state.batches]
            return reading.PartitionResult(
                row.partition, ErrorCode.NONE, None, state.state_epoch, state.start_offset, batches
            )

        found = await self._each(request.group_id, request.topics, ask)
        return reading.ReadShareGroupStateResponse(
            [reading.ReadStateResult(topic_id, rows) for topic_id, rows in found]
        )

    async def write(
        self, request: writing.WriteShareGroupStateRequest
    ) -> writing.WriteShareGroupStateResponse:
        """Merge batches into states."""
        check_rows(sum(len(row.state_batches) for topic in request.topics for row in topic.partitions))

        async def ask(key: SharePartitionKey, row: writing.PartitionData) -> writing.PartitionResult:
            batches = _batches(row.state_batches)
            if batches is None:
                error = ErrorCode.INVALID_REQUEST
            else:
                write = WriteRequest(
                    row.state_epoch,
                    row.leader_epoch,
                    row.start_offset,
                    row.delivery_complete_count,
                    batches,
                )
                error = await self._coordinator.write(key, write)
            return writing.PartitionResult(row.partition, error, _message(error))

        found = await self._each(request.group_id, request.topics, ask)
        return writing.WriteShareGroupStateResponse(
            [writing.WriteStateResult(topic_id, rows) for topic_id, rows in found]
        )

    async def delete(
        self, request: deletion.DeleteShareGroupStateRequest
    ) -> deletion.DeleteShareGroupStateResponse:
        """Delete states."""

        async def ask(key: SharePartitionKey, row: deletion.PartitionData) -> deletion.PartitionResult:
            error = await self._coordinator.delete(key)
            return deletion.PartitionResult(row.partition, error, _message(error))

        found = await self._each(request.group_id, request.topics, ask)
        return deletion.DeleteShareGroupStateResponse(
            [deletion.DeleteStateResult(topic_id, rows) for topic_id, rows in found]
        )

    async def summary(
        self, request: summing.ReadShareGroupStateSummaryRequest
    ) -> summing.ReadShareGroupStateSummaryResponse:
        """Return epochs and offsets of states."""

        async def ask(key: SharePartitionKey, row: summing.PartitionData) -> summing.PartitionResult:
            state = self._coordinator.summary(key)
            if isinstance(state, ErrorCode):
                return summing.PartitionResult(row.partition, state, _message(state))
            return summing.PartitionResult(
                row.partition,
                ErrorCode.NONE,
                None,
                state.state_epoch,
                max(state.leader_epoch, 0),  # as in Kafka, before the first read
                state.start_offset,
                state.delivery_complete_count,
            )

        found = await self._each(request.group_id, request.topics, ask)
        return summing.ReadShareGroupStateSummaryResponse(
            [summing.ReadStateSummaryResult(topic_id, rows) for topic_id, rows in found]
        )

    async def _each(self, group_id: str, topics: Sequence[_Topic[Q]], ask: Ask[Q, R]) -> Results[R]:
        """Return the results by topic, in the order of the request."""
        check_rows(sum(1 + len(topic.partitions) for topic in topics))
        if not group_id or not all(topic.partitions for topic in topics):
            return []

        async def asked(topic_id: bytes, row: Q) -> R:
            await self._turn.wait()
            self._turn.spend()
            return await ask(SharePartitionKey(group_id, UUID(bytes=bytes(topic_id)), row.partition), row)

        found = iter(
            await bounded_gather(asked(topic.topic_id, row) for topic in topics for row in topic.partitions)
        )
        return [(topic.topic_id, [next(found) for _ in topic.partitions]) for topic in topics]


def _handle(answer: Callable[[Any], Awaitable[Message]]) -> Handle:
    async def handle(request: Message, _: RequestContext) -> Message:
        return await answer(request)

    return handle


def _message(error: ErrorCode) -> str | None:
    return None if error is ErrorCode.NONE else error.meaning


def _batches(rows: Sequence[writing.StateBatch]) -> list[StateBatch] | None:
    """Return the batches of a write; None if one of them is invalid, or there are too many."""
    if len(rows) > BATCHES_MAX:
        return None
    batches: list[StateBatch] = []
    for row in rows:
        state = _STATES.get(row.delivery_state)
        if state is None or not 0 <= row.first_offset <= row.last_offset or row.delivery_count < 0:
            return None
        batches.append(StateBatch(row.first_offset, row.last_offset, state, row.delivery_count))
    return batches
