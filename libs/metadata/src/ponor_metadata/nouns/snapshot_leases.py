"""Leases of snapshots: destroyed objects that a reader's snapshot may need are not deleted from the store."""

from __future__ import annotations

from typing import Final, NamedTuple

from ponor.metadata.v1 import records_pb2 as records

from ponor_metadata.nouns import counters
from ponor_metadata.tables.columns import INTEGERS, TEXTS
from ponor_metadata.tables.schema import FIRST_FIELD, Noun, Schema, Section, View


class SnapshotRow(NamedTuple):
    """A reader's lease of the data as of `image_index`.

    Objects destroyed at `begun_at_ms` or later are kept while the row exists.
    """

    lease_id: int
    holder: str
    image_index: int
    begun_at_ms: int
    leased_until_ms: int


SNAPSHOTS: Final[Schema[int, SnapshotRow]] = Schema(
    "snapshots",
    SnapshotRow,
    FIRST_FIELD,
    (Section(20, (INTEGERS, TEXTS, *[INTEGERS] * 3), weighed=(1,)),),
)


def snapshot_leased(view: View, record: records.SnapshotLeased) -> None:
    """Begin a lease. Objects that are destroyed from now on must not be claimed."""
    counters.take(view, counters.SNAPSHOT, record.lease_id)
    assert record.index < view.index, (
        f"snapshot {record.lease_id}: index {record.index} is not below the present index"
    )
    assert record.begun_at_ms <= view.cluster_time_ms, (
        f"snapshot {record.lease_id}: it begins after the cluster time"
    )
    view[SNAPSHOTS].put(
        SnapshotRow(record.lease_id, record.holder, record.index, record.begun_at_ms, record.leased_until_ms)
    )


def snapshot_renewed(view: View, record: records.SnapshotRenewed) -> None:
    """Extend a lease."""
    row = _row(view, record.lease_id)
    assert record.leased_until_ms > row.leased_until_ms, (
        f"snapshot {row.lease_id}: the renewal does not extend the lease"
    )
    view[SNAPSHOTS].put(row._replace(leased_until_ms=record.leased_until_ms))


def snapshot_released(view: View, record: records.SnapshotReleased) -> None:
    """End a lease. Objects that only this lease kept may be claimed."""
    view[SNAPSHOTS].delete(_row(view, record.lease_id).lease_id)


def pinned_since_ms(view: View) -> int | None:
    """Return the time of destruction from which on objects are kept for readers; None if there is no lease.

    The cluster time of every batch after the one that begins a lease is at least the lease's time. So all
    objects of the lease's image that are destroyed later are kept, and also some that were destroyed earlier
    in the same millisecond.
    """
    return min((row.begun_at_ms for row in view[SNAPSHOTS]), default=None)


def _row(view: View, lease_id: int) -> SnapshotRow:
    row = view[SNAPSHOTS].get(lease_id)
    assert row is not None, f"snapshot {lease_id} has ended or does not exist"
    return row


def _check(view: View) -> None:
    following = counters.next_value(view, counters.SNAPSHOT)
    for lease in view[SNAPSHOTS]:
        name = f"snapshot {lease.lease_id}"
        assert 0 < lease.lease_id < following, f"{name}: its id was never assigned"
        assert lease.image_index < view.index, f"{name}: its index is not below the present index"
        assert lease.begun_at_ms <= min(view.cluster_time_ms, lease.leased_until_ms), (
            f"{name}: it begins after the cluster time or after its end"
        )


NOUN: Final = Noun(
    schemas=(SNAPSHOTS,), rules=(snapshot_leased, snapshot_renewed, snapshot_released), check=_check
)
