"""AlterPartitionReassignments and ListPartitionReassignments: moves of partitions (KIP-455).

A partition has one replica, its leader, so a reassignment names one broker. Null cancels a move,
and a new target replaces the former one. The controller and both brokers execute the move
(docs/design/moves-and-failover.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeAlias

from ponor.common.v1 import error_pb2
from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from ponor_kafka.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListPartitionReassignmentsTopics,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from ponor_metadata.client.errors import MetadataLagError, OperationTimeoutError, SessionClosedError
from ponor_metadata.nouns.topics import MOVES, MoveCause, MoveRow, PartitionRow
from ponor_rpc.errors import OperationError
from ponor_runtime.identity import NodeId

from ponor_broker.handlers.topics.manual_assignment import check_replicas
from ponor_broker.partitions.errors import PartitionError
from ponor_broker.partitions.handoff.move_operations import (
    LedPartition,
    MoveOperations,
    MoveOutcome,
    WantedMove,
)
from ponor_broker.partitions.identity import PartitionKey
from ponor_broker.partitions.topics.topics import Topics
from ponor_broker.requests.api_handler import RequestContext

REASON: Final = "requested by a Kafka client"
TIMEOUT_MS_MIN: Final = 1
_CODES: Final[Mapping[int, ErrorCode]] = MappingProxyType(
    {
        error_pb2.ERROR_CODE_NO_MOVE: ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
        error_pb2.ERROR_CODE_MOVE_UNDER_WAY: ErrorCode.REASSIGNMENT_IN_PROGRESS,
        error_pb2.ERROR_CODE_TOPIC_NOT_FOUND: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""Translation of the controller's refusals; every other refusal concerns the requested broker."""

Refusals: TypeAlias = dict[PartitionKey, PartitionError]


