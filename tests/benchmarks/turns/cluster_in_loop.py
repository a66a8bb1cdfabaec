"""A controller, sessions and a subscriber on the recorder's loop, over loopback and a real disk.

All of them share the loop, so a recorded turn is at least as long as the longest turn of each.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ponor.controller.v1 import session_service_pb2 as wire
from ponor_controller.app import run
from ponor_controller.options import ControllerOptions
from ponor_controller.settings import ControllerSettings
from ponor_metadata.client.node_identity import NodeIdentity
from ponor_metadata.client.session import SessionClient
from ponor_metadata.client.subscription import SubscriptionClient
from ponor_metadata.nouns.nodes import NodeRole
from ponor_rpc.grpc_network import GrpcNetwork
from ponor_runtime.identity import ClusterOrdinal, compose_node_id
from ponor_runtime.runtime import Runtime
from ponor_runtime.system import SystemClock, SystemRandomness
from ponor_runtime.system_disk import SystemDisk
from ponor_runtime.telemetry import Telemetry

ORDINAL: Final = ClusterOrdinal(1)
OBJECTS_PER_OPERATION: Final = 250
LEASE_MS: Final = 3_600_000


@dataclass
class ClusterInLoop:
    """One controller, the session of one broker and, if there is one, of a compactor, one subscriber."""

    session: SessionClient
    subscription: SubscriptionClient
    compactor: SessionClient | None = None
    start_broker: Callable[[], SessionClient] | None = None
    """Starts the session of another process of the broker."""

    async def register_again(self) -> None:
        """End the broker's process and start the next one; returns when it is registered."""
        assert self.start_broker is not None
        await self.session.close()
        self.session = self.start_broker()
        await self.session.ready()

    async def ask(self, **kind: Any) -> wire.OperationResult:
        """Submit one operation and wait for its result."""
        return await self.session.submit(wire.Operation(**kind))

    async def ask_as_compactor(self, **kind: Any) -> wire.OperationResult:
        """The same from the compactor's session."""
        assert self.compactor is not None
        return await self.compactor.submit(wire.Operation(**kind))

    async def create_topic(self, name: str, partitions: int = 1) -> bytes:
        """Create a topic; return its id."""
        body = wire.CreateTopic(name=name, partitions=partitions, replication_factor=-1)
        return (await self.ask(create_topic=body)).topic_held.topic_id

    async def open_streams(self, count: int, tags: Mapping[str, str]) -> list[int]:
        """Create streams with these tags and open them at epoch 0; return their ids."""
        ids: list[int] = []
        for at in range(0, count, 1_000):
            some = min(1_000, count - at)
            made = await self.ask(
                create_streams=wire.CreateStreams(streams=[wire.StreamTags(tags=tags)] * some)
            )
            ids += made.streams_created.stream_ids
        for at in range(0, count, 1_000):
            opened = [wire.OpenStream(stream_id=each, stream_epoch=0) for each in ids[at : at + 1_000]]
            await self.ask(open_streams=wire.OpenStreams(streams=opened))
        return ids

    async def prepare(self, count: int) -> int:
        """Reserve object ids; return the first."""
        body = wire.PrepareObjects(count=count, ttl_ms=LEASE_MS)
        return (await self.ask(prepare_objects=body)).objects_reserved.first_object_id

    async def compact(self, stream_ids: Sequence[int], own: int) -> None:
        """Lease a compaction and commit its outputs: stream objects of the first `own` streams, a
        set object of the others.
        """
        lease = wire.LeaseCompaction(ttl_ms=LEASE_MS, source_bytes_max=1 << 40)
        task = (await self.ask_as_compactor(lease_compaction=lease)).compaction_granted
        assert {each.stream_id for each in task.streams} == set(stream_ids)
        end_offset = task.streams[0].end_offset
        reserve = wire.PrepareObjects(count=own + 1, ttl_ms=LEASE_MS)
        first = (await self.ask_as_compactor(prepare_objects=reserve)).objects_reserved.first_object_id
        held = [wire.UploadedRange(stream_id=each, end_offset=end_offset) for each in stream_ids]
        body = wire.CommitCompaction(task_id=task.task_id, token=task.token, planned_index=task.planned_index)
        body.stream_set_object.object_id, body.stream_set_object.size_bytes = first + own, 1 << 20
        body.stream_set_object.ranges.extend(held[own:])
        for number in range(own):
            body.stream_objects.add(object_id=first + number, size_bytes=1 << 20, range=held[number])
        outcome = (await self.ask_as_compactor(commit_compaction=body)).compaction_outcome
        assert outcome.result == wire.CompactionOutcome.RESULT_DONE, outcome.message

    async def commit_stream_objects(self, stream_id: int, count: int) -> None:
        """Commit this many stream objects of one offset each, from offset 0 on."""
        for at in range(0, count, OBJECTS_PER_OPERATION):
            some = min(OBJECTS_PER_OPERATION, count - at)
            first = await self.prepare(some)
            body = wire.CommitUpload()
            for i in range(some):
                held = wire.UploadedRange(stream_id=stream_id, start_offset=at + i, end_offset=at + i + 1)
                body.stream_objects.add(object_id=first + i, size_bytes=1 << 20, range=held)
            await self.ask(commit_upload=body)

    async def commit_set_object(self, stream_ids: Sequence[int], at: int) -> None:
        """Commit a stream set object with the offset `at` of each stream."""
        body = wire.CommitUpload()
        body.stream_set_object.object_id, body.stream_set_object.size_bytes = await self.prepare(1), 1 << 20
        for stream_id in stream_ids:
            body.stream_set_object.ranges.add(stream_id=stream_id, start_offset=at, end_offset=at + 1)
        await self.ask(commit_upload=body)


