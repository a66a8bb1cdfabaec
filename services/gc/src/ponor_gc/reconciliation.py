"""Reconciliation of the store with the metadata: list the store, read the metadata, delete what is provably
dead.

One pass covers the objects of this cluster's namespace at a bounded rate. It finds garbage that claims cannot
find: objects whose put arrived after their deletion was confirmed, or whose deletion the store undid.
`wal_leftovers` handles write-ahead logs, which have other keys.
"""

from __future__ import annotations

import logging
from typing import Final

from ponor_metadata.client.image_reading import ReadImage
from ponor_metadata.nouns.cluster import ClusterRow, cluster_of
from ponor_runtime.clock import Clock
from ponor_runtime.object_store import ObjectInfo, ObjectStore
from ponor_runtime.telemetry import Telemetry
from s3stream.objects.keys import key_prefixes

from ponor_gc.deletion_right import DeletionRight, marker_of
from ponor_gc.reconcile_report import ReconcileReport
from ponor_gc.settings import GcSettings
from ponor_gc.verdicts import Verdict, judge_object

LOG: Final = logging.getLogger(__name__)
PAGE_KEYS: Final = 1_000
"""Listed keys after which the pass pauses to keep its rate."""
DEAD_AT_ONCE_MAX: Final = 10_000
"""Maximum dead keys of a prefix in memory; if there are more, the pass deletes these and lists the prefix
again.
"""


class Reconciliation:
    """Reconciles all prefixes; after a failed pass, the next pass resumes at the failed prefix."""

    def __init__(
        self,
        store: ObjectStore,
        right: DeletionRight,
        clock: Clock,
        settings: GcSettings,
        telemetry: Telemetry,
    ) -> None:
        self._store = store
        self._right = right
        self._clock = clock
        self._settings = settings
        self._collected = telemetry.counter("ponor_gc_collected_total", reason="orphan")
        self._bytes = telemetry.counter("ponor_gc_orphan_bytes_total")
        self._resume_at = 0
        self._listed = 0

    async def reconcile(self, current: ReadImage, report: ReconcileReport) -> None:
        """Run one pass and add the findings to `report`. Delete nothing if `report.is_dry_run` is set.

        Raises:
            ObjectStoreError: the store failed.
            MetadataLagError, HistoryReplacedError, OperationError: raised by `followed_image`.
        """
        cluster = cluster_of(await current())
        if cluster is None:
            return
        begun_at = self._resume_at
        for number, prefix in enumerate(key_prefixes(cluster.namespace)):
            if number >= begun_at:
                self._resume_at = number
                await self._reconcile_prefix(prefix, current, report)
        self._resume_at = 0
        report.is_whole = begun_at == 0

    async def _reconcile_prefix(self, prefix: str, current: ReadImage, report: ReconcileReport) -> None:
        seen = report
        while True:
            dead, is_complete = await self._list_dead(prefix, current, seen)
            deleted = await self._delete(dead, current, report)
            # Continue only after progress: keys that were not deleted would be listed repeatedly.
            if is_complete or not deleted:
                return
            seen = ReconcileReport()  # the first listing has counted everything

    async def _list_dead(
        self, prefix: str, current: ReadImage, report: ReconcileReport
    ) -> tuple[list[ObjectInfo], bool]:
        """Return the apparently dead objects under a prefix, and whether the list is complete.

        The pass deletes only after the listing, because a retry after an error resumes after the last listed
        key and fails if that key was deleted.
        """
        image = await current()
        put_before_ms = self._clock.wall_ms() - self._settings.reconcile_age_ms_min
        dead: list[ObjectInfo] = []
        future: ObjectInfo | None = None
        is_complete = True
        async for info in self._store.list(prefix):
            cluster = cluster_of(image)
            assert cluster is not None
            verdict = judge_object(info, image, cluster, put_before_ms)
            report.note(verdict, info.key, info.size_bytes)
            if verdict is Verdict.FUTURE:
                future = info
            if verdict is Verdict.DEAD and not report.is_dry_run:
                if len(dead) < DEAD_AT_ONCE_MAX:
                    dead.append(info)
                else:
                    is_complete = False
            self._listed += 1
            if self._listed % PAGE_KEYS == 0:
                await self._clock.sleep(PAGE_KEYS / self._settings.reconcile_keys_per_s)
        if future is not None and await self._is_beyond_counter(future, current):
            reason = (
                f"{future.key} has an id that the controllers have not assigned yet: the log of the"
                " controllers is an older copy, or another cluster writes to this store"
            )
            self._right.withdraw(reason)
            report.is_dry_run, report.refusal = True, reason
            return [], True
        return dead, is_complete

    async def _is_beyond_counter(self, info: ObjectInfo, current: ReadImage) -> bool:
        """Return whether the object's id is unassigned even in metadata that are read after the listing.

        The controller assigns an id before a writer puts the object, so these metadata cover the id of every
        object that this cluster wrote.
        """
        image = await current()
        cluster = cluster_of(image)
        assert cluster is not None
        return judge_object(info, image, cluster, 0) is Verdict.FUTURE

    async def _delete(self, dead: list[ObjectInfo], current: ReadImage, report: ReconcileReport) -> bool:
        """Delete the objects that are dead according to the current metadata; return whether any were
        deleted.
        """
        batch_keys = self._settings.delete_keys_max
        before = report.deleted
        for at in range(0, len(dead), batch_keys):
            # Metadata that is read after the listing covers every listed object. Reading it again before each
            # batch also detects a forced recovery.
            image = await current()
            cluster = cluster_of(image)
            assert cluster is not None
            if cluster.incarnation_unconfirmed or not await self._right.may_delete(marker_of(cluster)):
                return False
            put_before_ms = self._clock.wall_ms() - self._settings.reconcile_age_ms_min
            batch = [
                info
                for info in dead[at : at + batch_keys]
                if judge_object(info, image, cluster, put_before_ms) is Verdict.DEAD
            ]
            if batch:
                await self._store.delete([info.key for info in batch])
                self._count(batch, report)
        return report.deleted > before

    def _count(self, batch: list[ObjectInfo], report: ReconcileReport) -> None:
        size_bytes = sum(info.size_bytes for info in batch)
        report.deleted += len(batch)
        report.deleted_bytes += size_bytes
        self._collected.add(len(batch))
        self._bytes.add(size_bytes)
        LOG.info("%d orphans deleted, %d bytes, from %s on", len(batch), size_bytes, batch[0].key)


def may_delete(cluster: ClusterRow, settings: GcSettings) -> bool:
    """Return whether the settings and the cluster's state allow a pass to delete."""
    return not settings.reconcile_dry_run and not cluster.incarnation_unconfirmed
