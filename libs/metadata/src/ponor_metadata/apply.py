"""Apply: records become rows, deterministically, by the same code on every process.

What lives here: the dispatch from record kind to its rule. The rules stand in apply_cluster (cluster, nodes, keys, topics, results),
apply_quorum, apply_streams, apply_objects, apply_moves, apply_wals, apply_compactions and apply_snapshots. A rule trusts the leader, which validated the request; its asserts state what validation promised, so that
a broken promise stops the process instead of spreading. No rule reads a clock or anything else outside of view and record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from ponor.metadata.v1.records_pb2 import Record, RecordBatch

from ponor_metadata import (
    apply_cluster,
    apply_compactions,
    apply_moves,
    apply_objects,
    apply_quorum,
    apply_snapshots,
    apply_streams,
    apply_wals,
)
from ponor_metadata.view import View

Rule = Callable[[View, Any], None]


class UnknownRecordError(Exception):
    """A record kind that this build does not know: it is older than the log's feature level, and must not run."""


RULES: Final[Mapping[str, Rule]] = {
    "cluster_formatted": apply_cluster.cluster_formatted,
    "feature_level_set": apply_cluster.feature_level_set,
    "tenant_created": apply_cluster.tenant_created,
    "cluster_stop_announced": apply_cluster.cluster_stop_announced,
    "balancer_paused": apply_cluster.balancer_paused,
    "node_registered": apply_cluster.node_registered,
    "node_fenced": apply_cluster.node_fenced,
    "node_drain_set": apply_moves.node_drain_set,
    "node_unregistered": apply_cluster.node_unregistered,
    "stream_created": apply_streams.stream_created,
    "stream_opened": apply_streams.stream_opened,
    "stream_closed": apply_streams.stream_closed,
    "stream_trimmed": apply_streams.stream_trimmed,
    "stream_deleted": apply_streams.stream_deleted,
    "objects_prepared": apply_objects.objects_prepared,
    "stream_object_committed": apply_objects.stream_object_committed,
    "stream_set_object_committed": apply_objects.stream_set_object_committed,
    "objects_destroyed": apply_objects.objects_destroyed,
    "objects_claimed": apply_objects.objects_claimed,
    "objects_removed": apply_objects.objects_removed,
    "key_put": apply_cluster.key_put,
    "key_deleted": apply_cluster.key_deleted,
    "topic_created": apply_cluster.topic_created,
    "topic_deleted": apply_cluster.topic_deleted,
    "partition_changed": apply_cluster.partition_changed,
    "topic_configs_set": apply_cluster.topic_configs_set,
    "broker_configs_set": apply_cluster.broker_configs_set,
    "partition_move_begun": apply_moves.partition_move_begun,
    "partition_move_cancelled": apply_moves.partition_move_cancelled,
    "producer_ids_allocated": apply_cluster.producer_ids_allocated,
    "operation_completed": apply_cluster.operation_completed,
    "voters_set": apply_quorum.voters_set,
    "incarnation_raised": apply_quorum.incarnation_raised,
    "incarnation_confirmed": apply_quorum.incarnation_confirmed,
    "wal_opened": apply_wals.wal_opened,
    "wal_trimmed": apply_wals.wal_trimmed,
    "wal_recovery_assigned": apply_wals.wal_recovery_assigned,
    "wal_closed": apply_wals.wal_closed,
    "compaction_leased": apply_compactions.compaction_leased,
    "compaction_renewed": apply_compactions.compaction_renewed,
    "compaction_ended": apply_compactions.compaction_ended,
    "snapshot_leased": apply_snapshots.snapshot_leased,
    "snapshot_renewed": apply_snapshots.snapshot_renewed,
    "snapshot_released": apply_snapshots.snapshot_released,
    "streams_reclaimed": apply_streams.streams_reclaimed,
    "topic_purged": apply_cluster.topic_purged,
    "orphans_found": apply_cluster.orphans_found,
}
"""By name of the `kind` oneof of ponor.metadata.v1.Record."""


def apply_batch(view: View, batch: RecordBatch) -> None:
    """Apply all records of the next batch.

    Raises:
        UnknownRecordError: a record kind is unknown; nothing of the batch was applied.
        AssertionError: the batch breaks an invariant; the view is of no use any more.
    """
    rules = [(_rule_of(record.WhichOneof("kind"), batch.index), record) for record in batch.records]
    require_next(view, batch)
    view.begin(batch)
    for (kind, rule), record in rules:
        rule(view, getattr(record, kind))


def apply_records(view: View, records: Iterable[Record]) -> None:
    """Apply records to a view that is as of their batch already: what `apply_batch` does after it began.

    Raises:
        UnknownRecordError, AssertionError: as `apply_batch`.
    """
    for record in records:
        kind = record.WhichOneof("kind")
        if kind is None or kind not in RULES:
            raise _unknown(kind, view.index)
        RULES[kind](view, getattr(record, kind))


def require_next(view: View, batch: RecordBatch) -> None:
    """Check that a batch follows what the view shows.

    Raises:
        AssertionError: it does not.
    """
    assert batch.index == view.index + 1, f"batch {batch.index} does not follow {view.index}"
    assert batch.cluster_time_ms >= view.cluster_time_ms, f"batch {batch.index}: the cluster clock went back"


def _rule_of(kind: str | None, index: int) -> tuple[str, Rule]:
    # A record of a newer kind decodes as a record without a kind: protobuf keeps the field as unknown.
    if kind is None or kind not in RULES:
        raise _unknown(kind, index)
    return kind, RULES[kind]


def _unknown(kind: str | None, index: int) -> UnknownRecordError:
    return UnknownRecordError(
        f"batch {index} holds a record of kind {kind or 'unknown'!r}; run a build that knows the log's feature level"
    )
