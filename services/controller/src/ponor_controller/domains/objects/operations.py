"""Operations at the beginning and the end of an object's life: prepare ids, claim garbage, confirm deletions.

`uploads` commits objects.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from ponor.common.v1 import error_pb2
from ponor.controller.v1 import session_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_metadata.nouns import counters
from ponor_metadata.nouns.cluster import cluster_of
from ponor_metadata.nouns.objects import OBJECTS, OBJECTS_WAITING, ObjectRow, ObjectState
from ponor_metadata.nouns.snapshot_leases import pinned_since_ms
from ponor_runtime.identity import ObjectId

from ponor_controller.kernel.decisions import (
    Decision,
    Situation,
    invalid,
    refuse,
    require_count,
    require_distinct,
    require_role,
)
from ponor_controller.kernel.operation import Caller

BUCKET_INDEX = 0
"""Index of the only bucket that can be configured at present."""


def prepare_objects(body: wire.PrepareObjects, situation: Situation) -> Decision:
    """Reserve a contiguous run of object ids for the caller at its node epoch, for a bounded time."""
    settings, caller = situation.settings, situation.caller
    if caller.role == records_pb2.NODE_ROLE_GC:
        raise invalid(f"node {caller.node_id} is a garbage collector and must not write objects")
    require_count(body.count, settings.prepared_count_max, "object ids")
    if body.ttl_ms < 1:
        raise invalid(f"ttl_ms is {body.ttl_ms}; it must be at least 1")
    expires_at_ms = situation.now_ms + min(body.ttl_ms, settings.prepared_ttl_ms_max)
    cluster = cluster_of(situation.view)
    assert cluster is not None
    first = counters.next_value(situation.view, counters.OBJECT)
    prepared = records_pb2.ObjectsPrepared(
        first_object_id=first,
        count=body.count,
        node_id=caller.node_id,
        node_epoch=caller.node_epoch,
        expires_at_ms=expires_at_ms,
        bucket_index=BUCKET_INDEX,
        namespace=cluster.namespace,
    )
    reserved = wire.ObjectsReserved(
        first_object_id=first,
        count=body.count,
        expires_at_ms=expires_at_ms,
        namespace=cluster.namespace,
        bucket_index=BUCKET_INDEX,
    )
    return Decision(
        [records_pb2.Record(objects_prepared=prepared)],
        wire.OperationResult(objects_reserved=reserved),
        rows=body.count,
    )


def claim_objects(body: wire.ClaimObjects, situation: Situation) -> Decision:
    """Claim garbage objects for deletion. If none is due, no record is written, so an idle log does not grow.

    No object is due while a forced recovery is unconfirmed, because lost entries of the log may refer to it.
    """
    require_role(situation, records_pb2.NODE_ROLE_GC)
    settings = situation.settings
    require_count(body.limit, settings.claim_count_max, "objects")
    if body.ttl_ms < 1:
        raise invalid(f"ttl_ms is {body.ttl_ms}; it must be at least 1")
    claimed_until_ms = situation.now_ms + min(body.ttl_ms, settings.claim_ttl_ms_max)
    cluster = cluster_of(situation.view)
    assert cluster is not None
    rows = [] if cluster.incarnation_unconfirmed else list(islice(_due_objects(situation), body.limit))
    granted = wire.ObjectsGranted(claimed_until_ms=claimed_until_ms)
    for row in rows:
        granted.objects.add(object_id=row.object_id, namespace=row.namespace, bucket_index=row.bucket_index)
    records = [_claim_record(rows, claimed_until_ms, situation.caller)] if rows else []
    return Decision(records, wire.OperationResult(objects_granted=granted), rows=len(rows))


def _claim_record(rows: Sequence[ObjectRow], until_ms: int, caller: Caller) -> records_pb2.Record:
    claimed = records_pb2.ObjectsClaimed(
        object_ids=[row.object_id for row in rows],
        node_id=caller.node_id,
        node_epoch=caller.node_epoch,
        claimed_until_ms=until_ms,
    )
    return records_pb2.Record(objects_claimed=claimed)


def confirm_deleted(body: wire.ConfirmDeleted, situation: Situation) -> Decision:
    """Remove the rows of objects that the collector deleted. Absent rows were confirmed before."""
    require_role(situation, records_pb2.NODE_ROLE_GC)
    require_count(len(body.object_ids), situation.settings.claim_count_max, "objects")
    require_distinct(body.object_ids, "object")
    rows = [
        row for row in map(situation.view[OBJECTS].get, map(ObjectId, body.object_ids)) if row is not None
    ]
    for row in rows:
        _check_claim(row, situation)
    if not rows:
        return Decision()
    removed = records_pb2.ObjectsRemoved(object_ids=[row.object_id for row in rows])
    return Decision([records_pb2.Record(objects_removed=removed)], rows=len(rows))


def _due_objects(situation: Situation) -> Iterator[ObjectRow]:
    """Objects that may be deleted, oldest first: destroyed objects (after a delay), then expired
    reservations.

    Objects with a claim that has not expired, and objects destroyed during a present snapshot lease, are
    excluded. The delay also applies to expired reservations: a put may still be in progress, and an object
    that arrives after its deletion would never be deleted.
    """
    objects, delay_ms = situation.view[OBJECTS], situation.settings.destroy_delay_ms
    now_ms = situation.now_ms
    pinned_ms = pinned_since_ms(situation.view)
    for row in objects.find(OBJECTS_WAITING, ObjectState.DESTROYED):
        if row.destroyed_at_ms + delay_ms >= now_ms or (
            pinned_ms is not None and row.destroyed_at_ms >= pinned_ms
        ):
            break
        if row.claimed_until_ms < now_ms:
            yield row
    for row in objects.find(OBJECTS_WAITING, ObjectState.PREPARED):
        if row.expires_at_ms + delay_ms >= now_ms:
            break
        yield row


def _check_claim(row: ObjectRow, situation: Situation) -> None:
    caller = situation.caller
    mine = row.claim_node_id == caller.node_id and row.claim_node_epoch == caller.node_epoch
    if row.state is not ObjectState.DESTROYED or not mine or row.claimed_until_ms < situation.now_ms:
        raise refuse(
            error_pb2.ERROR_CODE_OBJECT_NOT_FOUND,
            f"node {caller.node_id} has no valid claim on object {row.object_id}; claim it again",
        )
