"""Fixture: a bucket and the metadata of one cluster in virtual time, without a controller.

Rows change state as in `ponor_metadata.nouns.objects`. The store is the simulator's, with lost answers and
late puts.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from ponor_gc.abandoned_uploads import AbandonedUploads
from ponor_gc.deletion_pace import DeletionPace
from ponor_gc.deletion_right import DeletionRight
from ponor_gc.reconciliation import Reconciliation
from ponor_gc.rounds import Rounds
from ponor_gc.settings import GcSettings
from ponor_metadata.client.image_reading import ReadImage
from ponor_metadata.client.store_marker import PREFIX, ClusterMarker
from ponor_metadata.image.image import MetadataImage
from ponor_metadata.nouns import counters
from ponor_metadata.nouns.cluster import CLUSTERS, ClusterRow
from ponor_metadata.nouns.nodes import NO_EPOCH, NO_NODE
from ponor_metadata.nouns.objects import OBJECTS, ObjectRow, ObjectState
from ponor_runtime.disk import Buffer
from ponor_runtime.identity import ClusterOrdinal, NodeEpoch, NodeId, ObjectId
from ponor_runtime.object_store import MultipartStore, ObjectInfo, ObjectStore
from ponor_runtime.runtime import Runtime
from ponor_simulation.chance import wall_ms_at
from ponor_simulation.object_store import SimObjectStore
from ponor_simulation.simulation import Simulation
from s3stream.objects.keys import object_key
from s3stream.stores.open_store import wrap_object_store

NAMESPACE = "cluster-3"
ORDINAL = ClusterOrdinal(3)
BROKER, EPOCH = NodeId(196_608), NodeEpoch(1)
HOUR_MS = 3_600_000
MARKER = ClusterMarker(NAMESPACE, ORDINAL, NAMESPACE)
SETTINGS = GcSettings(reconcile_age_ms_min=HOUR_MS)


def key_of(object_id: int, namespace: str = NAMESPACE) -> str:
    return object_key(namespace, ObjectId(object_id))


@dataclass
class BucketWorld:
    """Rows and objects. The cluster clock is the loop's."""

    seed: int = 1
    marker: ClusterMarker | None = MARKER
    simulation: Simulation = field(init=False)
    store: SimObjectStore = field(init=False)
    image: MetadataImage = field(init=False)

    def __post_init__(self) -> None:
        self.simulation = Simulation(self.seed)
        self.store = self.simulation.object_store()
        self.image = MetadataImage()
        self.unconfirmed(False)

    @property
    def keys(self) -> set[str]:
        return {key for key in self.store.bucket.objects if not key.startswith(PREFIX)}

    def now_ms(self) -> int:
        return wall_ms_at(self.simulation.loop)

    def unconfirmed(self, is_unconfirmed: bool) -> None:
        self.image[CLUSTERS].put(ClusterRow(NAMESPACE, ORDINAL, NAMESPACE, 1, is_unconfirmed))

    def prepare(self, ttl_ms: int = HOUR_MS) -> ObjectId:
        object_id = ObjectId(counters.next_value(self.image, counters.OBJECT))
        counters.take(self.image, counters.OBJECT, object_id)
        expires_at_ms = self.now_ms() + ttl_ms
        self.image[OBJECTS].put(
            ObjectRow(
                object_id, ObjectState.PREPARED, NAMESPACE, 0, BROKER, EPOCH,
                expires_at_ms, 0, 0, 0, NO_NODE, NO_EPOCH, 0,
            )
        )  # fmt: skip
        return object_id

    def commit(self, object_id: ObjectId) -> None:
        row = self.image[OBJECTS].get(object_id)
        assert row is not None
        assert row.state is ObjectState.PREPARED
        self.image[OBJECTS].put(
            row._replace(state=ObjectState.COMMITTED, expires_at_ms=0, size_bytes=4, committed_at_ms=self.now_ms())  # noqa: E501
        )  # fmt: skip

    def destroy(self, object_id: ObjectId) -> None:
        row = self.image[OBJECTS].get(object_id)
        assert row is not None
        self.image[OBJECTS].put(
            row._replace(state=ObjectState.DESTROYED, expires_at_ms=0, destroyed_at_ms=self.now_ms())
        )

    def remove(self, object_id: ObjectId) -> None:
        self.image[OBJECTS].delete(object_id)

    def gone(self) -> ObjectId:
        """Return an id that was assigned and whose deletion was confirmed."""
        object_id = self.prepare()
        self.remove(object_id)
        return object_id

    async def put(self, key: str, data: bytes = b"data") -> str:
        await self.store.put(key, [data])
        return key

    async def pass_hours(self, hours: float) -> None:
        await asyncio.sleep(hours * HOUR_MS / 1000)

    @asynccontextmanager
    async def follow(self) -> AsyncIterator[ReadImage]:
        async def current() -> MetadataImage:
            await asyncio.sleep(0.01)
            return self.image

        yield current

    def rounds(
        self,
        runtime: Runtime,
        settings: GcSettings = SETTINGS,
        *,
        store: ObjectStore | None = None,
        multipart: MultipartStore | None = None,
    ) -> Rounds:
        pace = DeletionPace(runtime.clock, settings, runtime.telemetry)
        collecting = wrap_object_store(store or self.store, runtime=runtime, policy=pace)
        right = DeletionRight(collecting, runtime.clock, runtime.telemetry)
        return Rounds(
            Reconciliation(collecting, right, runtime.clock, settings, runtime.telemetry),
            AbandonedUploads(multipart, runtime.clock, settings, runtime.telemetry),
            right,
            settings,
            runtime.telemetry,
            self.follow,
        )

    def play(self, story: Callable[[Runtime], Awaitable[None]]) -> None:
        """Run a test body as the program of one simulated machine."""
        ended: list[bool] = []

        async def main(runtime: Runtime) -> None:
            if self.marker is not None:
                await self.store.put(MARKER.key, [self.marker.encode()])
            await story(runtime)
            ended.append(True)

        process = self.simulation.process("gc", main)

        async def run() -> None:
            process.start()
            while process.running:
                await asyncio.sleep(1)
            if process.failure is not None:
                raise process.failure

        self.simulation.run(run())
        assert ended == [True]


class StaleListings:
    """`ObjectStore` that sometimes returns an earlier listing, with deleted keys and without new ones."""

    def __init__(self, inner: ObjectStore, is_stale: Callable[[], bool]) -> None:
        self._inner = inner
        self._is_stale = is_stale
        self._seen: dict[str, list[ObjectInfo]] = {}

    async def put(self, key: str, buffers: Sequence[Buffer]) -> None:
        await self._inner.put(key, buffers)

    async def get(self, key: str, start: int, length: int) -> bytes:
        return await self._inner.get(key, start, length)

    async def get_tail(self, key: str, length: int) -> tuple[bytes, int]:
        return await self._inner.get_tail(key, length)

    async def delete(self, keys: Sequence[str]) -> None:
        await self._inner.delete(keys)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        if prefix not in self._seen or not self._is_stale():
            self._seen[prefix] = [info async for info in self._inner.list(prefix)]
        for info in self._seen[prefix]:
            yield info

    async def close(self) -> None:
        await self._inner.close()
