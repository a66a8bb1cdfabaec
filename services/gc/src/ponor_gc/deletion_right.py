"""Check whether this collector may delete objects in its store.

Every proof that an object is dead assumes that the namespace belongs to this cluster and that the metadata is
the newest. Two findings disprove this: a different marker in the store (docs/formats/cluster-marker.md), and
objects whose ids the controllers' counter has not reached. Then another cluster writes to the namespace, or
the controllers' log is older than the store. The collector then only reports.
"""

from __future__ import annotations

import logging
from typing import Final

from ponor_metadata.client.store_marker import ClusterMarker, MarkerDamagedError, read_marker
from ponor_metadata.nouns.cluster import ClusterRow
from ponor_runtime.clock import Clock
from ponor_runtime.object_store import ObjectStore
from ponor_runtime.telemetry import Telemetry

LOG: Final = logging.getLogger(__name__)
MARKER_MS_MAX: Final = 60_000
"""Time after which the collector reads a verified marker again."""


def marker_of(cluster: ClusterRow) -> ClusterMarker:
    """Return the marker that this cluster's namespace must have."""
    return ClusterMarker(cluster.cluster_id, cluster.cluster_ordinal, cluster.namespace)


class DeletionRight:
    """Permission to delete, checked before every deletion. After `withdraw` it is denied until the process
    restarts.
    """

    def __init__(self, store: ObjectStore, clock: Clock, telemetry: Telemetry) -> None:
        self._store = store
        self._clock = clock
        self._seen_ns: int | None = None
        self._refusal = ""
        self._withdrawn = False
        telemetry.gauge("ponor_gc_report_only", lambda: float(bool(self._refusal)))

    @property
    def refusal(self) -> str:
        """Return why deletion is denied, as of the last check; empty if it is allowed."""
        return self._refusal

    def withdraw(self, reason: str) -> None:
        """Deny all deletions from now on."""
        self._withdrawn = True
        self._tell(reason)

    async def may_delete(self, own: ClusterMarker) -> bool:
        """Return whether this cluster's objects may be deleted here; read the marker if the last check is too
        old.

        Raises:
            ObjectStoreError: the store failed.
        """
        now_ns = self._clock.monotonic_ns()
        is_fresh = self._seen_ns is not None and now_ns - self._seen_ns < MARKER_MS_MAX * 1_000_000
        if not self._withdrawn and not is_fresh:
            self._tell(await self._contradiction(own))
            self._seen_ns = None if self._refusal else now_ns
        return not self._refusal

    async def _contradiction(self, own: ClusterMarker) -> str:
        try:
            found = await read_marker(self._store, own.key)
        except MarkerDamagedError as error:
            return f"the marker of {own} is not readable ({error})"
        if found is None:
            return (
                f"the store has no marker {own.key} of {own}; start a broker of this cluster, which writes it"
            )
        if found != own:
            return (
                f"namespace {own.namespace} of the store belongs to {found}, but the controllers serve"
                f" {own}; give one of the two clusters another store"
            )
        return ""

    def _tell(self, refusal: str) -> None:
        if refusal and refusal != self._refusal:
            LOG.error("nothing is deleted, only reported: %s", refusal)
        elif self._refusal and not refusal:
            LOG.info("deletion is allowed again")
        self._refusal = refusal
