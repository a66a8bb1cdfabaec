"""Brokers without disks over a bucket in memory: real client, log and takeover, with
`cluster_model` as the controller.

Processes can be killed, puts can arrive late, and acknowledged records are compared with committed ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from ponor_runtime.disk import Buffer
from ponor_runtime.identity import NodeId, StreamEpoch, StreamId
from ponor_runtime.tasks import BackgroundTasks
from s3stream.client import StreamClient
from s3stream.object_wal.object_wal import ObjectWal
from s3stream.object_wal.slot import LABEL_BYTES
from s3stream.objects.block import decode_block
from s3stream.objects.keys import object_key
from s3stream.objects.reader import open_object
from s3stream.ports import OpenWal
from s3stream.recovery import RecoveryReport
from s3stream.stores.policy import PolicyObjectStore
from s3stream.stores.retrying import Retries, RetrySettings
from s3stream.stream import Stream
from s3stream.takeover import recover_wal

from libs.s3stream.tests.cluster_model import NAMESPACE, ClusterModel, ClusterNode
from libs.s3stream.tests.storage_node import small_settings
from libs.s3stream.tests.store_rig import MemoryObjectStore
from libs.s3stream.tests.wal_rigs import system_runtime


class SlowWayStore(MemoryObjectStore):
    """A store that can hold back puts of a node's slots until the test releases them, even after
    their process ended.
    """

    def __init__(self) -> None:
        super().__init__()
        self.holds: Callable[[str], bool] = lambda _: False
        self.held: list[tuple[str, bytes, asyncio.Future[None]]] = []

    async def put(self, key: str, buffers: Sequence[Buffer]) -> None:
        if self.holds(key):
            landed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.held.append((key, b"".join(buffers), landed))
            await landed
        await super().put(key, buffers)

    def let_go(self) -> None:
        """Apply all held puts in the order in which they were sent."""
        self.holds = lambda _: False
        for _, _, landed in self.held:
            if not landed.done():
                landed.set_result(None)
        self.held.clear()


class Broker:
    """One process of a node: client, log, tasks."""

    def __init__(self, cluster: DisklessCluster, node: ClusterNode) -> None:
        self.cluster = cluster
        self.node = node
        self.failures: list[BaseException] = []
        self.tasks = BackgroundTasks(lambda _, error: self.failures.append(error))
        self.acknowledged: dict[StreamId, list[bytes]] = {}
        self.streams: dict[StreamId, Stream] = {}
        self.wal: ObjectWal
        self.client: StreamClient

    async def start(self, **settings: Any) -> None:
        runtime = self.cluster.runtime
        values = small_settings(wal_requests_per_s_max=10_000.0, **settings)
        store = self.cluster.retried()
        self.wal = await ObjectWal.open(
            store=store,
            name=await self.node.open_wal(),
            manager=self.node,
            settings=values,
            clock=runtime.clock,
            randomness=runtime.randomness,
            telemetry=runtime.telemetry,
            tasks=self.tasks,
        )
        self.client = await StreamClient.start(
            runtime=runtime,
            store=store,
            wal=self.wal,
            streams=self.node,
            objects=self.node,
            settings=values,
            tasks=self.tasks,
            recover=False,
        )

    async def open(self, *streams: StreamId) -> list[Stream]:
        self.cluster.stream_epoch += 1
        opened = await self.client.open_streams(
            [(stream, StreamEpoch(self.cluster.stream_epoch)) for stream in streams]
        )
        self.streams.update((stream.stream_id, stream) for stream in opened)
        return opened

    def append(self, stream: Stream, payload: bytes) -> asyncio.Future[None]:
        """Append a record, and note it in the cluster when it is acknowledged."""
        future = stream.append(payload, count=1, max_timestamp=1)

        def told(done: asyncio.Future[None]) -> None:
            if not done.cancelled() and done.exception() is None:
                self.cluster.acknowledged.setdefault(stream.stream_id, []).append(payload)

        future.add_done_callback(told)
        return future

    async def stop(self) -> None:
        """Kill the process without a shutdown."""
        await self.tasks.close()


class DisklessCluster:
    """A bucket, a controller, and brokers."""

    def __init__(self) -> None:
        self.runtime = system_runtime()
        self.model = ClusterModel(self.runtime.clock)
        self.store = SlowWayStore()
        self.acknowledged: dict[StreamId, list[bytes]] = {}
        self.stream_epoch = 0
        self.brokers: list[Broker] = []

    def retried(self) -> PolicyObjectStore:
        retries = Retries(
            clock=self.runtime.clock,
            randomness=self.runtime.randomness,
            telemetry=self.runtime.telemetry,
            settings=RetrySettings(attempts_max=4, backoff_ms_first=1, backoff_ms_max=2),
        )
        return PolicyObjectStore(self.store, [retries])

    async def broker(self, node_id: NodeId, **settings: Any) -> Broker:
        broker = Broker(self, self.model.register(node_id))
        self.brokers.append(broker)
        await broker.start(**settings)
        return broker

    def fail_over(self, node_id: NodeId, recoverer: Broker) -> list[OpenWal]:
        """Fence a node and assign its logs to another one."""
        self.model.fence(node_id)
        return self.model.assign_wals(node_id, recoverer.node)

    async def recover(self, wal: OpenWal, broker: Broker, **settings: Any) -> RecoveryReport:
        return await recover_wal(
            runtime=self.runtime,
            store=self.retried(),
            wal=wal,
            manager=broker.node,
            streams=broker.node,
            objects=broker.node,
            settings=small_settings(**settings),
        )

    async def committed(self, stream: StreamId) -> list[bytes]:
        """Return the stream's committed records."""
        found: list[bytes] = []
        offset = 0
        for piece in self.model.streams[stream].pieces:
            assert piece.start_offset == offset, "objects meet"
            key = object_key(NAMESPACE, piece.object_id)
            opened = await open_object(self.store, key)
            for entry in opened.index.blocks_of(stream, piece.start_offset, piece.end_offset):
                data = await self.store.get(key, entry.position, entry.size_bytes)
                block = decode_block(key, entry, data)
                found.extend(bytes(record.payload) for record in block.records_from(entry.start_offset))
            offset = piece.end_offset
        return found

    async def check(self) -> None:
        """Check that every acknowledged record is committed exactly once and in order."""
        for stream, acknowledged in self.acknowledged.items():
            found = await self.committed(stream)
            assert len(found) == len(set(found)), "nothing twice"
            at = iter(found)
            assert all(payload in at for payload in acknowledged), (acknowledged, found)

    def slots(self, prefix: str) -> list[str]:
        return [
            key
            for key, data in self.store.objects.items()
            if key.startswith(prefix) and len(data) > LABEL_BYTES
        ]
