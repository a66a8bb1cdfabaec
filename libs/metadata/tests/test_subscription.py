"""The subscription client against a scripted controller on real loopback connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import pytest
from crc32c import crc32c
from ponor.common.v1 import error_pb2
from ponor.controller.v1 import subscription_service_pb2 as wire
from ponor.metadata.v1 import records_pb2 as pb
from ponor_metadata import snapshot
from ponor_metadata.apply import UnknownRecordError
from ponor_metadata.digest import EMPTY_DIGEST, running_digest
from ponor_metadata.errors import MetadataLagError
from ponor_metadata.image import MetadataImage
from ponor_metadata.subscription import SubscriptionClient, SubscriptionSettings
from ponor_rpc.errors import OperationError
from ponor_rpc.grpc_network import GrpcNetwork
from ponor_rpc.methods import SUBSCRIBE
from ponor_runtime.system import SystemClock, SystemRandomness
from ponor_runtime.telemetry import Telemetry

from libs.metadata.tests.metadata_kit import Log, batch_of, contents, created, record, stream
from libs.metadata.tests.scripted_controller import ScriptedConnection, ScriptedController

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
        """A client that has everything of the log."""
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


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World(GrpcNetwork(), Telemetry())
    yield world
    for client, running in world.clients:
        await client.close()
        await asyncio.wait((running,))
    for controller in world.controllers:
        await controller.close()
    await world.network.close()
    for _ in range(50):
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        if not left:
            break
        await asyncio.sleep(0.01)
    assert not left, f"tasks outlive the subscription: {left}"


async def send_snapshot(peer: Peer, image: MetadataImage, *, chunk_bytes: int = 100) -> None:
    data = snapshot.encode(image)
    begin = wire.SnapshotBegin(index=image.index, size_bytes=len(data))
    await peer.send(wire.SubscribeResponse(snapshot_begin=begin))
    for position in range(0, len(data), chunk_bytes):
        chunk = data[position : position + chunk_bytes]
        message = wire.SnapshotChunk(data=chunk, crc32c=crc32c(chunk))
        await peer.send(wire.SubscribeResponse(snapshot_chunk=message))
    await peer.send(wire.SubscribeResponse(snapshot_end=wire.SnapshotEnd(digest=image.digest)))


async def send_batches(peer: Peer, encoded: Sequence[bytes], digest: bytes) -> None:
    await peer.send(wire.SubscribeResponse(batches=wire.Batches(batches=encoded, digest=digest)))


async def commit_and_send(log: Log, peer: Peer, *records: pb.Record) -> None:
    log.commit(*records)
    await send_batches(peer, log.encoded[-1:], log.image.digest)


def resume_of(log: Log) -> wire.SubscribeStart:
    return wire.SubscribeStart(cluster_id="c-1", resume_index=log.image.index, resume_digest=log.image.digest)


def key_put(key: str, value: bytes = b"v") -> pb.Record:
    return record(key_put=pb.KeyPut(key=key, value=value))


async def test_a_snapshot_and_then_every_batch_in_order(world: World) -> None:
    log = Log()
    controller = await world.controller()
    client, _ = world.client(controller.address)
    images: list[int] = []
    heard: list[tuple[int, int]] = []
    client.image_listeners.append(lambda image: images.append(image.index))
    client.listeners.append(lambda batch: heard.append((batch.index, client.image.index)))
    peer = await controller.accept()
    await peer.receive()
    at_snapshot = log.image.index
    await send_snapshot(peer, log.image)
    await client.wait_for(at_snapshot)
    for number in range(5):
        await commit_and_send(log, peer, created(stream(number + 1)))
    first = len(log.encoded)
    log.commit(key_put("a"))
    log.commit(key_put("b"))
    await send_batches(peer, log.encoded[first:], log.image.digest)
    await client.wait_for(log.image.index)
    assert images == [at_snapshot]
    assert heard == [(index, index) for index in range(at_snapshot + 1, log.image.index + 1)]
    assert contents(client.image) == contents(log.image)
    assert client.image.digest == log.image.digest


async def test_after_a_break_it_goes_on_where_it_was(world: World) -> None:
    log = Log()
    client, controller, peer = await world.following(log)
    image = client.image
    await commit_and_send(log, peer, key_put("a"))
    await client.wait_for(log.image.index)
    peer.hang_up()
    peer = await controller.accept()
    assert (await peer.receive()).start == resume_of(log)
    await commit_and_send(log, peer, key_put("b"))
    await client.wait_for(log.image.index)
    assert client.image is image
    assert world.counted("ponor_subscription_snapshots_total") == 1
    assert world.counted("ponor_subscription_reconnects_total") == 1


async def test_another_controller_is_tried_when_one_is_gone(world: World) -> None:
    log = Log()
    gone, there = await world.controller(), await world.controller()
    await gone.close()
    world.controllers.remove(gone)
    client, _ = world.client(gone.address, there.address)
    peer = await there.accept()
    await peer.receive()
    await send_snapshot(peer, log.image)
    await client.wait_for(log.image.index)


async def test_another_history_is_never_shown(world: World) -> None:
    log, other = Log(), Log()
    client, controller, peer = await world.following(log)
    other.commit(key_put("from another history"))
    other.commit(key_put("k", b"2"))
    await send_batches(peer, other.encoded[-1:], other.image.digest)
    peer = await controller.accept()
    start = (await peer.receive()).start
    assert (start.resume_index, start.resume_digest) == (0, EMPTY_DIGEST)
    assert contents(client.image) == contents(log.image)
    assert world.counted("ponor_subscription_digest_mismatches_total") == 1
    await send_snapshot(peer, other.image)
    await client.wait_for(other.image.index)
    assert contents(client.image) == contents(other.image)


async def test_damaged_bytes_are_never_applied(world: World) -> None:
    log = Log()
    client, controller, peer = await world.following(log)
    log.commit(key_put("k", b"right"))
    await send_batches(peer, [log.encoded[-1].replace(b"right", b"wrong")], log.image.digest)
    peer = await controller.accept()
    await peer.receive()
    assert "k" not in client.image.keys
    await send_snapshot(peer, log.image)
    await client.wait_for(log.image.index)
    row = client.image.keys.get("k")
    assert row is not None
    assert row.value == b"right"


async def test_readers_never_go_back_in_time(world: World) -> None:
    log = Log()
    behind = snapshot.decode(snapshot.encode(log.image))
    tail_from = len(log.encoded)
    client, controller, peer = await world.following(log)
    for number in range(3):
        await commit_and_send(log, peer, key_put(f"k{number}"))
    await client.wait_for(log.image.index)
    seen = client.image.index
    images: list[int] = []
    batches: list[int] = []
    client.image_listeners.append(lambda image: images.append(image.index))
    client.listeners.append(lambda batch: batches.append(batch.index))
    peer.hang_up()
    peer = await controller.accept()
    await peer.receive()
    await send_snapshot(peer, behind)  # a controller that has compacted its log, and is behind
    log.commit(key_put("new"))
    digest = behind.digest
    for encoded in log.encoded[tail_from:]:
        assert client.image.index == seen
        digest = running_digest(digest, encoded)
        await send_batches(peer, [encoded], digest)
    await client.wait_for(seen + 1)
    assert images == [seen]
    assert batches == [seen + 1]
    assert contents(client.image) == contents(log.image)


async def test_waiting_has_a_deadline_and_an_order(world: World) -> None:
    log = Log()
    client, _, peer = await world.following(log)
    here = log.image.index
    await client.wait_for(here)
    with pytest.raises(MetadataLagError, match=f"is at {here} and did not reach {here + 1} within 20 ms"):
        await client.wait_for(here + 1, deadline_ms=20)
    order: list[int] = []

    async def wait(index: int) -> None:
        await client.wait_for(index)
        assert client.image.index >= index
        order.append(index)

    waiting = [asyncio.create_task(wait(here + ahead)) for ahead in (3, 1, 2)]
    for number in range(3):
        await commit_and_send(log, peer, key_put(f"k{number}"))
        await client.wait_for(here + number + 1)
    await asyncio.gather(*waiting)
    assert order == [here + 1, here + 2, here + 3]


async def test_close_ends_the_waiting(world: World) -> None:
    client, _, peer = await world.following(Log())
    waiting = asyncio.create_task(client.wait_for(1_000))
    await asyncio.sleep(0)
    await client.close()
    await client.close()
    with pytest.raises(MetadataLagError, match="closed"):
        await waiting
    await peer.wait_closed()


async def test_progress_is_acknowledged(world: World) -> None:
    log = Log()
    settings = SubscriptionSettings(ack_bytes_max=100, ack_interval_ms=3_600_000)
    _, _, peer = await world.following(log, settings)
    assert (await peer.receive()).ack.applied_index == 0  # the snapshot is on its way
    await commit_and_send(log, peer, key_put("k", b"x" * 3_000))
    while (await peer.receive()).ack.applied_index < log.image.index:
        pass


class SteeredClock(SystemClock):
    """Time passes when the test says so; sleeping is real."""

    def __init__(self) -> None:
        self.now_ms = 0

    def monotonic_ns(self) -> int:
        return self.now_ms * 1_000_000


async def test_staleness_counts_from_the_last_time_all_was_there(world: World) -> None:
    log = Log()
    clock = SteeredClock()
    controller = await world.controller()
    client, _ = world.client(controller.address, clock=clock)
    before_anything = client.staleness_ms
    assert before_anything is None
    peer = await controller.accept()
    await peer.receive()
    await send_snapshot(peer, log.image)
    await client.wait_for(log.image.index)
    assert client.staleness_ms == 0
    clock.now_ms = 700
    assert client.staleness_ms == 700
    await peer.send(wire.SubscribeResponse(progress=wire.Progress(commit_index=log.image.index + 1)))
    await commit_and_send(log, peer, key_put("k"))  # the batch of which the progress spoke
    await client.wait_for(log.image.index)
    assert client.staleness_ms == 0
    clock.now_ms = 900
    await peer.send(wire.SubscribeResponse(progress=wire.Progress(commit_index=log.image.index)))
    await commit_and_send(log, peer, key_put("k2"))
    await client.wait_for(log.image.index)
    assert client.staleness_ms == 0


async def test_progress_alone_keeps_the_image_fresh_and_a_gap_does_not(world: World) -> None:
    log = Log()
    clock = SteeredClock()
    settings = SubscriptionSettings(
        ack_bytes_max=1
    )  # every frame is acknowledged: the test knows what was taken
    controller = await world.controller()
    client, _ = world.client(controller.address, settings=settings, clock=clock)
    peer = await controller.accept()
    await peer.receive()
    await send_snapshot(peer, log.image)
    while (await peer.receive()).ack.applied_index < log.image.index:
        pass
    clock.now_ms = 500
    for commit_index, staleness_ms in ((log.image.index + 1, 500), (log.image.index, 0)):
        await peer.send(wire.SubscribeResponse(progress=wire.Progress(commit_index=commit_index)))
        await peer.receive()
        assert client.staleness_ms == staleness_ms


async def test_a_silent_controller_is_left(world: World) -> None:
    log = Log()
    settings = SubscriptionSettings(
        silence_ms_max=100, reconnect_backoff_ms_min=1, reconnect_backoff_ms_max=2
    )
    _, controller, _ = await world.following(log, settings)
    peer = await controller.accept()
    assert (await peer.receive()).start == resume_of(log)


async def test_much_at_once_leaves_the_loop_to_others(world: World) -> None:
    log = Log()
    settings = SubscriptionSettings(slice_ms_max=0)
    client, _, peer = await world.following(log, settings)
    turns = 0
    applied: list[int] = []
    client.listeners.append(lambda _: applied.append(turns))

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counter = asyncio.create_task(count_turns())
    first = len(log.encoded)
    for number in range(50):
        log.commit(key_put(f"k{number}"))
    await send_batches(peer, log.encoded[first:], log.image.digest)
    await client.wait_for(log.image.index)
    counter.cancel()
    assert len(set(applied)) == 50, "the batches of one frame were applied in fewer turns of the loop"


async def test_a_newer_record_kind_ends_the_process(world: World) -> None:
    log = Log()
    controller = await world.controller()
    client, running = world.client(controller.address)
    peer = await controller.accept()
    await peer.receive()
    await send_snapshot(peer, log.image)
    newer = pb.Record.FromString(b"\xa2\x3e\x02\x08\x01")
    encoded = batch_of([newer], log.image.index + 1, 99).SerializeToString()
    await send_batches(peer, [encoded], running_digest(log.image.digest, encoded))
    with pytest.raises(UnknownRecordError):
        await running
    assert client.image.index == log.image.index


async def test_a_refusal_for_good_is_told_and_an_overload_is_tried_again(world: World) -> None:
    controller = await world.controller()
    _, running = world.client(controller.address)
    for code in (error_pb2.ERROR_CODE_OVERLOADED, error_pb2.ERROR_CODE_INVALID_REQUEST):
        peer = await controller.accept()
        await peer.receive()
        await peer.send(
            wire.SubscribeResponse(refused=error_pb2.Error(code=code, message="cluster c-2 lives here"))
        )
    with pytest.raises(OperationError, match="cluster c-2 lives here"):
        await running


@pytest.mark.parametrize(
    "fault", ["chunk crc", "chunk unannounced", "too large", "end early", "digest", "garbage", "empty"]
)
async def test_a_broken_transfer_is_begun_again(world: World, fault: str) -> None:
    log = Log()
    data = snapshot.encode(log.image)
    controller = await world.controller()
    client, _ = world.client(controller.address)
    peer = await controller.accept()
    await peer.receive()
    begin = wire.SubscribeResponse(
        snapshot_begin=wire.SnapshotBegin(index=log.image.index, size_bytes=len(data))
    )
    chunk = wire.SubscribeResponse(snapshot_chunk=wire.SnapshotChunk(data=data, crc32c=crc32c(data)))
    end = wire.SubscribeResponse(snapshot_end=wire.SnapshotEnd(digest=log.image.digest))
    match fault:
        case "chunk crc":
            chunk.snapshot_chunk.crc32c ^= 1
            script = [begin, chunk]
        case "chunk unannounced":
            script = [chunk]
        case "too large":
            begin.snapshot_begin.size_bytes = 1 << 40
            script = [begin]
        case "end early":
            script = [begin, end]
        case "digest":
            end.snapshot_end.digest = bytes(16)
            script = [begin, chunk, end]
        case _:
            script = []
    for frame in script:
        await peer.send(frame)
    if not script:
        await peer._connection.send(b"\xff\xff" if fault == "garbage" else b"")
    peer = await controller.accept()
    assert (await peer.receive()).start.resume_index == 0
    assert client.image.index == 0
    await send_snapshot(peer, log.image)
    await client.wait_for(log.image.index)
