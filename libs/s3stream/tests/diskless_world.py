"""Brokers without disks, in virtual time, on an unreliable store. They are paused, fenced,
recovered, resumed, killed and restarted.

The controller is `cluster_model` behind a slow connection. The scenario decides which broker is
fenced, which one recovers its log, and which one owns a stream.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from ponor_runtime.identity import NodeId, StreamEpoch, StreamId
from ponor_runtime.object_store import ObjectStoreError
from ponor_runtime.runtime import Runtime
from ponor_runtime.tasks import BackgroundTasks
from ponor_simulation.object_store import StoreFaults
from ponor_simulation.process import SimProcess, wait_until
from ponor_simulation.simulation import Simulation
from s3stream.client import StreamClient
from s3stream.errors import (
    AppendBackpressureError,
    CommitRefusedError,
    S3StreamError,
    StorageFailedError,
    WalNotHeldError,
)
from s3stream.object_wal.object_wal import ObjectWal
from s3stream.object_wal.slot import LABEL_BYTES
from s3stream.ports import OpenWal, PreparedObjects, StreamState, UploadedObject, WalName
from s3stream.settings import KIB, MIB, StorageSettings
from s3stream.stores.open_store import wrap_object_store
from s3stream.stores.retrying import RetrySettings
from s3stream.stream import Stream
from s3stream.takeover import recover_wal

from libs.s3stream.tests.cluster_model import ClusterModel, ClusterNode
from libs.s3stream.tests.storage_node import payloads_of, read_all

SETTINGS: Final = StorageSettings(
    log_cache_bytes_max=8 * MIB,
    append_waiting_bytes_max=32 * KIB,
    block_cache_bytes_max=1 * MIB,
    upload_size_bytes_max=48 * KIB,
    upload_interval_ms=800,
    split_size_bytes=64 * KIB,
    object_block_bytes_max=4 * KIB,
    small_rest_bytes_max=6 * KIB,
    wal_slot_bytes_max=64 * KIB,
    wal_slot_bytes_wanted=8 * KIB,
    wal_requests_per_s_max=200.0,
    wal_recovery_slots_max=24,
    wal_hedge_ms=100,
    recovery_reads_in_flight_max=4,
    recovery_chunk_bytes_max=1 * MIB,
    upload_retry_ms_max=200,
)
RETRY: Final = RetrySettings(attempts_max=4, deadline_ms=2_000, backoff_ms_first=5, backoff_ms_max=100)
NODES: Final = (NodeId(1), NodeId(2), NodeId(3))
EXPECTED_ENDS: Final = (StorageFailedError, CommitRefusedError)
"""Errors that end a fenced process."""


@dataclass
class History:
    """Appends to one stream and tsuccessor acknowledgements. Two owners may append at the same time, one
    of them fenced, so the order is checked by owner.
    """

    appended: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    """Owner's stream epoch and number, by payload."""
    acknowledged: dict[bytes, None] = field(default_factory=dict)

    def check(self, found: Sequence[bytes]) -> None:
        """Check that all acknowledged records are committed, and that committed records were
        appended, are in order and appear once.
        """
        missing = [payload for payload in self.acknowledged if payload not in set(found)]
        assert not missing, f"lost: {[payload[:30] for payload in missing]}"
        order = [self.appended[payload] for payload in found]
        assert order == sorted(set(order)), "reordered, duplicated, or restored"


class SlowManager(ClusterNode):
    """The cluster model behind a slow connection."""

    def __init__(self, node: ClusterNode, runtime: Runtime) -> None:
        super().__init__(node.cluster, node.epoch, node.node_id)
        self._runtime = runtime

    async def _wait(self) -> None:
        await self._runtime.clock.sleep(self._runtime.randomness.uniform(0.0005, 0.02))

    async def open_streams(self, streams: Sequence[tuple[StreamId, StreamEpoch]]) -> list[StreamState]:
        await self._wait()
        states = await super().open_streams(streams)
        await self._wait()
        return states

    async def close_streams(
        self, streams: Sequence[StreamState], *, recovered: WalName | None = None
    ) -> None:
        await self._wait()
        await super().close_streams(streams, recovered=recovered)
        await self._wait()

    async def create_streams(self, tags: Sequence[Mapping[str, str]]) -> list[StreamId]:
        await self._wait()
        return await super().create_streams(tags)

    async def prepare_objects(self, count: int) -> PreparedObjects:
        await self._wait()
        prepared = await super().prepare_objects(count)
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
        await super().commit_upload(
            stream_set_object, stream_objects, trim_sequence=trim_sequence, recovered=recovered
        )
        await self._wait()

    async def close_wal(self, name: WalName, end_sequence: int) -> None:
        await self._wait()
        await super().close_wal(name, end_sequence)
        await self._wait()

    async def verify_epoch(self) -> None:
        await self._wait()
        await super().verify_epoch()
        await self._wait()


