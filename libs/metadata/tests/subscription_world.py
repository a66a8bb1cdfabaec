"""Subscriptions with scripted controllers on real loopback connections, and the frames of their protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from crc32c import crc32c
from ponor.controller.v1 import subscription_service_pb2 as wire
from ponor.metadata.v1 import records_pb2 as pb
from ponor_metadata.client.subscription import SubscriptionClient, SubscriptionSettings
from ponor_metadata.image import snapshot
from ponor_metadata.image.batches import EMPTY_DIGEST
from ponor_metadata.image.image import MetadataImage
from ponor_metadata.nouns.cluster import cluster_of
from ponor_rpc.grpc_network import GrpcNetwork
from ponor_rpc.methods import SUBSCRIBE
from ponor_runtime.system import SystemClock, SystemRandomness
from ponor_runtime.telemetry import Telemetry

from libs.metadata.tests.metadata_kit import Log, record
from libs.metadata.tests.scripted_controller import ScriptedConnection, ScriptedController, nothing_left

SETTINGS = SubscriptionSettings(
    reconnect_backoff_ms_min=1, reconnect_backoff_ms_max=20, ack_interval_ms=60_000, ack_bytes_max=1 << 30
)
Peer = ScriptedConnection[wire.SubscribeRequest]


@dataclass
class World:
    network: GrpcNetwork
    telemetry: Telemetry
    controllers: list[ScriptedController[wire.SubscribeRequest]] = field(default_factory=list)
    clients: list[tuple[SubscriptionClient, asyncio.Task[None]]] = field(default_factory=list)

    async def controller(self) -> ScriptedController[wire.SubscribeRequest]:
        controller = ScriptedController(self.network, SUBSCRIBE, wire.SubscribeRequest.FromString)
        await controller.start()
        self.controllers.append(controller)
        return controller

    def client(
        self,
        *addresses: str,
        settings: SubscriptionSettings = SETTINGS,
        clock: SystemClock | None = None,
    ) -> tuple[SubscriptionClient, asyncio.Task[None]]:
        client = SubscriptionClient(
            network=self.network,
            clock=clock or SystemClock(),
            randomness=SystemRandomness(),
            telemetry=self.telemetry,
            addresses=addresses,
            cluster_id="c-1",
            settings=settings,
        )
        running = asyncio.create_task(client.run())
        self.clients.append((client, running))
        return client, running

    async def following(
        self, log: Log, settings: SubscriptionSettings = SETTINGS
    ) -> tuple[SubscriptionClient, ScriptedController[wire.SubscribeRequest], Peer]:
        """Start a client that has applied the whole log."""
        controller = await self.controller()
        client, _ = self.client(controller.address, settings=settings)
        peer = await controller.accept()
        assert (await peer.receive()).start == wire.SubscribeStart(
            cluster_id="c-1", resume_index=0, resume_digest=EMPTY_DIGEST
        )
        await send_snapshot(peer, log.image)
        await client.wait_for(log.image.index)
        return client, controller, peer

    def counted(self, name: str) -> int:
        return sum(value for _, value in self.telemetry.counters(name))


@asynccontextmanager
async def subscription_world() -> AsyncIterator[World]:
    """A world that closes its clients and controllers."""
    world = World(GrpcNetwork(), Telemetry())
    yield world
    for client, running in world.clients:
        await client.close()
        await asyncio.wait((running,))
    for controller in world.controllers:
        await controller.close()
    await world.network.close()
    await nothing_left()


async def send_snapshot(
    peer: Peer,
    image: MetadataImage,
    *,
    chunk_bytes: int = 100,
    reason: wire.SnapshotBegin.Reason.ValueType = wire.SnapshotBegin.REASON_ASKED,
) -> None:
    data = snapshot.encode(image)
    cluster = cluster_of(image)
    assert cluster is not None
    begin = wire.SnapshotBegin(
        index=image.index, size_bytes=len(data), reason=reason, incarnation=cluster.incarnation
    )
    await peer.send(wire.SubscribeResponse(snapshot_begin=begin))
    for position in range(0, len(data), chunk_bytes):
        chunk = data[position : position + chunk_bytes]
        message = wire.SnapshotChunk(data=chunk, crc32c=crc32c(chunk))
        await peer.send(wire.SubscribeResponse(snapshot_chunk=message))
    await peer.send(wire.SubscribeResponse(snapshot_end=wire.SnapshotEnd(digest=image.digest)))


async def send_batches(peer: Peer, encoded: Sequence[bytes], digest: bytes) -> None:
    first_index = pb.RecordBatch.FromString(encoded[0]).index
    batches = wire.Batches(batches=encoded, digest=digest, first_index=first_index)
    await peer.send(wire.SubscribeResponse(batches=batches))


async def commit_and_send(log: Log, peer: Peer, *records: pb.Record) -> None:
    log.commit(*records)
    await send_batches(peer, log.encoded[-1:], log.image.digest)


def resume_of(log: Log) -> wire.SubscribeStart:
    cluster = cluster_of(log.image)
    assert cluster is not None
    return wire.SubscribeStart(
        cluster_id=cluster.cluster_id,
        resume_index=log.image.index,
        resume_digest=log.image.digest,
        incarnation=cluster.incarnation,
        seen_index=log.image.index,
    )


async def next_ack(peer: Peer, *, probing: bool = False) -> wire.SubscribeAck:
    while True:
        request = await peer.receive()
        if request.WhichOneof("frame") == "ack" and (request.ack.probe or not probing):
            return request.ack


async def answer_probe(peer: Peer, commit_index: int, *, staleness_ms: int = 0) -> None:
    ack = await next_ack(peer, probing=True)
    progress = wire.Progress(commit_index=commit_index, probe=ack.probe, staleness_ms=staleness_ms)
    await peer.send(wire.SubscribeResponse(progress=progress))


def key_put(key: str, value: bytes = b"v") -> pb.Record:
    return record(key_put=pb.KeyPut(key=key, value=value))
