"""Uploads in parts that nobody will complete: their parts cost money, and no listing of objects shows them.

What lives here: one pass over the open uploads of this cluster's objects. An upload is let alone while its object is PREPARED, whether the lease has run out or not:
the writer may complete it until the row is gone.
"""

from __future__ import annotations

import logging
from typing import Final

from ponor_metadata.view import cluster_of
from ponor_runtime.clock import Clock
from ponor_runtime.object_store import (
    MultipartStore,
    MultipartUpload,
    ObjectStoreRefusedError,
    ObjectStoreSlowDownError,
    OpenMultipart,
)
from ponor_runtime.telemetry import Telemetry

from ponor_gc.deletion_pace import DeletionPace
from ponor_gc.image_reading import ReadImage
from ponor_gc.reconcile_report import ReconcileReport
from ponor_gc.settings import GcSettings
from ponor_gc.verdicts import Verdict, is_own_key, judge_upload

LOG: Final = logging.getLogger(__name__)
ABORTED_AT_ONCE_MAX: Final = 10_000
"""Uploads that one pass looks at; when these are gone the next one finds the rest."""


class AbandonedUploads:
    """Aborts them. `store` is None where the store has no uploads in parts."""

    def __init__(
        self,
        store: MultipartStore | None,
        clock: Clock,
        settings: GcSettings,
        telemetry: Telemetry,
        pace: DeletionPace,
    ) -> None:
        self._store = store
        self._clock = clock
        self._settings = settings
        self._pace = pace
        self._collected = telemetry.counter("ponor_gc_collected_total", reason="upload")
        self._said = False

    async def collect(self, current: ReadImage, report: ReconcileReport) -> None:
        """One pass; what it finds goes into `report`, whose `only_looked` says whether anything is aborted.

        Raises:
            ObjectStoreError: the store cannot be asked.
            MetadataLagError, HistoryReplacedError, OperationError: as `followed_image`.
        """
        if self._store is None:
            self._say_once("it has no uploads in parts")
            return
        try:
            uploads = await self._own(self._store, current, report)
        except ObjectStoreRefusedError as error:
            self._say_once(str(error))
            return
        report.uploads_listed = True
        for upload in await self._abandoned(uploads, current, report):
            await self._abort(self._store, upload)
            report.aborted += 1

    async def _own(
        self, store: MultipartStore, current: ReadImage, report: ReconcileReport
    ) -> list[OpenMultipart]:
        """Open uploads of our objects; what others do in the bucket takes no room."""
        cluster = cluster_of(await current())
        own: list[OpenMultipart] = []
        async for upload in store.list_multiparts(""):
            if cluster is None or not is_own_key(upload.key, cluster):
                report.uploads[Verdict.OTHERS] += 1
            elif len(own) < ABORTED_AT_ONCE_MAX:
                own.append(upload)
        return own

    async def _abandoned(
        self, uploads: list[OpenMultipart], current: ReadImage, report: ReconcileReport
    ) -> list[OpenMultipart]:
        image = await current()
        cluster = cluster_of(image)
        if cluster is None:
            return []
        begun_before_ms = self._clock.wall_ms() - self._settings.reconcile_age_ms_min
        abandoned = []
        for upload in uploads:
            verdict = judge_upload(upload, image, cluster, begun_before_ms)
            report.uploads[verdict] += 1
            if verdict is Verdict.DEAD:
                abandoned.append(upload)
        only_look = report.only_looked or cluster.incarnation_unconfirmed
        return [] if only_look else abandoned

    async def _abort(self, store: MultipartStore, upload: OpenMultipart) -> None:
        turn = await self._pace.turn(1)
        try:
            await store.abort_multipart(MultipartUpload(upload.key, upload.upload_id))
        except ObjectStoreSlowDownError:
            self._pace.slowed(turn)
            raise
        self._collected.add()
        LOG.info("the upload in parts of %s, which nobody will complete, is aborted", upload.key)

    def _say_once(self, why: str) -> None:
        if not self._said:
            self._said = True
            LOG.warning(
                "uploads in parts that were given up are not looked for in this store: %s; have the bucket abort them by a lifecycle rule",
                why,
            )
