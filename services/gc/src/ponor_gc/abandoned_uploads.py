"""Abort abandoned multipart uploads, whose parts cost money and appear in no listing of objects.

An upload stays while its object is PREPARED, even after the lease has expired: the writer may complete the
upload until the controller removes the object's row.
"""

from __future__ import annotations

import logging
from typing import Final

from ponor_metadata.client.image_reading import ReadImage
from ponor_metadata.nouns.cluster import cluster_of
from ponor_runtime.clock import Clock
from ponor_runtime.object_store import (
    MultipartStore,
    MultipartUpload,
    ObjectStoreRefusedError,
    OpenMultipart,
)
from ponor_runtime.telemetry import Telemetry

from ponor_gc.reconcile_report import ReconcileReport
from ponor_gc.settings import GcSettings
from ponor_gc.verdicts import Verdict, is_own_key, judge_upload

LOG: Final = logging.getLogger(__name__)
ABORTED_AT_ONCE_MAX: Final = 10_000
"""Maximum number of uploads that one pass examines; the next pass finds the rest."""


class AbandonedUploads:
    """Aborts abandoned uploads. `store` is None if the store does not support multipart uploads."""

    def __init__(
        self,
        store: MultipartStore | None,
        clock: Clock,
        settings: GcSettings,
        telemetry: Telemetry,
    ) -> None:
        self._store = store
        self._clock = clock
        self._settings = settings
        self._collected = telemetry.counter("ponor_gc_collected_total", reason="upload")
        self._warned = False

    async def collect(self, current: ReadImage, report: ReconcileReport) -> None:
        """Run one pass and add the findings to `report`. Abort nothing if `report.is_dry_run` is set.

        Raises:
            ObjectStoreError: the store failed.
            MetadataLagError, HistoryReplacedError, OperationError: raised by `followed_image`.
        """
        if self._store is None:
            self._warn_once("the store does not support multipart uploads")
            return
        try:
            uploads = await self._own(self._store, current, report)
        except ObjectStoreRefusedError as error:
            self._warn_once(f"{error}; abort them with a lifecycle rule of the bucket")
            return
        report.uploads_listed = True
        for upload in await self._abandoned(uploads, current, report):
            await self._abort(self._store, upload)
            report.aborted += 1

    async def _own(
        self, store: MultipartStore, current: ReadImage, report: ReconcileReport
    ) -> list[OpenMultipart]:
        """Return the open uploads of this cluster's objects, and count the other uploads in the bucket."""
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
        only_look = report.is_dry_run or cluster.incarnation_unconfirmed
        return [] if only_look else abandoned

    async def _abort(self, store: MultipartStore, upload: OpenMultipart) -> None:
        await store.abort_multipart(MultipartUpload(upload.key, upload.upload_id))
        self._collected.add()
        LOG.info("aborted the abandoned multipart upload of %s", upload.key)

    def _warn_once(self, reason: str) -> None:
        if not self._warned:
            self._warned = True
            LOG.warning("abandoned multipart uploads are not aborted: %s", reason)
