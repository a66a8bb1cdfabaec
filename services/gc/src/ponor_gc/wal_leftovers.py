"""Delete slots that the store adds to an object WAL after the log was closed; a put may take effect after any
delay.

A log counts as closed when its epoch is over (a newer process registered, or the node was fenced) and the
metadata, read during the pass, has no row for the log. Both conditions are permanent.

Only data slots are deleted, never fences: a fence must outlive every process that may resume and put (rules
R3 and R4 of docs/formats/object-wal.md). Fences are therefore the only objects that accumulate without limit,
132 bytes per takeover.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Final

from ponor_metadata.client.errors import MetadataLagError
from ponor_metadata.client.image_reading import ReadImage
from ponor_metadata.image.image import MetadataImage
from ponor_metadata.nouns.cluster import cluster_of
from ponor_metadata.nouns.nodes import NODES, NodeRole, NodeRow
from ponor_metadata.nouns.wals import WALS
from ponor_metadata.tables.schema import View
from ponor_runtime.clock import Clock
from ponor_runtime.object_store import ObjectNotFoundError, ObjectStore, ObjectStoreError
from ponor_runtime.telemetry import Telemetry
from s3stream.errors import ObjectCorruptError
from s3stream.object_wal.slot import LABEL_BYTES, SlotKind, decode_label
from s3stream.object_wal.slot_keys import node_prefix, parse_slot_key
from s3stream.ports import WalName

from ponor_gc.deletion_right import DeletionRight, marker_of
from ponor_gc.settings import GcSettings

LOG: Final = logging.getLogger(__name__)
DELETED_AT_ONCE_MAX: Final = 500


def is_closed(view: View, node: NodeRow, name: WalName) -> bool:
    """Return whether the log is closed, so that its slots are never read again."""
    is_over = name.epoch < node.node_epoch or (name.epoch == node.node_epoch and node.fenced)
    return is_over and (name.node_id, name.epoch) not in view[WALS]


class WalLeftovers:
    """Deletes late slots, a bounded number of keys per pass; the next pass resumes at the node at which this
    one stopped.
    """

    def __init__(
        self,
        store: ObjectStore,
        right: DeletionRight,
        clock: Clock,
        settings: GcSettings,
        telemetry: Telemetry,
        read_image: ReadImage,
    ) -> None:
        self._store = store
        self._right = right
        self._clock = clock
        self._settings = settings
        self._read_image = read_image
        self._found = telemetry.counter("ponor_gc_wal_leftovers_total")
        self._collected = telemetry.counter("ponor_gc_collected_total", reason="wal")
        self._keys_left = 0
        self._resume_at = 0

    async def run(self) -> None:
        """Run passes until cancelled. The first one follows a pause, so that restarts cause no store
        requests.
        """
        while True:
            await self._clock.sleep(self._settings.wal_leftovers_interval_ms / 1000)
            try:
                await self.collect()
            except (ObjectStoreError, MetadataLagError) as error:
                LOG.warning(
                    "the scan for late slots of closed write-ahead logs failed and will be retried: %s", error
                )

    async def collect(self) -> int:
        """Run one pass; return the number of late slots found (and deleted, unless the pass only reports).

        Raises:
            ObjectStoreError: the store failed.
            MetadataLagError: no majority of the controllers confirmed the committed index.
        """
        image = await self._read_image()
        cluster = cluster_of(image)
        if cluster is None:
            return 0
        only_look = (
            self._settings.wal_leftovers_dry_run
            or cluster.incarnation_unconfirmed
            or not await self._right.may_delete(marker_of(cluster))
        )
        self._keys_left = self._settings.wal_leftovers_keys_max
        found = 0
        for node in self._nodes(image):
            self._resume_at = node.node_id
            late = [key async for key in self._late_slots(image, node, cluster.namespace)]
            found += len(late)
            await self._remove(node, late, only_look=only_look)
            if self._keys_left <= 0:
                LOG.info("the next scan of write-ahead logs continues at node %d", node.node_id)
                return found
        self._resume_at = 0
        return found

    def _nodes(self, image: MetadataImage) -> list[NodeRow]:
        """Return the brokers, starting where the last pass stopped and wrapping around."""
        brokers = [row for row in image[NODES] if row.role is NodeRole.BROKER]
        return sorted(brokers, key=lambda row: (row.node_id < self._resume_at, row.node_id))

    async def _late_slots(self, image: MetadataImage, node: NodeRow, namespace: str) -> AsyncIterator[str]:
        async for info in self._store.list(node_prefix(namespace, node.node_id)):
            self._keys_left -= 1
            if info.size_bytes > LABEL_BYTES and await self._is_late(image, node, info.key):
                yield info.key
            if self._keys_left <= 0:
                return

    async def _is_late(self, image: MetadataImage, node: NodeRow, key: str) -> bool:
        """Return whether the object is a data slot of a closed log. Objects that are not slots are never
        deleted.
        """
        try:
            name, sequence = parse_slot_key(key)
            if not is_closed(image, node, name):
                return False
            tail, _ = await self._store.get_tail(key, LABEL_BYTES)
            return decode_label(key, name, sequence, tail).kind is SlotKind.DATA
        except ObjectNotFoundError:
            return False
        except (ValueError, ObjectCorruptError) as error:
            LOG.warning("not deleting an unknown object among the write-ahead logs: %s", error)
            return False

    async def _remove(self, node: NodeRow, keys: list[str], *, only_look: bool) -> None:
        if not keys:
            return
        self._found.add(len(keys))
        if only_look:
            LOG.info(
                "%d late slots of node %d would be deleted, from %s on", len(keys), node.node_id, keys[0]
            )
            return
        for at in range(0, len(keys), DELETED_AT_ONCE_MAX):
            await self._store.delete(keys[at : at + DELETED_AT_ONCE_MAX])
        self._collected.add(len(keys))
        LOG.info("%d late slots of node %d deleted", len(keys), node.node_id)
