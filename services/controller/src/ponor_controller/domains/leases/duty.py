"""Leader duty: end snapshot leases that expired or that pin too many bytes."""

from __future__ import annotations

import logging
from typing import Final

from ponor.metadata.v1 import records_pb2
from ponor_metadata.image.image import MetadataImage
from ponor_metadata.nouns.snapshot_leases import SNAPSHOTS, SnapshotRow
from ponor_metadata.tables.schema import View
from ponor_runtime.identity import ObjectId
from ponor_runtime.telemetry import Telemetry

from ponor_controller.domains.leases.operations import released
from ponor_controller.kernel.leading import Leading
from ponor_controller.kernel.proposer import Proposer
from ponor_controller.settings import SnapshotLeaseSettings

LOG: Final = logging.getLogger("ponor.controller")
WAKING: Final = ("snapshot_leased", "snapshot_renewed", "snapshot_released")
"""Records after which the duty runs."""
COUNTING_S: Final = 1.0
"""Time between two counts of pinned bytes."""
ROWS_PER_STEP: Final = 2_000


class PinnedBytes:
    """Bytes of destroyed objects that leases keep in the store. The oldest lease alone keeps all of them.

    Each step continues the count where the last one stopped. A counted object cannot be deleted while the
    lease exists, so the count stays correct.
    """

    def __init__(self, image: MetadataImage) -> None:
        self._image = image
        self.size_bytes = 0
        self._since_ms: int | None = None
        self._counted = (0, ObjectId(0))

    def restart(self) -> None:
        """Restart the count."""
        self._since_ms = None
        self.size_bytes = 0

    def count(self, oldest: SnapshotRow | None) -> bool:
        """Count a bounded number of rows. Returns True if more rows may be left."""
        if oldest is None:
            self.restart()
            return False
        if oldest.begun_at_ms != self._since_ms:
            self._since_ms, self.size_bytes = oldest.begun_at_ms, 0
            self._counted = (oldest.begun_at_ms - 1, ObjectId((1 << 63) - 1))
        rows = self._image.packed_objects.destroyed_after(self._counted, ROWS_PER_STEP)
        for row in rows:
            self.size_bytes += row.size_bytes
            self._counted = (row.destroyed_at_ms, row.object_id)
        return len(rows) == ROWS_PER_STEP


class LeaseDuty:
    """A step of a `LeaderDuty`."""

    def __init__(
        self, proposer: Proposer, leading: Leading, settings: SnapshotLeaseSettings, telemetry: Telemetry
    ) -> None:
        self._proposer = proposer
        self._settings = settings
        self._pinned = PinnedBytes(proposer.view.image)
        self._broken = telemetry.counter("ponor_snapshot_leases_broken_total")
        leading.on_change(self._pinned.restart)
        telemetry.gauge("ponor_snapshot_leases", lambda: len(proposer.view.image[SNAPSHOTS]))
        telemetry.gauge("ponor_snapshot_pinned_bytes", lambda: self._pinned.size_bytes)

    def step(self) -> float | None:
        """End due leases. Returns the seconds until the next step; None without leases."""
        view, now_ms = self._proposer.view, self._proposer.now_ms()
        due = [row for row in view[SNAPSHOTS] if row.leased_until_ms <= now_ms]
        records = [self._expire(row) for row in due]
        left = [row for row in view[SNAPSHOTS] if row.leased_until_ms > now_ms]
        oldest = min(left, key=lambda row: (row.begun_at_ms, row.lease_id), default=None)
        more = self._pinned.count(None if due else _committed(oldest, view, self._proposer.view.image))
        if (
            not due
            and oldest is not None
            and self._pinned.size_bytes > self._settings.snapshot_pinned_bytes_max
        ):
            records.append(self._break(oldest))
        if records:
            self._proposer.propose(records, divisible=True)
        if more or records:
            return 0
        if oldest is None:
            return None
        return min(COUNTING_S, (min(row.leased_until_ms for row in left) - now_ms) / 1000)

    def _expire(self, row: SnapshotRow) -> records_pb2.Record:
        lived_ms = row.leased_until_ms - row.begun_at_ms
        if lived_ms >= self._settings.snapshot_lease_age_ms_max:
            self._broken.add()
            LOG.warning(
                "ended snapshot lease %d of %s: it lasted %d ms, the maximum age of a lease",
                row.lease_id,
                row.holder,
                lived_ms,
            )
        else:
            LOG.info("snapshot lease %d of %s was not renewed and has expired", row.lease_id, row.holder)
        return released(row)

    def _break(self, row: SnapshotRow) -> records_pb2.Record:
        self._broken.add()
        LOG.warning(
            "ended snapshot lease %d of %s: %d bytes were destroyed since it began; leases may keep %d bytes",
            row.lease_id,
            row.holder,
            self._pinned.size_bytes,
            self._settings.snapshot_pinned_bytes_max,
        )
        return released(row)


def _committed(row: SnapshotRow | None, view: View, image: MetadataImage) -> SnapshotRow | None:
    """Return the row if the lease is committed and not ending, otherwise None: only committed rows are
    counted.
    """
    return (
        row
        if row is not None and row.lease_id in image[SNAPSHOTS] and row.lease_id in view[SNAPSHOTS]
        else None
    )
