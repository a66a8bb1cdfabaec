"""Tests that late slots of closed logs are deleted, and that fences, open logs, live epochs and unknown
objects are kept.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from ponor_gc.deletion_right import DeletionRight, marker_of
from ponor_gc.settings import GcSettings
from ponor_gc.wal_leftovers import WalLeftovers
from ponor_metadata.client.store_marker import PREFIX, put_marker
from ponor_metadata.image.image import MetadataImage
from ponor_metadata.nouns.cluster import CLUSTERS, ClusterRow, cluster_of
from ponor_metadata.nouns.nodes import NO_EPOCH, NO_NODE, NODES, NodeRole, NodeRow, WalKind
from ponor_metadata.nouns.wals import WALS, WalRow
from ponor_runtime.identity import ClusterOrdinal, NodeEpoch, NodeId
from ponor_runtime.system import SystemClock
from ponor_runtime.system_disk import SystemDisk
from ponor_runtime.telemetry import Telemetry
from s3stream.object_wal.slot import NONCE_BYTES, Label, SlotKind
from s3stream.object_wal.slot_keys import slot_key
from s3stream.ports import WalName
from s3stream.stores.directory import DirectoryObjectStore

NAMESPACE = "cluster-1"
BROKER, OTHER = NodeId(7), NodeId(8)


class World:
    """A store with slots, and the metadata of their logs."""

    def __init__(self, store: DirectoryObjectStore) -> None:
        self.store = store
        self.image = MetadataImage()
        self.unconfirmed(False)

    def unconfirmed(self, is_unconfirmed: bool) -> None:
        self.image[CLUSTERS].put(ClusterRow(NAMESPACE, ClusterOrdinal(1), NAMESPACE, 0, is_unconfirmed))

    def broker(self, node_id: NodeId, epoch: int, *, fenced: bool = False) -> None:
        row = NodeRow(
            node_id, NodeEpoch(epoch), NodeRole.BROKER, b"", "b", 1, 0, fenced, 1, wal=WalKind.OBJECT
        )
        self.image[NODES].put(row)

    def open_log(self, node_id: NodeId, epoch: int) -> None:
        self.image[WALS].put(WalRow(node_id, NodeEpoch(epoch), 0, NO_NODE, NO_EPOCH))

    async def put(self, node_id: NodeId, epoch: int, sequence: int, kind: SlotKind = SlotKind.DATA) -> str:
        name = WalName(NAMESPACE, node_id, NodeEpoch(epoch))
        content = b"records" if kind is SlotKind.DATA else b""
        label = Label(kind, name, sequence, 0, bytes(NONCE_BYTES), len(content))
        key = slot_key(name, sequence)
        await self.store.put(key, [content + label.encode()])
        return key

    async def keys(self) -> set[str]:
        return {info.key async for info in self.store.list("") if not info.key.startswith(PREFIX)}

    def collector(self, settings: GcSettings | None = None) -> WalLeftovers:
        async def read_image() -> MetadataImage:
            return self.image

        right = DeletionRight(self.store, SystemClock(), Telemetry())
        return WalLeftovers(
            self.store, right, SystemClock(), settings or GcSettings(), Telemetry(), read_image
        )


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    disk = SystemDisk()
    store = await DirectoryObjectStore.open(disk, tmp_path)
    world = World(store)
    cluster = cluster_of(world.image)
    assert cluster is not None
    await put_marker(store, marker_of(cluster))
    yield world
    await store.close()
    disk.close()


async def test_only_late_data_of_closed_logs_is_deleted(world: World) -> None:
    world.broker(BROKER, 5)
    world.open_log(BROKER, 4)
    late = [await world.put(BROKER, 1, 3), await world.put(BROKER, 3, 0)]
    kept = {
        await world.put(BROKER, 1, 2, SlotKind.FENCE),
        await world.put(BROKER, 4, 0),  # not recovered yet
        await world.put(BROKER, 5, 0),  # the live process's own
        await world.put(BROKER, 6, 0),  # of a process that is not in the metadata yet
        await world.put(OTHER, 1, 0),  # of an unknown node
    }
    assert await world.collector().collect() == len(late)
    assert await world.keys() == kept


async def test_log_of_a_fenced_process_is_closed_after_its_recovery(world: World) -> None:
    world.broker(BROKER, 5, fenced=True)
    world.open_log(BROKER, 5)
    late = await world.put(BROKER, 5, 9)
    assert await world.collector().collect() == 0
    world.image[WALS].delete((BROKER, NodeEpoch(5)))
    assert await world.collector().collect() == 1
    assert late not in await world.keys()


async def test_dry_run_and_unconfirmed_incarnation_delete_nothing(world: World) -> None:
    world.broker(BROKER, 2)
    late = await world.put(BROKER, 1, 0)
    assert await world.collector(GcSettings(wal_leftovers_dry_run=True)).collect() == 1
    world.unconfirmed(True)
    assert await world.collector().collect() == 1
    assert await world.keys() == {late}
    world.unconfirmed(False)
    assert await world.collector().collect() == 1
    assert await world.keys() == set()


async def test_objects_that_are_not_slots_are_kept(world: World) -> None:
    world.broker(BROKER, 3)
    slot = await world.put(BROKER, 1, 0)
    prefix = slot.rpartition("/")[0]
    strangers = {f"{prefix}/00000000000000000001", f"{prefix}/notes"}
    for key in strangers:
        await world.store.put(key, [b"x" * 500])
    assert await world.collector().collect() == 1
    assert await world.keys() == strangers


async def test_pass_is_bounded_and_the_next_one_resumes(world: World) -> None:
    world.broker(BROKER, 2)
    world.broker(OTHER, 2)
    for node in (BROKER, OTHER):
        for sequence in range(3):
            await world.put(node, 1, sequence)
    collector = world.collector(GcSettings(wal_leftovers_keys_max=2))
    assert [await collector.collect() for _ in range(4)] == [2, 2, 2, 0]
    assert await world.keys() == set()
