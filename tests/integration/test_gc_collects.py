"""Garbage collection with real components: a controller and a collector over loopback gRPC, a
broker's session, objects in a directory.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from ponor.controller.v1 import session_service_pb2 as wire
from ponor_cli.clients.cluster_address import ClusterAddress
from ponor_cli.commands.object_reconcile import one_round, shown
from ponor_controller.app import run as run_controller
from ponor_controller.options import ControllerOptions
from ponor_controller.settings import ControllerSettings
from ponor_gc.app import run as run_gc
from ponor_gc.settings import GcSettings
from ponor_gc.verdicts import Verdict
from ponor_metadata.client.errors import NodeFencedError
from ponor_metadata.client.joining import ANY_CLUSTER, join
from ponor_metadata.client.node_identity import NodeIdentity
from ponor_metadata.client.node_process import NodeOptions
from ponor_metadata.client.session import SessionClient
from ponor_metadata.client.store_marker import PREFIX
from ponor_metadata.client.subscription import SubscriptionClient
from ponor_metadata.nouns.nodes import NodeRole
from ponor_metadata.nouns.objects import OBJECTS
from ponor_metadata.nouns.streams import STREAMS
from ponor_rpc.errors import OperationError
from ponor_rpc.grpc_network import GrpcNetwork
from ponor_runtime.disk import Buffer
from ponor_runtime.identity import ClusterOrdinal, NodeEpoch, ObjectId, compose_node_id
from ponor_runtime.object_store import (
    MultipartStore,
    ObjectInfo,
    ObjectStore,
    ObjectStoreUnavailableError,
)
from ponor_runtime.runtime import Runtime
from ponor_runtime.system import SystemClock, SystemRandomness
from ponor_runtime.system_disk import SystemDisk
from ponor_runtime.telemetry import Telemetry
from s3stream.object_wal.slot import NONCE_BYTES, Label, SlotKind
from s3stream.object_wal.slot_keys import slot_key
from s3stream.objects.keys import object_key
from s3stream.ports import WalName
from s3stream.stores.open_store import open_object_store, open_stores

ORDINAL = ClusterOrdinal(2)
SETTINGS = ControllerSettings(destroy_delay_ms=50, progress_interval_ms=20, session_timeout_ms=120_000)
GC_SETTINGS = GcSettings(poll_interval_ms_min=20, poll_interval_ms_max=100)
OFTEN = GcSettings(wal_leftovers_interval_ms=1_000)
ROUNDS = GcSettings(reconcile_interval_ms=1_000, reconcile_age_ms_min=0)


class World:
    """The controller's address, a store, and a broker that uploads."""

    def __init__(
        self,
        runtime: Runtime,
        address: str,
        store: ObjectStore,
        session: SessionClient,
        feed: SubscriptionClient,
    ) -> None:
        self.runtime = runtime
        self.address = address
        self.store = store
        self.session = session
        self.feed = feed

    async def keys(self) -> list[str]:
        return sorted([info.key async for info in self.store.list("") if not info.key.startswith(PREFIX)])

    async def prepare(self, count: int, ttl_ms: int = 3_600_000) -> list[int]:
        body = wire.PrepareObjects(count=count, ttl_ms=ttl_ms)
        reserved = (await self.session.submit(wire.Operation(prepare_objects=body))).objects_reserved
        self.namespace = reserved.namespace
        return list(range(reserved.first_object_id, reserved.first_object_id + count))

    def key(self, object_id: int) -> str:
        return object_key(self.namespace, ObjectId(object_id))

    async def put(self, object_id: int) -> None:
        await self.store.put(self.key(object_id), [b"data"])

    async def stream_with_object(self) -> tuple[int, int]:
        created = await self.session.submit(
            wire.Operation(create_streams=wire.CreateStreams(streams=[wire.StreamTags()]))
        )
        (stream_id,) = created.streams_created.stream_ids
        opening = wire.OpenStreams(streams=[wire.OpenStream(stream_id=stream_id, stream_epoch=0)])
        await self.session.submit(wire.Operation(open_streams=opening))
        (object_id,) = await self.prepare(1)
        await self.put(object_id)
        uploaded = wire.UploadedRange(stream_id=stream_id, start_offset=0, end_offset=5)
        single = wire.UploadedStreamObject(object_id=object_id, size_bytes=4, range=uploaded)
        commit = wire.CommitUpload(stream_objects=[single])
        await self.session.submit(wire.Operation(commit_upload=commit))
        return stream_id, object_id