class PartitionReassignmentsHandler:
    """Lists from the image; sends changes to the controller."""

    def __init__(self, topics: Topics, moves: MoveOperations) -> None:
        self._topics = topics
        self._moves = moves

    # Alter

    async def alter(
        self, request: AlterPartitionReassignmentsRequest, _: RequestContext
    ) -> AlterPartitionReassignmentsResponse:
        """Return a result per partition. A refused partition does not affect the others."""
        moves: dict[PartitionKey, NodeId] = {}
        cancels: dict[PartitionKey, None] = {}
        refusals: dict[tuple[str, int], PartitionError] = {}
        for topic in request.topics:
            for wanted in topic.partitions:
                try:
                    self._sort(topic.name, wanted, moves, cancels)
                except PartitionError as error:
                    refusals[topic.name, wanted.partition_index] = error
        code, message, refused = await self._carry_out(moves, cancels, request.timeout_ms)
        if code is not ErrorCode.NONE:
            return AlterPartitionReassignmentsResponse(
                allow_replication_factor_change=request.allow_replication_factor_change,
                error_code=code,
                error_message=message,
            )

        def answer(topic: str, index: int) -> ReassignablePartitionResponse:
            row = self._topics.by_name(topic)
            error = refusals.get((topic, index))
            if error is None and row is not None:
                error = refused.get((row.topic_id, index))
            if error is None:
                return ReassignablePartitionResponse(index, ErrorCode.NONE, None)
            return ReassignablePartitionResponse(index, error.code, str(error) or None)

        return AlterPartitionReassignmentsResponse(
            allow_replication_factor_change=request.allow_replication_factor_change,
            error_code=ErrorCode.NONE,
            error_message=None,
            responses=[
                ReassignableTopicResponse(
                    topic.name, [answer(topic.name, wanted.partition_index) for wanted in topic.partitions]
                )
                for topic in request.topics
            ],
        )

    def _sort(
        self,
        topic: str,
        wanted: ReassignablePartition,
        moves: dict[PartitionKey, NodeId],
        cancels: dict[PartitionKey, None],
    ) -> None:
        """Add the partition to moves or cancels; to neither if nothing changes."""
        row = self._partition(topic, wanted.partition_index)
        key = (row.topic_id, row.partition)
        move = self._topics.image[MOVES].get(key)
        if wanted.replicas is None:
            if move is None:
                raise PartitionError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "")
            cancels[key] = None
            return
        check_replicas(wanted.replicas, self._topics)
        if len(wanted.replicas) > 1:
            raise PartitionError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{len(wanted.replicas)} replicas of {topic}-{row.partition}: a partition has one broker, because the object store replicates; name one broker",
            )
        target_id = NodeId(wanted.replicas[0])
        if target_id != (row.leader_id if move is None else move.target_id):
            moves[key] = target_id
            if move is not None:
                cancels[key] = None

    def _partition(self, topic: str, index: int) -> PartitionRow:
        row = self._topics.by_name(topic)
        if row is None:
            raise PartitionError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {topic}."
            )
        partition = self._topics.partition(row.topic_id, index)
        if partition is None:
            raise PartitionError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {topic}:{index}."
            )
        return partition

    async def _carry_out(
        self, moves: Mapping[PartitionKey, NodeId], cancels: Iterable[PartitionKey], timeout_ms: int
    ) -> tuple[ErrorCode, str | None, Refusals]:
        """Send cancels, then moves: a move to another target is cancelled before the new one
        begins.
        """
        deadline_ms = max(timeout_ms, TIMEOUT_MS_MIN)
        refused: Refusals = {}
        try:
            back = [LedPartition(key) for key in cancels]
            outcomes = await self._moves.cancel(back, REASON, deadline_ms=deadline_ms) if back else []
            _note_refusals(refused, [key for key, _ in back if key not in moves], back, outcomes)
            away = [WantedMove(key, target_id) for key, target_id in moves.items()]
            outcomes = (
                await self._moves.move(away, cause=MoveCause.REQUEST, reason=REASON, deadline_ms=deadline_ms)
                if away
                else []
            )
            _note_refusals(refused, list(moves), away, outcomes)
        except OperationError as error:
            return ErrorCode.INVALID_REQUEST, error.message, {}
        except (OperationTimeoutError, MetadataLagError, SessionClosedError) as error:
            return ErrorCode.REQUEST_TIMED_OUT, str(error), {}
        return ErrorCode.NONE, None, refused

    # List

    async def ongoing(
        self, request: ListPartitionReassignmentsRequest, _: RequestContext
    ) -> ListPartitionReassignmentsResponse:
        """List the moves, of all topics or of the requested ones."""
        topics = [
            OngoingTopicReassignment(name, [_ongoing(move) for move in moves])
            for name, moves in self._moves_of(request.topics).items()
        ]
        return ListPartitionReassignmentsResponse(
            error_code=ErrorCode.NONE, error_message=None, topics=topics
        )

    def _moves_of(
        self, wanted: Sequence[ListPartitionReassignmentsTopics] | None
    ) -> dict[str, list[MoveRow]]:
        moves = self._topics.image[MOVES]
        found: dict[str, list[MoveRow]] = {}
        if wanted is None:
            for move in moves:
                topic = self._topics.by_id(move.topic_id)
                if topic is not None:
                    found.setdefault(topic.name, []).append(move)
            return found
        for asked in wanted:
            row = self._topics.by_name(asked.name)
            if row is None:
                continue
            keys = [(row.topic_id, index) for index in dict.fromkeys(asked.partition_indexes)]
            rows = [one for key in keys if (one := moves.get(key)) is not None]
            if rows:
                found[row.name] = rows
        return found


def _note_refusals(
    refused: Refusals,
    relevant: Sequence[PartitionKey],
    asked: Sequence[LedPartition] | Sequence[WantedMove],
    outcomes: Sequence[MoveOutcome],
) -> None:
    known = set(relevant)
    for (key, _), outcome in zip(asked, outcomes, strict=True):
        if key in known and not outcome.is_done:
            code = _CODES.get(outcome.code, ErrorCode.INVALID_REPLICA_ASSIGNMENT)
            refused[key] = PartitionError(code, outcome.message)


def _ongoing(move: MoveRow) -> OngoingPartitionReassignment:
    """Describe a move as Kafka lists a replica that is replaced: new replicas first."""
    return OngoingPartitionReassignment(
        move.partition,
        replicas=[move.target_id, move.source_id],
        adding_replicas=[move.target_id],
        removing_replicas=[move.source_id],
    )
