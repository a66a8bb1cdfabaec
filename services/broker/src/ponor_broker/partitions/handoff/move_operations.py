"""Operations on moves, sent to the controller: begin, cancel, complete.

The controller decides whether a move may begin or end. `handlers.topics` translates the answers for
clients.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Final, NamedTuple, Protocol

from ponor.common.v1 import error_pb2
from ponor.controller.v1.session_service_pb2 import (
    CancelMoves,
    CloseStreams,
    ElectMoved,
    MovePartitions,
    MovesAnswered,
    Operation,
    OperationResult,
    PartitionMove,
    PartitionName,
    TrimStreams,
)
from ponor.controller.v1.session_service_pb2 import StreamState as WireState
from ponor_metadata.nouns.streams import StreamRow
from ponor_metadata.nouns.topics import MoveCause
from ponor_rpc.errors import OperationError
from ponor_runtime.identity import NodeId
from s3stream.ports import StreamState

from ponor_broker.partitions.identity import PartitionKey
from ponor_broker.partitions.topics.topic_admin import ImageProgress, Session

PARTITIONS_PER_OPERATION_MAX: Final = 1_000
STREAMS_PER_OPERATION_MAX: Final = 1_000
REASON_CHARACTERS_MAX: Final = 256


class MoveOutcome(NamedTuple):
    """Result for one partition; `code` is one of `ponor.common.v1.ErrorCode`, 0 for done."""

    code: int
    message: str

    @property
    def is_done(self) -> bool:
        """Whether the operation succeeded, now or before."""
        return self.code == error_pb2.ERROR_CODE_UNSPECIFIED


class WantedMove(NamedTuple):
    """A partition and its target broker."""

    key: PartitionKey
    target_id: NodeId


class LedPartition(NamedTuple):
    """A partition and the epoch at which the caller led it; 0: not checked."""

    key: PartitionKey
    leader_epoch: int = 0


class LeavingPartition(NamedTuple):
    """A partition that is completely uploaded: the ends of its streams, and the offsets from which
    the next leader must read them.
    """

    name: LedPartition
    ends: Sequence[StreamState]
    starts: Sequence[StreamState]


class OrderedSession(Session, Protocol):
    """The part of the session client that `MoveOperations` uses."""

    def submit_in_order(
        self, operations: Sequence[Operation]
    ) -> Awaitable[list[OperationResult | OperationError]]:
        """Execute operations in order; see `ponor_metadata.client.session.SessionClient`."""
        ...


class MoveController(Protocol):
    """The part of `MoveOperations` that the handoff source and the handoff target use."""

    def leave(self, leaving: Sequence[LeavingPartition]) -> Awaitable[list[MoveOutcome]]: ...

    def cancel(self, partitions: Sequence[LedPartition], reason: str) -> Awaitable[list[MoveOutcome]]: ...


class MoveOperations:
    """All methods raise the session's errors: OperationError, OperationTimeoutError,
    SessionClosedError, NodeFencedError.
    """

    def __init__(self, session: OrderedSession, progress: ImageProgress) -> None:
        self._session = session
        self._progress = progress

    async def move(
        self, moves: Sequence[WantedMove], *, cause: MoveCause, reason: str, deadline_ms: int
    ) -> list[MoveOutcome]:
        """Begin moves; return when this broker's image shows those that began."""
        outcomes: list[MoveOutcome] = []
        for at in range(0, len(moves), PARTITIONS_PER_OPERATION_MAX):
            body = MovePartitions(
                moves=[
                    PartitionMove(topic_id=topic_id, partition=index, target_id=target_id)
                    for (topic_id, index), target_id in moves[at : at + PARTITIONS_PER_OPERATION_MAX]
                ],
                cause=int(cause),  # type: ignore[arg-type]  # the wire's enum has the same numbers
                reason=reason[:REASON_CHARACTERS_MAX],
            )
            outcomes += await self._ask(Operation(move_partitions=body), deadline_ms)
        return outcomes

    async def cancel(
        self, partitions: Sequence[LedPartition], reason: str, *, deadline_ms: int | None = None
    ) -> list[MoveOutcome]:
        """Cancel moves; return when this broker's image shows it."""
        outcomes: list[MoveOutcome] = []
        for at in range(0, len(partitions), PARTITIONS_PER_OPERATION_MAX):
            names = _names(partitions[at : at + PARTITIONS_PER_OPERATION_MAX])
            body = CancelMoves(partitions=names, reason=reason[:REASON_CHARACTERS_MAX])
            outcomes += await self._ask(Operation(cancel_moves=body), deadline_ms)
        return outcomes

    async def leave(self, leaving: Sequence[LeavingPartition]) -> list[MoveOutcome]:
        """Trim, close and elect, in this order (at most 1,000 partitions); return the results of
        the elections.

        The trims only save the next leader unneeded reads, so their results are ignored. An operation closes
        all of its streams or none. The controller elects no leader for a partition whose streams stay open.
        If the partition's move was cancelled, its outcome is NO_MOVE, and this broker's image shows at the
        return which streams were closed.

        Raises:
            MetadataLagError: the image did not show that in time.
        """
        assert 0 < len(leaving) <= PARTITIONS_PER_OPERATION_MAX
        operations = [_trim(leaving)] if any(one.starts for one in leaving) else []
        ends = [state for one in leaving for state in one.ends]
        for at in range(0, len(ends), STREAMS_PER_OPERATION_MAX):
            states = [wire_state(state) for state in ends[at : at + STREAMS_PER_OPERATION_MAX]]
            operations.append(Operation(close_streams=CloseStreams(streams=states)))
        body = ElectMoved(partitions=_names([one.name for one in leaving]))
        operations.append(Operation(elect_moved=body))
        results = await self._session.submit_in_order(operations)
        result = results[-1]
        if isinstance(result, OperationError):
            raise result
        outcomes = _outcomes(result)
        if any(outcome.code == error_pb2.ERROR_CODE_NO_MOVE for outcome in outcomes):
            # The caller checks in the image whether the streams are closed, so it must show the
            # effects of all of these operations.
            done = [one.commit_index for one in results if not isinstance(one, OperationError)]
            await self._progress.wait_for(max(done))
        return outcomes

    async def _ask(self, operation: Operation, deadline_ms: int | None) -> list[MoveOutcome]:
        result = await self._session.submit(operation, deadline_ms=deadline_ms)
        await self._progress.wait_for(result.commit_index, deadline_ms)
        return _outcomes(result)


