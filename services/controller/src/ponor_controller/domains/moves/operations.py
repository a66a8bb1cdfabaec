"""Operations on moves: begin, cancel, elect.

Each partition of an operation succeeds or fails separately. Only a malformed operation is refused
as a whole. `duty` ends moves that no request ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from ponor.common.v1 import error_pb2
from ponor.controller.v1 import session_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_metadata.nouns.nodes import NODES, NodeRole
from ponor_metadata.nouns.topics import MOVES, PARTITIONS, MoveCause, MoveRow, PartitionRow
from ponor_rpc.errors import OperationError
from ponor_runtime.identity import NodeId

from ponor_controller.domains.moves import rules
from ponor_controller.kernel.decisions import (
    Decision,
    Situation,
    invalid,
    refuse,
    require_count,
    require_role,
)
from ponor_controller.shared_rules import move_records
from ponor_controller.shared_rules.placement import is_live

MOVES_PER_OPERATION_MAX: Final = 1_000


def move_partitions(body: wire.MovePartitions, situation: Situation) -> Decision:
    """Begin moves. A request to move a partition to its present leader cancels the partition's move."""
    _check_operation(((move.topic_id, move.partition) for move in body.moves), len(body.moves), situation)
    _check_reason(body.reason)
    cause = _cause(body.cause)
    waves: dict[NodeId, int] = {}

    def begin(move: wire.PartitionMove) -> records_pb2.Record | None:
        partition = _require_partition(move.topic_id, move.partition, situation)
        target_id = NodeId(move.target_id)
        present = situation.view[MOVES].get((partition.topic_id, partition.partition))
        if target_id == partition.leader_id:
            return (
                None
                if present is None
                else _keep(present, "a request to move the partition to its present leader", situation)
            )
        if present is not None:
            if present.target_id == target_id:
                return None
            raise refuse(
                error_pb2.ERROR_CODE_MOVE_UNDER_WAY,
                f"{_name(partition)} is moving to broker {present.target_id}; wait, or cancel that move"
                " first",
            )
        _require_leader(partition, situation)
        _require_target(target_id, situation)
        source_id = partition.leader_id
        also = waves[source_id] = waves.get(source_id, -1) + 1
        return move_records.begun(
            partition,
            target_id,
            now_ms=situation.now_ms,
            elect_at_ms=move_records.elect_at_ms(
                situation.view, source_id, situation.now_ms, situation.settings, also=also
            ),
            cause=cause,
            reason=body.reason,
            traceparent=situation.traceparent,
        )

    return _each(body.moves, begin)


def cancel_moves(body: wire.CancelMoves, situation: Situation) -> Decision:
    """Cancel moves: the sources keep their partitions."""
    _check_operation(
        ((each.topic_id, each.partition) for each in body.partitions), len(body.partitions), situation
    )
    _check_reason(body.reason)

    def cancel(wanted: wire.PartitionName) -> records_pb2.Record:
        partition = _require_partition(wanted.topic_id, wanted.partition, situation)
        move = situation.view[MOVES].get((partition.topic_id, partition.partition))
        if move is None or wanted.leader_epoch not in (0, partition.leader_epoch):
            raise refuse(
                error_pb2.ERROR_CODE_NO_MOVE,
                f"{_name(partition)} is not moving; broker {partition.leader_id} leads it at epoch"
                f" {partition.leader_epoch}",
            )
        return _keep(move, body.reason, situation)

    return _each(body.partitions, cancel)


def elect_moved(body: wire.ElectMoved, situation: Situation) -> Decision:
    """Elect the target after the source closed the streams.

    If the move was cancelled while the source closed the streams, the source is elected again, because closed
    streams can only be opened at a new epoch.
    """
    _check_operation(
        ((each.topic_id, each.partition) for each in body.partitions), len(body.partitions), situation
    )

    def elect(wanted: wire.PartitionName) -> records_pb2.Record | None:
        partition = _require_partition(wanted.topic_id, wanted.partition, situation)
        if partition.leader_epoch > wanted.leader_epoch:
            return None
        caller_id = situation.caller.node_id
        if (partition.leader_id, partition.leader_epoch) != (caller_id, wanted.leader_epoch):
            raise invalid(
                f"{_name(partition)} is led by broker {partition.leader_id} at epoch"
                f" {partition.leader_epoch}; "
                f"broker {caller_id} cannot give it up at epoch {wanted.leader_epoch}"
            )
        move = situation.view[MOVES].get((partition.topic_id, partition.partition))
        _require_closed(partition, move, situation)
        if move is None:
            return move_records.elected(situation.view, partition, caller_id, situation.traceparent)
        leader_id = rules.leader_to_elect(
            situation.view, (move.target_id, move.source_id), situation.is_suspected
        )
        return move_records.elected(
            situation.view,
            partition,
            caller_id if leader_id is None else leader_id,
            move.traceparent or situation.traceparent,
        )

    return _each(body.partitions, elect)


