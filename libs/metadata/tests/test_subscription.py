"""The subscription client with a scripted controller on real loopback connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
from crc32c import crc32c
from ponor.common.v1 import error_pb2
from ponor.controller.v1 import subscription_service_pb2 as wire
from ponor.metadata.v1 import records_pb2 as pb
from ponor_metadata.client.errors import MetadataLagError
from ponor_metadata.client.subscription import SubscriptionSettings
from ponor_metadata.image import snapshot
from ponor_metadata.image.apply import UnknownRecordError
from ponor_metadata.image.batches import running_digest
from ponor_rpc.errors import OperationError
from ponor_runtime.network import ConnectionClosedError

from libs.metadata.tests.metadata_kit import NODE_A, Log, batch_of, contents, created, record, stream
from libs.metadata.tests.subscription_world import (
    World,
    commit_and_send,
    key_put,
    next_ack,
    resume_of,
    send_batches,
    send_snapshot,
    subscription_world,
)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with subscription_world() as opened:
        yield opened


async def test_listeners_get_the_snapshot_and_then_every_batch_in_order(world: World) -> None:
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


async def test_a_reconnected_subscription_resumes_at_its_index(world: World) -> None:
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


async def test_another_controller_is_tried_after_a_failure(world: World) -> None:
    log = Log()
    gone, there = await world.controller(), await world.controller()
    await gone.close()
    world.controllers.remove(gone)
    client, _ = world.client(gone.address, there.address)
    peer = await there.accept()
    await peer.receive()
    await send_snapshot(peer, log.image)
    await client.wait_for(log.image.index)


async def test_addresses_of_the_quorum_are_tried_too(world: World) -> None:
    log = Log()
    _, first, peer = await world.following(log)
    second = await world.controller()
    member = pb.QuorumMember(
        node_id=NODE_A,
        directory_id=b"d" * 16,
        peer_address="localhost:1",
        service_address=second.address,
        voter=True,
    )
    await commit_and_send(log, peer, record(voters_set=pb.VotersSet(members=[member])))
    await world.clients[0][0].wait_for(log.image.index)
    await first.close()
    world.controllers.remove(first)
    assert (await (await second.accept()).receive()).start == resume_of(log)


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


async def test_close_fails_waiters(world: World) -> None:
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
    first = await next_ack(peer)
    assert (first.applied_index, first.received_bytes, first.probe) == (0, 0, 1)
    await commit_and_send(log, peer, key_put("k", b"x" * 3_000))
    while (ack := await next_ack(peer)).applied_index < log.image.index:
        pass
    assert ack.received_bytes > 3_000


async def test_a_silent_controller_is_left(world: World) -> None:
    log = Log()
    settings = SubscriptionSettings(
        silence_ms_max=500, reconnect_backoff_ms_min=1, reconnect_backoff_ms_max=2
    )
    controller = await world.controller()
    world.client(controller.address, settings=settings)
    start = wire.SubscribeStart()
    while start != resume_of(log):
        # On a slow machine the client may leave before the first frame; a frame followed by silence leads to
        # the end.
        peer = await controller.accept()
        with suppress(ConnectionClosedError):
            start = (await peer.receive()).start
            if start.resume_index == 0:
                await send_snapshot(peer, log.image)


async def test_long_work_yields_to_the_event_loop(world: World) -> None:
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


async def test_an_unknown_record_kind_ends_the_subscription(world: World) -> None:
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


async def test_a_refusal_is_raised_and_an_overload_is_retried(world: World) -> None:
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
async def test_a_broken_snapshot_transfer_is_restarted(world: World, fault: str) -> None:
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