def shows_open(rows: Sequence[StreamRow], ends: Sequence[StreamState]) -> bool:
    """Return whether all of these streams are among the rows of the image, at the same epochs and ends:
    no CloseStreams took effect.
    """
    shown = {row.stream_id: (row.stream_epoch, row.end_offset) for row in rows}
    return all(shown.get(end.stream_id) == (end.epoch, end.end_offset) for end in ends)


def _names(partitions: Sequence[LedPartition]) -> list[PartitionName]:
    return [
        PartitionName(topic_id=topic_id, partition=index, leader_epoch=leader_epoch)
        for (topic_id, index), leader_epoch in partitions
    ]


def _trim(leaving: Sequence[LeavingPartition]) -> Operation:
    states = [wire_state(state) for one in leaving for state in one.starts]
    return Operation(trim_streams=TrimStreams(streams=states[:STREAMS_PER_OPERATION_MAX]))


def wire_state(state: StreamState) -> WireState:
    """Return the wire form of a stream's state."""
    return WireState(
        stream_id=state.stream_id,
        stream_epoch=state.epoch,
        start_offset=state.start_offset,
        end_offset=state.end_offset,
    )


def _outcomes(result: OperationResult) -> list[MoveOutcome]:
    answered: MovesAnswered = result.moves_answered
    return [MoveOutcome(error.code, error.message) for error in answered.outcomes]