@asynccontextmanager
async def world(tmp_path: Path) -> AsyncIterator[World]:
    network = GrpcNetwork()
    runtime = Runtime(SystemClock(), SystemRandomness(), SystemDisk(), network, Telemetry())
    store = await open_object_store(f"file://{tmp_path}/objects", runtime=runtime, environment={})
    stop, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
    options = ControllerOptions(tmp_path / "controller", "127.0.0.1:0", ORDINAL, format=True)
    controller = asyncio.create_task(
        run_controller(runtime, SETTINGS, options, stop=stop, ready=ready.set_result)
    )
    await asyncio.wait((controller, ready), return_when=asyncio.FIRST_COMPLETED)
    address = ready.result()["session"]
    identity = NodeIdentity(
        compose_node_id(ORDINAL, 0),
        NodeRole.BROKER,
        runtime.randomness.token(16),
        kafka_host="b",
        kafka_port=1,
    )
    shared: dict[str, Any] = {
        "network": network,
        "clock": runtime.clock,
        "randomness": runtime.randomness,
        "telemetry": Telemetry(),
        "addresses": [address],
    }
    joined = await join(runtime, [address], identity.node_id, ANY_CLUSTER, store, stop)
    assert joined is not None, "a broker registers after it marked the store"
    session, feed = SessionClient(identity=identity, **shared), SubscriptionClient(**shared)
    clients = [asyncio.create_task(session.run()), asyncio.create_task(feed.run())]
    await session.ready()
    try:
        yield World(runtime, address, store, session, feed)
    finally:
        await session.close()
        await feed.close()
        await asyncio.gather(*clients, return_exceptions=True)
        stop.set()
        await controller
        await store.close()
        await network.close()


@asynccontextmanager
async def collecting(
    each: World,
    telemetry: Telemetry,
    number: int = 1_000,
    store: ObjectStore | None = None,
    settings: GcSettings = GC_SETTINGS,
    multipart: MultipartStore | None = None,
) -> AsyncIterator[asyncio.Task[None]]:
    runtime = Runtime(
        each.runtime.clock, each.runtime.randomness, each.runtime.disk, each.runtime.network, telemetry
    )
    stop, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
    options = NodeOptions(compose_node_id(ORDINAL, number), (each.address,))
    task = asyncio.create_task(
        run_gc(
            runtime,
            settings,
            options,
            store=store or each.store,
            stop=stop,
            ready=ready.set_result,
            multipart=multipart,
        )
    )
    await asyncio.wait((task, ready), return_when=asyncio.FIRST_COMPLETED)
    try:
        yield task
    finally:
        stop.set()
        await task


async def _until(condition: Callable[[], Awaitable[bool]], runtime: Runtime) -> None:
    async with asyncio.timeout(240):
        while not await condition():
            await runtime.clock.sleep(0.01)


async def test_garbage_is_deleted_and_committed_objects_stay(tmp_path: Path) -> None:
    async with world(tmp_path) as each:
        kept_stream, kept = await each.stream_with_object()
        gone_stream, gone = await each.stream_with_object()
        abandoned, never_put = await each.prepare(2, ttl_ms=10)
        await each.put(abandoned)
        deletion = wire.DeleteStreams(stream_ids=[gone_stream])
        await each.session.submit(wire.Operation(delete_streams=deletion))
        assert await each.keys() == sorted(map(each.key, (kept, gone, abandoned)))

        telemetry = Telemetry()
        async with collecting(each, telemetry):

            async def only_the_committed_one() -> bool:
                return await each.keys() == [each.key(kept)]

            async def rows_are_gone() -> bool:
                return [row.object_id for row in each.feed.image[OBJECTS]] == [kept]

            await _until(only_the_committed_one, each.runtime)
            await _until(rows_are_gone, each.runtime)
        assert telemetry.counter("ponor_gc_deleted_total").value == 3
        assert kept_stream in each.feed.image[STREAMS]
        assert never_put not in each.feed.image[OBJECTS]


async def test_late_slots_are_deleted_and_the_fence_stays(tmp_path: Path) -> None:
    """The collector reads the metadata itself. The broker's newer epoch closes the log."""
    async with world(tmp_path) as each:
        await each.prepare(1)  # for the namespace
        node_id, over = compose_node_id(ORDINAL, 0), NodeEpoch(each.session.node_epoch - 1)
        log, living = (
            WalName(each.namespace, node_id, epoch) for epoch in (over, NodeEpoch(each.session.node_epoch))
        )
        for name, sequence, kind in (
            (log, 0, SlotKind.FENCE),
            (log, 1, SlotKind.DATA),
            (living, 0, SlotKind.DATA),
        ):
            content = b"records" * (kind is SlotKind.DATA)
            label = Label(kind, name, sequence, 0, bytes(NONCE_BYTES), len(content))
            await each.store.put(slot_key(name, sequence), [content + label.encode()])

        async def the_late_one_is_gone() -> bool:
            return await each.keys() == sorted((slot_key(log, 0), slot_key(living, 0)))

        async with collecting(each, Telemetry(), settings=OFTEN):
            await _until(the_late_one_is_gone, each.runtime)


