"""Periodic reconciliation rounds: the objects, then the multipart uploads, with one subscription to the
metadata for both.
"""

from __future__ import annotations

import logging
from typing import Final

from ponor_metadata.client.errors import HistoryReplacedError, MetadataLagError
from ponor_metadata.client.image_reading import FollowImage
from ponor_metadata.nouns.cluster import cluster_of
from ponor_rpc.errors import OperationError
from ponor_runtime.clock import Clock
from ponor_runtime.object_store import ObjectStoreError
from ponor_runtime.randomness import Randomness
from ponor_runtime.telemetry import Telemetry

from ponor_gc.abandoned_uploads import AbandonedUploads
from ponor_gc.deletion_right import DeletionRight, marker_of
from ponor_gc.reconcile_report import ReconcileReport
from ponor_gc.reconciliation import Reconciliation, may_delete
from ponor_gc.settings import GcSettings
from ponor_gc.verdicts import Verdict

LOG: Final = logging.getLogger(__name__)
RETRY_MS: Final = 600_000
"""Pause after a failed round, unless the interval is shorter."""
JITTER: Final = 0.2
"""Random share by which each interval varies, so that collectors that started together do not stay in step.
"""
RETRIED_ERRORS: Final = (ObjectStoreError, MetadataLagError, HistoryReplacedError, OperationError)


class Rounds:
    """Runs rounds periodically, or one on demand."""

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
        """Run rounds until cancelled.

        The first round starts at a random time within the first interval, so that a collector that restarts
        every few hours also runs rounds.
        """
        interval_ms = self._settings.reconcile_interval_ms
        pause_ms = randomness.uniform(0, interval_ms)
        while True:
            await clock.sleep(pause_ms / 1000)
            try:
                await self.go()
            except RETRIED_ERRORS as error:
                self._failed.add()
                LOG.warning("reconciliation failed and will be retried: %s", error)
                pause_ms = min(interval_ms, RETRY_MS)
            else:
                pause_ms = interval_ms * randomness.uniform(1 - JITTER, 1 + JITTER)

    async def go(self) -> ReconcileReport:
        """Run one round.

        Raises:
            ObjectStoreError, MetadataLagError, HistoryReplacedError, OperationError: the round failed; the
                next round resumes at the failed prefix.
        """
        report = ReconcileReport()
        async with self._follow() as current:
            cluster = cluster_of(await current())
            report.is_dry_run = (
                cluster is None
                or not may_delete(cluster, self._settings)
                or not await self._right.may_delete(marker_of(cluster))
            )
            report.refusal = self._right.refusal
            await self._objects.reconcile(current, report)
            await self._uploads.collect(current, report)
        self._done.add()
        self._publish(report)
        return report

    def _publish(self, report: ReconcileReport) -> None:
        if report.is_whole:
            self._orphans = report.objects[Verdict.DEAD]
            self._strange = report.objects[Verdict.STRANGE]
        LOG.info("%s", report)
        if report.strange_examples:
            LOG.warning(
                "%d unknown keys under this cluster's prefixes are not deleted, such as %s",
                report.objects[Verdict.STRANGE],
                ", ".join(report.strange_examples),
            )
