"""Rounds: now and then everything in the store is compared with the metadata.

What lives here: when, and what belongs to one round: the objects, then the uploads in parts, with one following of the metadata for both.
"""

from __future__ import annotations

import logging
from typing import Final

from ponor_metadata.errors import HistoryReplacedError, MetadataLagError
from ponor_metadata.view import cluster_of
from ponor_rpc.errors import OperationError
from ponor_runtime.clock import Clock
from ponor_runtime.object_store import ObjectStoreError
from ponor_runtime.randomness import Randomness
from ponor_runtime.telemetry import Telemetry

from ponor_gc.abandoned_uploads import AbandonedUploads
from ponor_gc.deletion_right import DeletionRight, marker_of
from ponor_gc.image_reading import FollowImage
from ponor_gc.reconcile_report import ReconcileReport
from ponor_gc.reconciliation import Reconciliation, may_delete
from ponor_gc.settings import GcSettings
from ponor_gc.verdicts import Verdict

LOG: Final = logging.getLogger(__name__)
RETRY_MS: Final = 600_000
"""After a round that failed; or the interval, if that is shorter."""
JITTER: Final = 0.2
"""Of the interval, so that collectors that began together do not go on so."""
NOT_NOW: Final = (ObjectStoreError, MetadataLagError, HistoryReplacedError, OperationError)


class Rounds:
    """Goes round for ever, or once on demand."""

    def __init__(
        self,
        objects: Reconciliation,
        uploads: AbandonedUploads,
        right: DeletionRight,
        settings: GcSettings,
        telemetry: Telemetry,
        follow: FollowImage,
    ) -> None:
        self._objects = objects
        self._uploads = uploads
        self._right = right
        self._settings = settings
        self._follow = follow
        self._done = telemetry.counter("ponor_gc_reconciliations_total", outcome="done")
        self._failed = telemetry.counter("ponor_gc_reconciliations_total", outcome="failed")
        self._orphans = 0
        self._strange = 0
        telemetry.gauge("ponor_gc_orphans_found", lambda: self._orphans)
        telemetry.gauge("ponor_gc_strange_keys", lambda: self._strange)

    async def run(self, clock: Clock, randomness: Randomness) -> None:
        """Go round for ever. The first round begins at any moment of the first interval: a collector that is restarted every few hours comes to it too."""
        interval_ms = self._settings.reconcile_interval_ms
        pause_ms = randomness.uniform(0, interval_ms)
        while True:
            await clock.sleep(pause_ms / 1000)
            try:
                await self.go()
            except NOT_NOW as error:
                self._failed.add()
                LOG.warning("the store is compared with the metadata later again: %s", error)
                pause_ms = min(interval_ms, RETRY_MS)
            else:
                pause_ms = interval_ms * randomness.uniform(1 - JITTER, 1 + JITTER)

    async def go(self) -> ReconcileReport:
        """One round.

        Raises:
            ObjectStoreError, MetadataLagError, HistoryReplacedError, OperationError: it ended early; the next one goes on where this one was.
        """
        report = ReconcileReport()
        async with self._follow() as current:
            cluster = cluster_of(await current())
            report.only_looked = (
                cluster is None
                or not may_delete(cluster, self._settings)
                or not await self._right.may_delete(marker_of(cluster))
            )
            report.refusal = self._right.refusal
            await self._objects.reconcile(current, report)
            await self._uploads.collect(current, report)
        self._done.add()
        self._tell(report)
        return report

    def _tell(self, report: ReconcileReport) -> None:
        if report.is_whole:
            self._orphans = report.objects[Verdict.DEAD]
            self._strange = report.objects[Verdict.STRANGE]
        LOG.info("%s", report)
        if report.strange_examples:
            LOG.warning(
                "%d keys among our objects are not of our objects and are left alone, such as %s",
                report.objects[Verdict.STRANGE],
                ", ".join(report.strange_examples),
            )
