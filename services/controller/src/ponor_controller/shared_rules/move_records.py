"""Build the records of a move: begun, cancelled, ended by an election."""

from __future__ import annotations

from typing import Final

from ponor.metadata.v1 import records_pb2
from ponor_metadata.nouns.topics import MOVES, MOVES_FROM, MoveCause, MoveRow, PartitionRow, next_leader_epoch
from ponor_metadata.tables.schema import View
from ponor_runtime.identity import NodeId
from ponor_runtime.telemetry import Telemetry

from ponor_controller.settings import ControllerSettings

REASON_CHARACTERS_MAX: Final = 256


def elect_at_ms(
    view: View, source_id: NodeId, now_ms: int, settings: ControllerSettings, *, also: int = 0
) -> int:
    """Compute the cluster time at which the re-election timeout ends, for a move that begins now.

    `also` is the number of moves from the same source that begin before this one in the same batch. A source
    closes its partitions in waves, so each wave adds a timeout. Otherwise a source with many moves would
    count as stuck.
    """
    ahead = len(view[MOVES].find(MOVES_FROM, source_id)) + also
    return now_ms + settings.reelection_timeout_ms * (1 + ahead // settings.drain_moves_in_flight_max)


def begun(
    partition: PartitionRow,
    target_id: NodeId,
    *,
    now_ms: int,
    elect_at_ms: int,
    cause: MoveCause,
    reason: str,
    traceparent: str = "",
) -> records_pb2.Record:
    """The record that begins a move to the target."""
    assert len(reason) <= REASON_CHARACTERS_MAX
    record = records_pb2.PartitionMoveBegun(
        topic_id=partition.topic_id,
        partition=partition.partition,
        source_id=partition.leader_id,
        target_id=target_id,
        begun_at_ms=now_ms,
        elect_at_ms=elect_at_ms,
        cause=records_pb2.MoveCause.ValueType(cause),
        reason=reason,
        traceparent=traceparent,
    )
    return records_pb2.Record(partition_move_begun=record)


def cancelled(move: MoveRow, reason: str) -> records_pb2.Record:
    """The record that cancels a move: the source keeps the partition at its epoch."""
    assert len(reason) <= REASON_CHARACTERS_MAX
    record = records_pb2.PartitionMoveCancelled(
        topic_id=move.topic_id, partition=move.partition, reason=reason
    )
    return records_pb2.Record(partition_move_cancelled=record)


def elected(
    view: View, partition: PartitionRow, leader_id: NodeId, traceparent: str = ""
) -> records_pb2.Record:
    """The record that elects a leader at the next leader epoch. It ends a move of the partition."""
    record = records_pb2.PartitionChanged(
        topic_id=partition.topic_id,
        partition=partition.partition,
        leader_id=leader_id,
        leader_epoch=next_leader_epoch(view, partition),
        replicas=[leader_id],
        traceparent=traceparent,
    )
    return records_pb2.Record(partition_changed=record)


def current_traceparent(telemetry: Telemetry) -> str:
    """The traceparent of the current span, to be stored in a move; empty without tracing."""
    context = None if telemetry.tracing is None else telemetry.tracing.current()
    return "" if context is None else context.traceparent
