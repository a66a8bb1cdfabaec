"""AlterPartitionReassignments and ListPartitionReassignments: moves of partitions (KIP-455).

A partition has one replica, its leader, so a reassignment names one broker. Null cancels a move,
and a new target replaces the former one. The controller and both brokers execute the move
(docs/design/moves-and-failover.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

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
from ponor_broker.requests.request_rows import check_rows

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
        check_rows(sum(len(topic.partitions) for topic in request.topics))
        response = AlterPartitionReassignmentsResponse(
            allow_replication_factor_change=request.allow_replication_factor_change, error_message=None
        )
        moves: dict[PartitionKey, NodeId] = {}
        cancels: dict[PartitionKey, None] = {}
        rows: list[tuple[ReassignablePartitionResponse, PartitionKey]] = []
        topics: list[ReassignableTopicResponse] = []
        for topic in request.topics:
            answers = [
                ReassignablePartitionResponse(each.partition_index, error_message=None)
                for each in topic.partitions
            ]
            topics.append(ReassignableTopicResponse(topic.name, answers))
            for wanted, row in zip(topic.partitions, answers, strict=True):
                try:
                    rows.append((row, self._sort(topic.name, wanted, moves, cancels)))
                except PartitionError as error:
                    _refuse(row, error)
        try:
            refused = await self._carry_out(moves, cancels, max(request.timeout_ms, TIMEOUT_MS_MIN))
        except OperationError as error:
            response.error_code, response.error_message = ErrorCode.INVALID_REQUEST, error.message
            return response
        except (OperationTimeoutError, MetadataLagError, SessionClosedError) as error:
            response.error_code, response.error_message = ErrorCode.REQUEST_TIMED_OUT, str(error)
            return response
        for row, key in rows:
            if key in refused:
                _refuse(row, refused[key])
        response.responses = topics
        return response

    def _sort(
        self,
        topic: str,
        wanted: ReassignablePartition,
        moves: dict[PartitionKey, NodeId],
        cancels: dict[PartitionKey, None],
    ) -> PartitionKey:
        """Add the partition to moves or to cancels, or to neither if nothing changes. Return its key."""
        row = self._partition(topic, wanted.partition_index)
        key = (row.topic_id, row.partition)
        move = self._topics.image[MOVES].get(key)
        if wanted.replicas is None:
            if move is None:
                raise PartitionError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "")
            cancels[key] = None
            return key
        check_replicas(wanted.replicas, self._topics)
        if len(wanted.replicas) > 1:
            raise PartitionError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{len(wanted.replicas)} replicas of {topic}-{row.partition}: a partition has one broker,"
                " because the object store replicates the data; name one broker",
            )
        target_id = NodeId(wanted.replicas[0])
        if target_id != (row.leader_id if move is None else move.target_id):
            moves[key] = target_id
            if move is not None:
                cancels[key] = None
        return key

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
        self, moves: Mapping[PartitionKey, NodeId], cancels: Iterable[PartitionKey], deadline_ms: int
    ) -> dict[PartitionKey, PartitionError]:
        """Send cancels, then moves: a move to another target is cancelled before the new one begins. Return
        the refusals. If the partition is to move, the outcome of its cancel does not count.
        """
        outcomes: dict[PartitionKey, MoveOutcome] = {}
        back = [LedPartition(key) for key in cancels]
        if back:
            cancelled = await self._moves.cancel(back, REASON, deadline_ms=deadline_ms)
            outcomes.update(zip(cancels, cancelled, strict=True))
        away = [WantedMove(key, target_id) for key, target_id in moves.items()]
        if away:
            begun = await self._moves.move(
                away, cause=MoveCause.REQUEST, reason=REASON, deadline_ms=deadline_ms
            )
            outcomes.update(zip(moves, begun, strict=True))
        return {
            key: PartitionError(
                _CODES.get(outcome.code, ErrorCode.INVALID_REPLICA_ASSIGNMENT), outcome.message
            )
            for key, outcome in outcomes.items()
            if not outcome.is_done
        }

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
        check_rows(sum(len(asked.partition_indexes) for asked in wanted))
        for asked in wanted:
            row = self._topics.by_name(asked.name)
            if row is None:
                continue
            keys = [(row.topic_id, index) for index in dict.fromkeys(asked.partition_indexes)]
            rows = [one for key in keys if (one := moves.get(key)) is not None]
            if rows:
                found[row.name] = rows
        return found


def _refuse(row: ReassignablePartitionResponse, error: PartitionError) -> None:
    row.error_code, row.error_message = error.code, str(error) or None


def _ongoing(move: MoveRow) -> OngoingPartitionReassignment:
    """Describe a move as Kafka lists a replica that is replaced: new replicas first."""
    return OngoingPartitionReassignment(
        move.partition,
        replicas=[move.target_id, move.source_id],
        adding_replicas=[move.target_id],
        removing_replicas=[move.source_id],
    )
