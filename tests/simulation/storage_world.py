"""A simulated machine with the real storage, a bucket, a controller, and clients that record
acknowledgements.

Streams, file write-ahead log, upload and recovery run on the simulated disk and object store. The controller
is the reference model, reached with delays, so that a process may crash between an operation and its answer.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePosixPath

from ponor_runtime.identity import StreamEpoch, StreamId
from ponor_runtime.object_store import ObjectStore, ObjectStoreError
from ponor_runtime.runtime import Runtime
from ponor_runtime.tasks import BackgroundTasks
from ponor_simulation.object_store import StoreFaults
from ponor_simulation.process import SimProcess, wait_until
from ponor_simulation.simulation import Simulation
from s3stream.client import StreamClient
from s3stream.errors import AppendBackpressureError, S3StreamError
from s3stream.file_wal import FileWal
from s3stream.objects.keys import object_key
from s3stream.ports import PIECES_MAX, ObjectPiece, PreparedObjects, StreamState, UploadedObject, WalName
from s3stream.settings import KIB, MIB, StorageSettings
from s3stream.stores.open_store import wrap_object_store
from s3stream.stores.retrying import RetrySettings
from s3stream.stream import Stream

from libs.s3stream.tests.cluster_model import NAMESPACE, ClusterModel, ClusterNode
from libs.s3stream.tests.storage_node import payloads_of, read_all

WAL = PurePosixPath("/data/wal")
SETTINGS = StorageSettings(
    log_cache_bytes_max=768 * KIB,
    append_waiting_bytes_max=32 * KIB,
    block_cache_bytes_max=1 * MIB,
    upload_size_bytes_max=48 * KIB,
    upload_interval_ms=800,
    split_size_bytes=24 * KIB,
    object_block_bytes_max=4 * KIB,
    small_rest_bytes_max=6 * KIB,
    wal_bytes_max=1 * MIB,
    recovery_chunk_bytes_max=40 * KIB,
    upload_retry_ms_max=200,
    prepared_ttl_ms=20_000,
)
RETRY = RetrySettings(attempts_max=4, deadline_ms=2_000, backoff_ms_first=5, backoff_ms_max=100)


@dataclass
class History:
    """The records of one stream in the order of their appends, and which were acknowledged."""

    appended: list[bytes] = field(default_factory=list)
    acknowledged: set[bytes] = field(default_factory=set)
    ends: dict[bytes, int] = field(default_factory=dict)
    """End offsets."""

    def give_up_behind(self, end_offset: int) -> None:
        """Record that an operator accepted the loss of uncommitted records."""
        self.acknowledged = {each for each in self.acknowledged if self.ends[each] <= end_offset}

    def check(self, found: Sequence[bytes]) -> None:
        """Check that acknowledged records are there, in order and once, and no others."""
        places = {payload: place for place, payload in enumerate(self.appended)}
        order = [places[payload] for payload in found]
        assert order == sorted(set(order)), "reordered or doubled"
        missing = self.acknowledged - set(found)
        assert not missing, f"lost: {sorted(places[payload] for payload in missing)}"


class SlowController:
    """The cluster model with delayed answers."""

    def __init__(self, node: ClusterNode, runtime: Runtime) -> None:
        self._node = node
        self._runtime = runtime
        self.owned_streams = node.owned_streams
        self.exists = node.exists

    async def _wait(self) -> None:
        await self._runtime.clock.sleep(self._runtime.randomness.uniform(0.0005, 0.02))

    async def create_streams(self, tags: Sequence[Mapping[str, str]]) -> list[StreamId]:
        await self._wait()
        return await self._node.create_streams(tags)

    async def open_streams(self, streams: Sequence[tuple[StreamId, StreamEpoch]]) -> list[StreamState]:
        await self._wait()
        states = await self._node.open_streams(streams)
        await self._wait()
        return states

    async def close_streams(
        self, streams: Sequence[StreamState], *, recovered: WalName | None = None
    ) -> None:
        await self._wait()
        await self._node.close_streams(streams, recovered=recovered)
        await self._wait()

    async def trim_streams(self, streams: Sequence[tuple[StreamId, StreamEpoch, int]]) -> None:
        await self._wait()
        await self._node.trim_streams(streams)

    async def delete_streams(self, stream_ids: Sequence[StreamId]) -> None:
        await self._wait()
        await self._node.delete_streams(stream_ids)

    async def prepare_objects(self, count: int) -> PreparedObjects:
        await self._wait()
        prepared = await self._node.prepare_objects(count)
        await self._wait()
        return prepared

    async def commit_upload(
        self,
        stream_set_object: UploadedObject | None,
        stream_objects: Sequence[UploadedObject],
        *,
        trim_sequence: int = 0,
        recovered: WalName | None = None,
    ) -> None:
        await self._wait()
        await self._node.commit_upload(
            stream_set_object, stream_objects, trim_sequence=trim_sequence, recovered=recovered
        )
        await self._wait()

    async def find_objects(
        self, stream_id: StreamId, start_offset: int, end_offset: int, *, pieces_max: int = PIECES_MAX
    ) -> list[ObjectPiece]:
        return await self._node.find_objects(stream_id, start_offset, end_offset, pieces_max=pieces_max)


class World:
    """What exists longer than the processes: the cluster, the bucket, and the clients' history."""

    def __init__(self, seed: int, settings: StorageSettings = SETTINGS) -> None:
        self.settings = settings
        self.simulation = Simulation(seed)
        self.chance: random.Random = self.simulation.chance
        self.store = self.simulation.object_store()
        self.process: SimProcess = self.simulation.process("node", self.live)
        self.cluster = ClusterModel(self.process.clock, prepared_ttl_ms=settings.prepared_ttl_ms)
        self.streams: list[StreamId] = []
        self.histories: dict[StreamId, History] = {}
        self.lives = 0
        self.hook_calls = 0
        self.share_of_first = self.chance.choice((0.5, 0.9, 0.97))
        self.recovered_records = 0
        self.ready = False
        self.stop = False
        self.losses = 0
        self._operator = random.Random(f"operator {seed}")

    async def live(self, runtime: Runtime) -> None:
        """One process: recover, check everything, then append until stopped."""
        self.lives += 1
        self.ready = False
        store: ObjectStore = wrap_object_store(self.store, runtime=runtime, retry=RETRY)
        wal = await FileWal.open(
            runtime.disk, WAL, identity=bytes(16), settings=self.settings, telemetry=runtime.telemetry
        )
        ports = SlowController(self.cluster.register(), runtime)
        tasks = BackgroundTasks(runtime.fail_stop)
        client = await StreamClient.start(
            runtime=runtime,
            store=store,
            wal=wal,
            streams=ports,
            objects=ports,
            settings=self.settings,
            tasks=tasks,
        )
        self.recovered_records += client.recovery.records
        if not self.streams:
            self.streams = await client.create_streams([{}] * 6)
            self.histories = {stream_id: History() for stream_id in self.streams}
        streams = await client.open_streams([(each, StreamEpoch(self.lives)) for each in self.streams])
        for stream in streams:
            await self.check(stream)
        self.ready = True
        await self.work(runtime, client, streams)
        assert await client.close()
        assert not any(row.open for row in self.cluster.streams.values())

    async def work(self, runtime: Runtime, client: StreamClient, streams: list[Stream]) -> None:
        """Append to streams of different rates; the last stream gets a snapshot with every upload
        of the first.
        """
        meta = streams[-1]
        client.on_upload(streams[0].stream_id, partial(self.snapshot, streams[0], meta))
        number = 0
        while not self.stop:
            number += 1
            dice = self.chance.random()
            stream = streams[0] if dice < self.share_of_first else self.chance.choice(streams[:-1])
            size = self.chance.choice((10, 200, 3_000, 9_000))
            self.append(stream, f"{self.lives}/{stream.stream_id}/{number}/", size)
            if self.chance.random() < 0.3:
                await runtime.clock.sleep(self.chance.uniform(0, 0.01))
            if self.chance.random() < 0.003:
                await client.force_upload()
            if self.chance.random() < 0.004:
                await self.check(self.chance.choice(streams))

    async def check(self, stream: Stream) -> None:
        """Read a whole stream, repeating failed reads."""
        while True:
            try:
                found = payloads_of(await read_all(stream))
            except ObjectStoreError:
                continue
            self.histories[stream.stream_id].check(found)
            return

    def append(self, stream: Stream, name: str, size: int) -> None:
        """Append once and record the acknowledgement."""
        history = self.histories[stream.stream_id]
        payload = name.encode().ljust(size, b".")
        try:
            future = stream.append(payload, count=self.chance.choice((1, 1, 3)), max_timestamp=-1)
        except AppendBackpressureError:
            return
        history.appended.append(payload)
        history.ends[payload] = stream.next_offset
        future.add_done_callback(partial(_remember, history, payload))

    def snapshot(self, data: Stream, meta: Stream) -> bool:
        """A partition's hook; every third call does a part of the work alone."""
        self.hook_calls += 1
        if self.hook_calls % 3 == 0:
            return True
        self.append(meta, f"{self.lives}/snapshot/{data.next_offset}/{meta.next_offset}/", 60)
        return False

    def _accept_loss(self) -> None:
        """Close the streams of the dead node at their committed ends, as an operator does; the disk
        returns later.
        """
        for stream_id, history in self.histories.items():
            row = self.cluster.streams[stream_id]
            if row.open:
                self.losses += 1
                row.open = False
                history.give_up_behind(row.end_offset)

    async def scenario(self) -> None:
        """Several lives that crash, and one that ends in order."""
        for _ in range(self.chance.randint(2, 5)):
            self.store.faults = StoreFaults(
                before=self.chance.choice((0, 0.05, 0.3)),
                after=self.chance.choice((0, 0.05, 0.2)),
                short_read=self.chance.choice((0, 0.02)),
                down=self.chance.random() < 0.1,
            )
            self.process.start()
            await asyncio.sleep(self.chance.choice((0.02, 0.3, 1.5, 5.0)) * self.chance.random())
            if self.process.running:
                self.process.crash(power_loss=self.chance.random() < 0.7)
            assert self.process.failure is None, repr(self.process.failure)
            if self._operator.random() < 0.2:
                self._accept_loss()
        self.store.faults = StoreFaults()
        self.process.start()
        await wait_until(lambda: self.ready or not self.process.running)
        self.stop = True
        await wait_until(lambda: not self.process.running)
        if self.process.failure is not None:
            raise self.process.failure
        for object_id, uploaded in self.cluster.committed.items():
            assert len(self.store.bucket.objects[object_key(NAMESPACE, object_id)]) == uploaded.size_bytes


def _remember(history: History, payload: bytes, future: asyncio.Future[None]) -> None:
    if not future.cancelled() and future.exception() is None:
        history.acknowledged.add(payload)
    elif not future.cancelled():
        assert isinstance(future.exception(), S3StreamError)
