"""Objects before and after their life: prepare, claim, confirm.

What lives here: leases on ids that nobody has used, and the right to delete what nobody needs. Committing is in `uploads`.
"""

from __future__ import annotations

from collections.abc import Iterator
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
    refuse,
    require_count,
    require_distinct,
    require_role,
)

BUCKET_INDEX = 0
"""One bucket is configured; the row holds the index so that more can be."""


def prepare_objects(body: wire.PrepareObjects, situation: Situation) -> Decision:
    """Reserve a contiguous run of ids for the caller's epoch; the lease is capped."""
    settings, caller = situation.settings, situation.caller
    if caller.role == records_pb2.NODE_ROLE_GC:
        raise refuse(
            error_pb2.ERROR_CODE_INVALID_REQUEST, f"node {caller.node_id} is a GC node and writes no objects"
        )
    require_count(body.count, settings.prepared_count_max, "object ids")
    if body.ttl_ms < 1:
        raise refuse(error_pb2.ERROR_CODE_INVALID_REQUEST, f"a lease of {body.ttl_ms} ms; ask for at least 1")
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
        [records_pb2.Record(objects_prepared=prepared)], wire.OperationResult(objects_reserved=reserved)
    )


def claim_objects(body: wire.ClaimObjects, situation: Situation) -> Decision:
    """Take the right to delete objects that are due. Finding none writes nothing, so that an idle cluster's log does not grow.

    Nothing is due while a forced recovery waits for its confirmation: what the lost part of the log knew to be in use may be there still.
    """
    require_role(situation, records_pb2.NODE_ROLE_GC)
    settings, caller = situation.settings, situation.caller
    require_count(body.limit, settings.claim_count_max, "objects")
    if body.ttl_ms < 1:
        raise refuse(error_pb2.ERROR_CODE_INVALID_REQUEST, f"a claim of {body.ttl_ms} ms; ask for at least 1")
    claimed_until_ms = situation.now_ms + min(body.ttl_ms, settings.claim_ttl_ms_max)
    cluster = cluster_of(situation.view)
    assert cluster is not None
    rows = [] if cluster.incarnation_unconfirmed else list(islice(_due_objects(situation), body.limit))
    granted = wire.ObjectsGranted(claimed_until_ms=claimed_until_ms)
    for row in rows:
        granted.objects.add(object_id=row.object_id, namespace=row.namespace, bucket_index=row.bucket_index)
    decision = Decision(result=wire.OperationResult(objects_granted=granted))
    if rows:
        claimed = records_pb2.ObjectsClaimed(
            object_ids=[row.object_id for row in rows],
            node_id=caller.node_id,
            node_epoch=caller.node_epoch,
            claimed_until_ms=claimed_until_ms,
        )
        decision.records.append(records_pb2.Record(objects_claimed=claimed))
    return decision


def confirm_deleted(body: wire.ConfirmDeleted, situation: Situation) -> Decision:
    """Forget objects that the store no longer has. Absent rows were confirmed before."""
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
    return Decision([records_pb2.Record(objects_removed=removed)])


def _due_objects(situation: Situation) -> Iterator[ObjectRow]:
    """Destroyed objects past the delay and not under a live claim, then leases that ran out so long ago; the oldest first in each. What was destroyed under the lease of
    a snapshot is kept until the lease is over.

    A lease that ran out has the delay too: a put that its writer gave up may be under way still, and what arrives after the deletion is nobody's for ever.
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
            f"object {row.object_id} is not under a live claim of node {caller.node_id}; claim it again",
        )
