"""Open, renew and close snapshot leases.

The requested time-to-live and the maximum age bound a lease. `duty` ends leases that expired.
"""

from __future__ import annotations

from typing import NamedTuple

from ponor.common.v1 import error_pb2
from ponor.controller.v1 import cluster_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_metadata.nouns import counters
from ponor_metadata.nouns.snapshot_leases import SNAPSHOTS, SnapshotRow
from ponor_metadata.tables.schema import View

from ponor_controller.kernel.decisions import invalid, refuse
from ponor_controller.settings import SnapshotLeaseSettings

HOLDER_CHARACTERS_MAX = 256


class LeaseDecision(NamedTuple):
    """The lease after the decision, and the records that change it (empty if nothing changes)."""

    row: SnapshotRow
    records: list[records_pb2.Record]


def open_lease(
    request: wire.OpenSnapshot, view: View, now_ms: int, settings: SnapshotLeaseSettings
) -> LeaseDecision:
    """Open a lease on the state after all batches that are proposed now.

    Raises:
        OperationError: INVALID_REQUEST, or OVERLOADED when there are too many leases.
    """
    if not 1 <= len(request.holder) <= HOLDER_CHARACTERS_MAX:
        raise invalid(f"the holder has {len(request.holder)} characters; give 1 to {HOLDER_CHARACTERS_MAX}")
    _require_ttl(request.ttl_ms)
    if len(view[SNAPSHOTS]) >= settings.snapshot_leases_max:
        raise refuse(
            error_pb2.ERROR_CODE_OVERLOADED,
            f"{len(view[SNAPSHOTS])} snapshot leases exist, the maximum (snapshot_leases_max); close some, or"
            " try again later",
        )
    row = SnapshotRow(
        lease_id=counters.next_value(view, counters.SNAPSHOT),
        holder=request.holder,
        image_index=view.index,
        begun_at_ms=now_ms,
        leased_until_ms=now_ms + min(request.ttl_ms, settings.snapshot_lease_age_ms_max),
    )
    leased = records_pb2.SnapshotLeased(
        lease_id=row.lease_id,
        holder=row.holder,
        index=row.image_index,
        begun_at_ms=row.begun_at_ms,
        leased_until_ms=row.leased_until_ms,
    )
    return LeaseDecision(row, [records_pb2.Record(snapshot_leased=leased)])


def renew_lease(
    request: wire.RenewSnapshot, view: View, now_ms: int, settings: SnapshotLeaseSettings
) -> LeaseDecision:
    """Extend a lease, up to the maximum age.

    Raises:
        OperationError: SNAPSHOT_EXPIRED, or INVALID_REQUEST.
    """
    _require_ttl(request.ttl_ms)
    row = view[SNAPSHOTS].get(request.lease_id)
    if row is None or row.leased_until_ms <= now_ms:
        raise refuse(
            error_pb2.ERROR_CODE_SNAPSHOT_EXPIRED,
            f"snapshot lease {request.lease_id} has ended; open another and read its snapshot from the start",
        )
    until_ms = min(now_ms + request.ttl_ms, row.begun_at_ms + settings.snapshot_lease_age_ms_max)
    if until_ms <= row.leased_until_ms:
        return LeaseDecision(row, [])
    renewed = records_pb2.SnapshotRenewed(lease_id=row.lease_id, leased_until_ms=until_ms)
    return LeaseDecision(
        row._replace(leased_until_ms=until_ms), [records_pb2.Record(snapshot_renewed=renewed)]
    )


def close_lease(request: wire.CloseSnapshot, view: View) -> list[records_pb2.Record]:
    """The record that ends the lease; none if it ended already."""
    row = view[SNAPSHOTS].get(request.lease_id)
    return [] if row is None else [released(row)]


def released(row: SnapshotRow) -> records_pb2.Record:
    """The record that ends a lease."""
    return records_pb2.Record(snapshot_released=records_pb2.SnapshotReleased(lease_id=row.lease_id))


def _require_ttl(ttl_ms: int) -> None:
    if ttl_ms < 1:
        raise invalid(f"ttl_ms is {ttl_ms}; it must be at least 1")
