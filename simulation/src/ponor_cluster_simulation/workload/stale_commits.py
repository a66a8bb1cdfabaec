"""Nodes that take streams from each other and commit under lost epochs.

Each node opens streams that others own, and commits what it prepared while it owned them. A node continues to
commit after it lost a stream, so that the run tries every commit that must be fenced. Committed objects are
in the store, like those of brokers. The ledger checks the result; this client checks only the answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from ponor.common.v1 import error_pb2
from ponor.controller.v1 import session_service_pb2 as wire
from ponor_metadata.client.node_identity import NodeIdentity
from ponor_metadata.client.session import SessionClient
from ponor_metadata.nouns.nodes import NodeRole
from ponor_rpc.errors import OperationError
from ponor_runtime.identity import NodeId, ObjectId, StreamEpoch, StreamId
from ponor_runtime.object_store import ObjectStore, ObjectStoreError
from ponor_runtime.runtime import Runtime
from s3stream.objects.keys import object_key
from s3stream.objects.writer import ObjectWriter
from s3stream.records import StreamRecord

from ponor_cluster_simulation.workload.short_lived_streams import ShortLivedStreams

STREAMS: Final = 2
ASKED_AT_ONCE_MAX: Final = 24
LEASE_MS: Final = (50, 2_000, 8_000)
REFUSALS: Final = frozenset(
    {
        error_pb2.ERROR_CODE_STREAM_FENCED,
        error_pb2.ERROR_CODE_STREAM_NOT_OPENED,
        error_pb2.ERROR_CODE_STREAM_NOT_CLOSED,
        error_pb2.ERROR_CODE_OBJECT_EXPIRED,
        error_pb2.ERROR_CODE_OBJECT_NOT_PREPARED,
        error_pb2.ERROR_CODE_OFFSET_MISMATCH,
    }
)
"""Valid answers to a node that lost a stream or a lease."""


@dataclass(slots=True)
class SharedStreams:
    """The streams that stale committers compete for, and the answers that they received.

    Attributes:
        shares_objects: commit stream set objects of one block, and trim all but a part of the newest one; if
            false, commit stream objects.
        epochs: stream to the highest requested epoch.
        acknowledged: (stream, start) to the object whose commit was acknowledged there.
        fenced: number of refusals.
    """

    shares_objects: bool = False
    epochs: dict[int, int] = field(default_factory=dict)
    acknowledged: dict[tuple[int, int], int] = field(default_factory=dict)
    commits: int = 0
    fenced: int = 0
    short_lived: ShortLivedStreams = field(default_factory=ShortLivedStreams)
    stop: bool = False


class StaleCommitter:
    """One of the nodes. Its process never crashes, but its session may break."""

    def __init__(
        self, name: str, node_id: NodeId, shared: SharedStreams, store: ObjectStore, addresses: Sequence[str]
    ) -> None:
        self.name = name
        self._node_id = node_id
        self._shared = shared
        self._store = store
        self._addresses = addresses
        self._ends: dict[int, tuple[int, int]] = {}
        """Stream to the epoch under which this node owned it, and the end offset that this node observed."""
        self.is_finished = False

    async def run(self, runtime: Runtime) -> None:
        """Compete until `stop` is set and the last request is answered."""
        identity = NodeIdentity(
            self._node_id, NodeRole.BROKER, runtime.randomness.token(16), kafka_host=self.name, kafka_port=1
        )
        session = SessionClient(
            network=runtime.network,
            clock=runtime.clock,
            randomness=runtime.randomness,
            telemetry=runtime.telemetry,
            identity=identity,
            addresses=self._addresses,
        )
        async with asyncio.TaskGroup() as group:
            running = group.create_task(session.run())
            await session.ready()
            draining = wire.SetDrain(node_id=self._node_id, draining=True)  # it must lead no partitions
            await session.submit(wire.Operation(set_drain=draining))
            async with asyncio.TaskGroup() as work:
                work.create_task(self._ask_on(runtime, session, work))
                while not self._shared.stop:
                    await self._compete(runtime, session)
                    await runtime.clock.sleep(runtime.randomness.uniform(0.005, 0.15))
            await session.close()
            await running
        self.is_finished = True

    async def _ask_on(self, runtime: Runtime, session: SessionClient, work: asyncio.TaskGroup) -> None:
        """Read short-lived streams without waiting for answers.

        A controller that resumes from a pause then finds requests that are newer than its image.
        """
        asking: dict[asyncio.Task[None], None] = {}
        while not self._shared.stop:
            await runtime.clock.sleep(runtime.randomness.uniform(0.05, 0.25))
            if len(asking) < ASKED_AT_ONCE_MAX:
                lot = runtime.randomness.below(1_000)
                task = work.create_task(self._shared.short_lived.ask(self.name, session, lot))
                asking[task] = None
                task.add_done_callback(lambda done: asking.pop(done, None))

    async def _compete(self, runtime: Runtime, session: SessionClient) -> None:
        epochs, below = self._shared.epochs, runtime.randomness.below
        if len(epochs) < STREAMS:
            created = await session.submit(
                wire.Operation(create_streams=wire.CreateStreams(streams=[wire.StreamTags()]))
            )
            epochs[created.streams_created.stream_ids[0]] = -1
            return
        match below(6):
            case 0 | 1:
                await self._shared.short_lived.make(self.name, session)
            case 2:
                await self._shared.short_lived.end(self.name, session)
            case _:
                await self._send_stale_commits(runtime, session)

    async def _send_stale_commits(self, runtime: Runtime, session: SessionClient) -> None:
        epochs, below = self._shared.epochs, runtime.randomness.below
        stream_id = list(epochs)[below(len(epochs))]
        try:
            if stream_id not in self._ends or below(8) == 0:
                await self._open(session, stream_id)
            elif below(4) == 0:
                await self._close(session, stream_id)
            else:
                await self._commit(runtime, session, stream_id)
        except OperationError as refused:
            if refused.code not in REFUSALS:
                raise
            self._shared.fenced += 1

    async def _open(self, session: SessionClient, stream_id: int) -> None:
        epoch = self._shared.epochs[stream_id] = self._shared.epochs[stream_id] + 1
        opening = wire.OpenStreams(streams=[wire.OpenStream(stream_id=stream_id, stream_epoch=epoch)])
        result = await session.submit(wire.Operation(open_streams=opening))
        self._ends[stream_id] = (epoch, result.streams_opened.streams[0].end_offset)

    async def _close(self, session: SessionClient, stream_id: int) -> None:
        """Close a stream, but keep its epoch and continue to commit under it."""
        epoch, end = self._ends[stream_id]
        closing = wire.StreamState(stream_id=stream_id, stream_epoch=epoch, end_offset=end)
        await session.submit(wire.Operation(close_streams=wire.CloseStreams(streams=[closing])))

    async def _commit(self, runtime: Runtime, session: SessionClient, stream_id: int) -> None:
        """Prepare, put, wait, commit even if the lease is over, and sometimes trim old data."""
        epoch, end = self._ends[stream_id]
        below = runtime.randomness.below
        prepare = wire.PrepareObjects(count=1, ttl_ms=LEASE_MS[below(len(LEASE_MS))])
        usable_until_ns = runtime.clock.monotonic_ns() + prepare.ttl_ms * 1_000_000
        reserved = (await session.submit(wire.Operation(prepare_objects=prepare))).objects_reserved
        object_id, grown = reserved.first_object_id, end + 1 + below(5)
        writer = ObjectWriter(ObjectId(object_id), block_bytes_max=1_000)
        payload = f"{stream_id}/{end}".encode().ljust(1 + below(200), b".")
        writer.add(StreamRecord(StreamId(stream_id), StreamEpoch(epoch), end, grown - end, 0, payload))
        data = writer.finish()
        if runtime.clock.monotonic_ns() >= usable_until_ns:
            return  # no put may begin after the lease: a collector may claim the id
        try:
            await self._store.put(object_key(reserved.namespace, ObjectId(object_id)), data.buffers)
        except ObjectStoreError:
            return  # the lease expires, and the collector deletes the object if the put was applied
        await runtime.clock.sleep(runtime.randomness.uniform(0.0, 0.2))
        piece = wire.UploadedRange(
            stream_id=stream_id, stream_epoch=epoch, start_offset=end, end_offset=grown
        )
        commit = wire.CommitUpload()
        if self._shared.shares_objects:
            shared = commit.stream_set_object
            shared.object_id, shared.size_bytes = object_id, data.size_bytes
            shared.ranges.append(piece)
        else:
            commit.stream_objects.add(object_id=object_id, size_bytes=data.size_bytes, range=piece)
        await session.submit(wire.Operation(commit_upload=commit))
        twin = self._shared.acknowledged.setdefault((stream_id, end), object_id)
        assert twin == object_id, (
            f"objects {twin} and {object_id} were both committed at offset {end} of stream {stream_id}"
        )
        self._shared.commits += 1
        self._ends[stream_id] = (epoch, grown)
        if self._shared.shares_objects:
            await self._trim(session, stream_id, end + below(grown - end))
        elif below(3) == 0:
            await self._trim(session, stream_id, below(grown + 1))

    async def _trim(self, session: SessionClient, stream_id: int, start: int) -> None:
        epoch, _ = self._ends[stream_id]
        trim = wire.StreamState(stream_id=stream_id, stream_epoch=epoch, start_offset=start)
        await session.submit(wire.Operation(trim_streams=wire.TrimStreams(streams=[trim])))