async def test_orphans_and_abandoned_multipart_uploads_are_deleted(tmp_path: Path) -> None:
    """The collector lists the store and then reads the metadata."""
    async with world(tmp_path) as each:
        _, kept = await each.stream_with_object()
        (gone,) = await each.prepare(1, ttl_ms=10)
        telemetry = Telemetry()
        url = f"file://{tmp_path}/objects"
        _, multipart = await open_stores(url, runtime=each.runtime, environment={})

        async def it_was_forgotten() -> bool:
            return gone not in each.feed.image[OBJECTS]

        async with collecting(each, Telemetry()):
            await _until(it_was_forgotten, each.runtime)
        await each.put(gone)
        await multipart.create_multipart(each.key(gone))
        (prepared,) = await each.prepare(1)
        await multipart.create_multipart(each.key(prepared))

        async def only_what_may_live() -> bool:
            uploads = [upload.key async for upload in multipart.list_multiparts("")]
            keys = await each.keys()
            return keys == [each.key(kept)] and uploads == [each.key(prepared)]

        async with collecting(each, telemetry, settings=ROUNDS, multipart=multipart):
            await _until(only_what_may_live, each.runtime)
        assert telemetry.counter("ponor_gc_collected_total", reason="orphan").value == 1
        assert telemetry.counter("ponor_gc_collected_total", reason="upload").value == 1
        await multipart.close()


async def test_the_reconcile_command_needs_no_collector(tmp_path: Path) -> None:
    async with world(tmp_path) as each:
        _, kept = await each.stream_with_object()
        (future,) = await each.prepare(1)
        await each.put(future + 7)
        cluster = ClusterAddress("", [each.address], f"file://{tmp_path}/objects")
        looked = await one_round(cluster, GcSettings(reconcile_dry_run=True))
        assert looked.objects == {Verdict.KNOWN: 1, Verdict.FUTURE: 1}
        assert shown(looked) == {
            "known": "1 objects, 4 B",
            "future": "1 objects, 4 B",
            "would be deleted": "0 objects, 0 B",
            "uploads to be aborted": "0",
        }
        assert (await one_round(cluster, GcSettings(reconcile_age_ms_min=0))).deleted == 0
        assert await each.keys() == sorted(map(each.key, (kept, future + 7)))


class CountingStore:
    """A store that counts every call, and fails the first deletions."""

    def __init__(self, store: ObjectStore, failures: int = 0) -> None:
        self._store = store
        self._failures = failures
        self.calls = 0

    async def put(self, key: str, buffers: Sequence[Buffer]) -> None:
        self.calls += 1
        await self._store.put(key, buffers)

    async def get(self, key: str, start: int, length: int) -> bytes:
        self.calls += 1
        return await self._store.get(key, start, length)

    async def get_tail(self, key: str, length: int) -> tuple[bytes, int]:
        self.calls += 1
        return await self._store.get_tail(key, length)

    async def delete(self, keys: Sequence[str]) -> None:
        self.calls += 1
        if self._failures:
            self._failures -= 1
            raise ObjectStoreUnavailableError("the store is down")
        await self._store.delete(keys)

    def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        self.calls += 1
        return self._store.list(prefix)

    async def close(self) -> None:
        await self._store.close()


async def test_an_idle_collector_sends_no_store_request_and_writes_nothing(tmp_path: Path) -> None:
    async with world(tmp_path) as each:
        await each.stream_with_object()
        store = CountingStore(each.store)
        async with collecting(each, Telemetry(), store=store):
            to_join, index = store.calls, -1
            # Until all nodes have registered; after that nothing changes.
            while index != each.feed.image.index:
                index = each.feed.image.index
                await each.runtime.clock.sleep(0.5)
            assert store.calls == to_join


async def test_a_failing_store_only_delays_collection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    controller_claim_ttl = GcSettings(poll_interval_ms_min=20, poll_interval_ms_max=50, claim_ttl_ms=1_000)
    async with world(tmp_path) as each:
        (abandoned,) = await each.prepare(1, ttl_ms=10)
        await each.put(abandoned)
        store = CountingStore(each.store, failures=1)
        telemetry = Telemetry()
        runtime = Runtime(
            each.runtime.clock, each.runtime.randomness, each.runtime.disk, each.runtime.network, telemetry
        )
        stop = asyncio.Event()
        options = NodeOptions(compose_node_id(ORDINAL, 1_000), (each.address,))
        task = asyncio.create_task(
            run_gc(runtime, controller_claim_ttl, options, store=store, stop=stop, ready=lambda _: None)
        )

        async def collected() -> bool:
            return await each.keys() == []

        await _until(collected, each.runtime)
        stop.set()
        await task
        assert telemetry.counter("ponor_gc_failures_total").value >= 1  # a claim may expire meanwhile
        assert "claimed again later" in caplog.text


async def test_a_collector_with_a_reassigned_id_stops(tmp_path: Path) -> None:
    async with world(tmp_path) as each:
        with pytest.raises(NodeFencedError, match="another process"):
            async with collecting(each, Telemetry()) as first, collecting(each, Telemetry()):
                await asyncio.wait((first,), timeout=240)
                assert first.done()


async def test_a_node_id_of_another_cluster_is_refused(tmp_path: Path) -> None:
    async with world(tmp_path) as each:
        options = NodeOptions(compose_node_id(ClusterOrdinal(9), 1_000), (each.address,))
        with pytest.raises((OperationError, ExceptionGroup)) as refused:
            await run_gc(
                each.runtime,
                GC_SETTINGS,
                options,
                store=each.store,
                stop=asyncio.Event(),
                ready=lambda _: None,
            )
        assert "ordinal" in repr(refused.value)