class DisklessWorld:
    """State that outlives the processes: the cluster, the bucket, and the appends of clients."""

    def __init__(self, seed: int, *, verify: bool = False) -> None:
        self.verify = verify
        self.simulation = Simulation(seed)
        self.chance: random.Random = self.simulation.chance
        self.store = self.simulation.object_store()
        self.processes: dict[NodeId, SimProcess] = {
            node_id: self.simulation.process(f"broker-{node_id}", partial(self.live, node_id))
            for node_id in NODES
        }
        self.model = ClusterModel(self.processes[NODES[0]].clock)
        self.histories: dict[StreamId, History] = {}
        self.placed: dict[StreamId, NodeId] = {}
        self.takeovers: dict[NodeId, list[OpenWal]] = {node_id: [] for node_id in NODES}
        self.recovered_records = 0
        self.unfinished = 0
        self.stop = False

    async def live(self, node_id: NodeId, runtime: Runtime) -> None:
        """One process: register, recover assigned logs, open assigned streams, append."""
        node = SlowManager(self.model.register(node_id), runtime)
        self.takeovers[node_id] = self.model.assign_wals(node_id, node)
        store = wrap_object_store(self.store, runtime=runtime, retry=RETRY)
        tasks = BackgroundTasks(runtime.fail_stop)
        wal = await ObjectWal.open(
            store=store,
            name=await node.open_wal(),
            manager=node,
            settings=SETTINGS,
            clock=runtime.clock,
            randomness=runtime.randomness,
            telemetry=runtime.telemetry,
            tasks=tasks,
            condition_proven=not self.verify,
        )
        client = await StreamClient.start(
            runtime=runtime,
            store=store,
            wal=wal,
            streams=node,
            objects=node,
            settings=SETTINGS,
            tasks=tasks,
            recover=False,
        )
        tasks.spawn(self.take_over(runtime, node), "takeovers")
        if not self.placed:
            for stream in await client.create_streams([{}] * 4):
                self.placed[stream] = node_id
                self.histories[stream] = History()
        await self.work(runtime, node, client)
        assert await client.close()
        await tasks.close()

    async def take_over(self, runtime: Runtime, node: SlowManager) -> None:
        """Recover the assigned logs until none is left. Retry while the store fails."""
        store = wrap_object_store(self.store, runtime=runtime, retry=RETRY)
        while True:
            waiting = self.takeovers[node.node_id]
            if not waiting:
                await runtime.clock.sleep(0.01)
                continue
            try:
                report = await recover_wal(
                    runtime=runtime,
                    store=store,
                    wal=waiting[0],
                    manager=node,
                    streams=node,
                    objects=node,
                    settings=SETTINGS,
                )
                self.recovered_records += report.records
            except ObjectStoreError:
                continue
            except WalNotHeldError:
                pass
            waiting.pop(0)

    async def work(self, runtime: Runtime, node: SlowManager, client: StreamClient) -> None:
        owned: dict[StreamId, Stream] = {}
        number = 0
        while not self.stop:
            for stream_id, placed in self.placed.items():
                row = self.model.streams[stream_id]
                if placed == node.node_id and stream_id not in owned and not row.open:
                    (owned[stream_id],) = await client.open_streams([(stream_id, StreamEpoch(row.epoch + 1))])
                elif placed != node.node_id and stream_id in owned:
                    await owned.pop(stream_id).close()
            for stream in owned.values():
                number += 1
                self.append(stream, number)
            await runtime.clock.sleep(self.chance.uniform(0, 0.03))

    def append(self, stream: Stream, number: int) -> None:
        """Append once and record the acknowledgement."""
        history = self.histories[stream.stream_id]
        payload = f"{stream.stream_id}/{stream.epoch}/{number}/".encode()
        payload = payload.ljust(self.chance.choice((20, 200, 3_000)), b".")
        try:
            future = stream.append(payload, count=1, max_timestamp=-1)
        except AppendBackpressureError:
            return
        history.appended[payload] = (stream.epoch, number)
        future.add_done_callback(partial(_remember, history, payload))

    # --- the driver

    async def scenario(self) -> None:
        """Run all faults for a while, then without faults until the cluster is quiescent, and check
        everything.
        """
        for process in self.processes.values():
            process.start()
            await asyncio.sleep(0.05)
        await wait_until(lambda: len(self.placed) == 4)
        for _ in range(self.chance.randint(3, 7)):
            self.store.faults = StoreFaults(
                before=self.chance.choice((0, 0.05, 0.3)),
                after=self.chance.choice((0, 0.05, 0.2)),
                short_read=self.chance.choice((0, 0.05)),
            )
            await asyncio.sleep(self.chance.choice((0.05, 0.3, 1.5)) * self.chance.random())
            await self.chance.choice((self.fail_over, self.fail_over, self.move, self.wake))()
            self.look()
        self.store.faults = StoreFaults()
        for node_id in NODES:
            await self.come_back(node_id)
        await wait_until(lambda: not any(self.takeovers.values()))
        await asyncio.sleep(2)
        self.stop = True
        await wait_until(lambda: not any(process.running for process in self.processes.values()))
        self.look()
        await self.read_everything()

    def look(self) -> None:
        """Check that no process ended because of a damaged or missing record."""
        for process in self.processes.values():
            assert process.failure is None or isinstance(process.failure, EXPECTED_ENDS), repr(
                process.failure
            )

    async def fail_over(self) -> None:
        """Pause or kill one broker, fence it, and let another one recover its log."""
        alive = [node_id for node_id in NODES if self.serves(node_id)]
        if len(alive) < 2:
            return
        lost, successor = self.chance.sample(alive, 2)
        if self.chance.random() < 0.6:
            self.processes[lost].pause()
        else:
            self.processes[lost].crash()
        self.model.fence(lost)
        self.takeovers[lost] = []
        self.takeovers[successor] += self.model.assign_wals(lost, self.node_of(successor))
        for stream_id, placed in self.placed.items():
            if placed == lost:
                self.placed[stream_id] = successor

    async def move(self) -> None:
        """Move a stream to another broker."""
        alive = [node_id for node_id in NODES if self.serves(node_id)]
        self.placed[self.chance.choice(list(self.placed))] = self.chance.choice(alive)

    async def wake(self) -> None:
        """Resume or restart a fenced broker."""
        await self.come_back(self.chance.choice(NODES))

    async def come_back(self, node_id: NodeId) -> None:
        process = self.processes[node_id]
        if process.running and process.paused:
            process.resume()
            await asyncio.sleep(self.chance.choice((0.05, 0.5, 2)))
            if process.running:  # no operation of it was refused; a session would have reported the fence
                process.crash()
        if not process.running:
            process.start()

    def serves(self, node_id: NodeId) -> bool:
        return self.processes[node_id].running and not self.processes[node_id].paused

    def node_of(self, node_id: NodeId) -> ClusterNode:
        return ClusterNode(self.model, self.model.node_epochs[node_id], node_id)

    async def read_everything(self) -> None:
        reader = self.simulation.process("reader", self._read)
        reader.start()
        await wait_until(lambda: not reader.running)
        if reader.failure is not None:
            raise reader.failure
        assert not self.model.wals, "every log is closed"
        assert not any(row.open for row in self.model.streams.values())

    async def _read(self, runtime: Runtime) -> None:
        node = self.model.register(NodeId(9))
        store = wrap_object_store(self.store, runtime=runtime, retry=RETRY)
        tasks = BackgroundTasks(runtime.fail_stop)
        wal = await ObjectWal.open(
            store=store,
            name=await node.open_wal(),
            manager=node,
            settings=SETTINGS,
            clock=runtime.clock,
            randomness=runtime.randomness,
            telemetry=runtime.telemetry,
            tasks=tasks,
        )
        client = await StreamClient.start(
            runtime=runtime,
            store=store,
            wal=wal,
            streams=node,
            objects=node,
            settings=SETTINGS,
            tasks=tasks,
            recover=False,
        )
        wanted = [(each, StreamEpoch(self.model.streams[each].epoch + 1)) for each in self.histories]
        for stream in await client.open_streams(wanted):
            self.histories[stream.stream_id].check(payloads_of(await read_all(stream)))
        assert await client.close()
        await tasks.close()

    @property
    def fences(self) -> int:
        return sum(
            len(data) == LABEL_BYTES for key, data in self.store.bucket.objects.items() if "/wal/" in key
        )


def _remember(history: History, payload: bytes, future: asyncio.Future[None]) -> None:
    if not future.cancelled() and future.exception() is None:
        history.acknowledged[payload] = None
    elif not future.cancelled():
        assert isinstance(future.exception(), S3StreamError)