def _each(
    wanted: Iterable[wire.PartitionMove] | Iterable[wire.PartitionName],
    decide: Callable[..., records_pb2.Record | None],
) -> Decision:
    """Decide on each partition separately: a record, nothing, or an error in the answer."""
    decision = Decision(divisible=True)
    answered = wire.MovesAnswered()
    for each in wanted:
        try:
            record = decide(each)
        except OperationError as error:
            answered.outcomes.append(error.to_proto())
            continue
        answered.outcomes.add()
        if record is not None:
            decision.records.append(record)
    decision.result = wire.OperationResult(moves_answered=answered)
    return decision


def _check_operation(names: Iterable[tuple[bytes, int]], count: int, situation: Situation) -> None:
    require_role(situation, records_pb2.NODE_ROLE_BROKER)
    require_count(count, MOVES_PER_OPERATION_MAX, "partitions")
    if len(set(names)) != count:
        raise invalid("the operation names a partition twice; name it once")


def _check_reason(reason: str) -> None:
    if len(reason) > move_records.REASON_CHARACTERS_MAX:
        raise invalid(
            f"the reason has {len(reason)} characters; give at most {move_records.REASON_CHARACTERS_MAX}"
        )


def _cause(cause: int) -> MoveCause:
    try:
        return MoveCause(cause)
    except ValueError:
        raise invalid(f"unknown cause {cause} of a move") from None


def _require_partition(topic_id: bytes, number: int, situation: Situation) -> PartitionRow:
    partition = situation.view[PARTITIONS].get((topic_id, number))
    if partition is None:
        raise refuse(
            error_pb2.ERROR_CODE_TOPIC_NOT_FOUND,
            f"partition {number} of topic {topic_id.hex()} does not exist; it was deleted or never created",
        )
    return partition


def _require_leader(partition: PartitionRow, situation: Situation) -> None:
    """Require that the source is live, because no other broker can close the streams."""
    leader_id = partition.leader_id
    if not is_live(situation.view[NODES].get(leader_id), situation.is_suspected):
        raise refuse(
            error_pb2.ERROR_CODE_NO_BROKER,
            f"{_name(partition)} is led by broker {leader_id}, which is fenced or suspected; wait for the"
            " failover, or restart that broker",
        )


def _require_target(target_id: NodeId, situation: Situation) -> None:
    node = situation.view[NODES].get(target_id)
    if node is None or node.role is not NodeRole.BROKER:
        raise invalid(f"broker {target_id} is not registered")
    if not is_live(node, situation.is_suspected) or node.draining:
        state = "is draining" if node.draining else "is fenced or suspected"
        raise refuse(
            error_pb2.ERROR_CODE_NO_BROKER, f"broker {target_id} {state}; choose another, or try again later"
        )


def _require_closed(partition: PartitionRow, move: MoveRow | None, situation: Situation) -> None:
    stream = rules.open_stream(situation.view, partition.topic_id, partition.partition)
    if stream is None:
        return
    if move is None:
        raise refuse(
            error_pb2.ERROR_CODE_NO_MOVE,
            f"{_name(partition)} is not moving; broker {partition.leader_id} keeps it",
        )
    raise refuse(
        error_pb2.ERROR_CODE_MOVE_UNDER_WAY,
        f"{_name(partition)}: stream {stream.stream_id} is open at epoch {stream.stream_epoch} of node"
        f" {stream.node_id}; close it first",
    )


def _keep(move: MoveRow, reason: str, situation: Situation) -> records_pb2.Record:
    record = rules.keep_at_source(situation.view, move, reason, situation.is_suspected)
    if record is None:
        raise refuse(
            error_pb2.ERROR_CODE_NO_BROKER,
            f"partition {move.partition} of topic {move.topic_id.hex()}: no live broker can lead it; try"
            " again later",
        )
    return record


def _name(partition: PartitionRow) -> str:
    return f"partition {partition.partition} of topic {partition.topic_id.hex()}"
