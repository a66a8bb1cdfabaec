"""Rules of apply for leases of snapshots: begun, renewed, released. What they keep from GC is asserted where objects are claimed (`apply_objects`)."""

from __future__ import annotations

from ponor.metadata.v1 import records_pb2 as records

from ponor_metadata import counters
from ponor_metadata.rows import ObjectRow, SnapshotRow
from ponor_metadata.view import View


def snapshot_leased(view: View, record: records.SnapshotLeased) -> None:
    """From now on nothing that is destroyed may be claimed."""
    counters.take(view, counters.SNAPSHOT, record.lease_id)
    assert record.index < view.index, f"snapshot {record.lease_id}: index {record.index} is not over yet"
    assert record.begun_at_ms <= view.cluster_time_ms, f"snapshot {record.lease_id}: begins in the future"
    view.snapshots.put(
        SnapshotRow(record.lease_id, record.holder, record.index, record.begun_at_ms, record.leased_until_ms)
    )


def snapshot_renewed(view: View, record: records.SnapshotRenewed) -> None:
    """The lease ends later."""
    row = _row(view, record.lease_id)
    assert record.leased_until_ms > row.leased_until_ms, f"snapshot {row.lease_id}: the lease would shrink"
    view.snapshots.put(row._replace(leased_until_ms=record.leased_until_ms))


def snapshot_released(view: View, record: records.SnapshotReleased) -> None:
    """What only this lease kept may be claimed."""
    view.snapshots.delete(_row(view, record.lease_id).lease_id)


def pinned_since_ms(view: View) -> int | None:
    """What was destroyed at this time or later is kept for readers; None: nothing is.

    Every batch after the one at which a lease begins has its time or a later one, so everything that the lease's image names and that is destroyed later is kept. Some
    that was destroyed in the same millisecond before is kept too.
    """
    return min((row.begun_at_ms for row in view.snapshots), default=None)


def is_pinned(row: ObjectRow, since_ms: int | None) -> bool:
    """Whether a destroyed object is kept. One that never was committed has no size, and no image names it."""
    return since_ms is not None and row.size_bytes > 0 and row.destroyed_at_ms >= since_ms


def _row(view: View, lease_id: int) -> SnapshotRow:
    row = view.snapshots.get(lease_id)
    assert row is not None, f"snapshot {lease_id} is over"
    return row
