"""Whether this collector may delete anything in its store.

Every proof of death rests on one claim: this namespace belongs to this cluster, and the metadata are its newest. The marker in the store (docs/formats/cluster-marker.md) and ids
beyond the counter can show that the claim is wrong: another cluster writes here, or the controllers' log is older than the store. Then this collector only reports.
"""

from __future__ import annotations

import logging
from typing import Final

from ponor_metadata.rows import ClusterRow
from ponor_metadata.store_marker import ClusterMarker, MarkerDamagedError, read_marker
from ponor_runtime.clock import Clock
from ponor_runtime.object_store import ObjectStore
from ponor_runtime.telemetry import Telemetry

LOG: Final = logging.getLogger(__name__)
MARKER_MS_MAX: Final = 60_000
"""How long a marker that was seen is trusted."""


def marker_of(cluster: ClusterRow) -> ClusterMarker:
    """The marker that this cluster's namespace must have."""
    return ClusterMarker(cluster.cluster_id, cluster.cluster_ordinal, cluster.namespace)


class DeletionRight:
    """Asked before every deletion. Once withdrawn by `withdraw` it stays so until the process starts again."""

    def __init__(self, store: ObjectStore, clock: Clock, telemetry: Telemetry) -> None:
        self._store = store
        self._clock = clock
        self._seen_ns: int | None = None
        self._refusal = ""
        self._withdrawn = False
        telemetry.gauge("ponor_gc_report_only", lambda: float(bool(self._refusal)))

    @property
    def refusal(self) -> str:
        """Why nothing is deleted, as found by the last check; empty: it may be."""
        return self._refusal

    def withdraw(self, reason: str) -> None:
        """Delete nothing from now on."""
        self._withdrawn = True
        self._tell(reason)

    async def may_delete(self, own: ClusterMarker) -> bool:
        """Whether a cluster's objects may be deleted here; reads the marker if it was not seen lately.

        Raises:
            ObjectStoreError: the store cannot be asked.
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
                f"the store has no marker {own.key} of {own}; start a broker of this cluster, which puts it"
            )
        if found != own:
            return f"the store says that namespace {own.namespace} belongs to {found}, the controllers serve {own}; give one of the two clusters another store"
        return ""

    def _tell(self, refusal: str) -> None:
        if refusal and refusal != self._refusal:
            LOG.error("nothing is deleted, only reported: %s", refusal)
        elif self._refusal and not refusal:
            LOG.info("objects are deleted again")
        self._refusal = refusal