@asynccontextmanager
async def cluster_in_loop(settings: ControllerSettings | None = None) -> AsyncIterator[ClusterInLoop]:
    """Start a controller that formats an empty directory, a session and a subscriber; stop them
    afterwards.
    """
    loop, network, stop = asyncio.get_running_loop(), GrpcNetwork(), asyncio.Event()
    address: asyncio.Future[str] = loop.create_future()
    with tempfile.TemporaryDirectory(prefix="ponor-bench-") as directory:
        runtime = Runtime(SystemClock(), SystemRandomness(), SystemDisk(), GrpcNetwork(), Telemetry())
        options = ControllerOptions(Path(directory) / "controller", "127.0.0.1:0", ORDINAL, format=True)
        controller = asyncio.create_task(
            run(
                runtime,
                settings or ControllerSettings(),
                options,
                stop=stop,
                ready=lambda addresses: address.set_result(addresses["session"]),
            )
        )
        at = await address
        session, compactor = (_session(network, at, role) for role in (NodeRole.BROKER, NodeRole.COMPACTOR))
        subscription = SubscriptionClient(
            network=network,
            clock=SystemClock(),
            randomness=SystemRandomness(),
            telemetry=Telemetry(),
            addresses=[at],
        )
        clients = (session, compactor, subscription)
        running = [asyncio.create_task(client.run()) for client in clients]

        def start_broker() -> SessionClient:
            later = _session(network, at, NodeRole.BROKER)
            running.append(asyncio.create_task(later.run()))
            return later

        cluster = ClusterInLoop(session, subscription, compactor, start_broker)
        try:
            await session.ready()
            await compactor.ready()
            yield cluster
        finally:
            for client in (cluster.session, compactor, subscription):
                await client.close()
            await asyncio.gather(*running)
            await network.close()
            stop.set()
            await controller


def _session(network: GrpcNetwork, address: str, role: NodeRole) -> SessionClient:
    kafka_host, kafka_port = ("localhost", 9092) if role is NodeRole.BROKER else ("", 0)
    return SessionClient(
        network=network,
        clock=SystemClock(),
        randomness=SystemRandomness(),
        telemetry=Telemetry(),
        identity=NodeIdentity(
            compose_node_id(ORDINAL, role), role, os.urandom(16), kafka_host=kafka_host, kafka_port=kafka_port
        ),
        addresses=[address],
    )
