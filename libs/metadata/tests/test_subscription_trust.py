"""Histories, digests, incarnations, staleness and reads that a subscription accepts from controllers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from ponor.common.v1 import error_pb2
from ponor.controller.v1 import subscription_service_pb2 as wire
from ponor.metadata.v1 import records_pb2 as pb
from ponor_metadata.client.errors import HistoryReplacedError, MetadataLagError
from ponor_metadata.client.subscription import SubscriptionSettings
from ponor_metadata.image import snapshot
from ponor_metadata.image.batches import EMPTY_DIGEST, running_digest
from ponor_metadata.nouns.keys import KEYS
from ponor_runtime.system import SystemClock

from libs.metadata.tests.metadata_kit import Log, contents, record
from libs.metadata.tests.subscription_world import (
    Peer,
    World,
    answer_probe,
    commit_and_send,
    key_put,
    resume_of,
    send_batches,
    send_snapshot,
    subscription_world,
)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with subscription_world() as opened:
        yield opened


async def test_batches_of_another_history_are_not_applied(world: World) -> None:
    log, other = Log(), Log()
    client, controller, peer = await world.following(log)
    other.commit(key_put("from another history"))
    digest = other.image.digest
    other.commit(key_put("k", b"2"))
    await send_batches(peer, other.encoded[-2:-1], running_digest(digest, b"something else before it"))
    peer = await controller.accept()
    start = (await peer.receive()).start
    assert (start.resume_index, start.resume_digest) == (0, EMPTY_DIGEST)
    assert start.seen_index == log.image.index, "readers have seen it, so nothing older may follow"
    assert contents(client.image) == contents(log.image)
    assert world.counted("ponor_subscription_digest_mismatches_total") == 1
    await send_snapshot(peer, other.image)
    await client.wait_for(other.image.index)
    assert contents(client.image) == contents(other.image)


async def test_damaged_bytes_are_not_applied(world: World) -> None:
    log = Log()
    client, controller, peer = await world.following(log)
    log.commit(key_put("k", b"right"))
    await send_batches(peer, [log.encoded[-1].replace(b"right", b"wrong")], log.image.digest)
    peer = await controller.accept()
    await peer.receive()
    assert "k" not in client.image[KEYS]
    await send_snapshot(peer, log.image)
    await client.wait_for(log.image.index)
    row = client.image[KEYS].get("k")
    assert row is not None
    assert row.value == b"right"


async def test_an_older_snapshot_is_refused(world: World) -> None:
    log = Log()
    behind = snapshot.decode(snapshot.encode(log.image))
    client, controller, peer = await world.following(log)
    for number in range(3):
        await commit_and_send(log, peer, key_put(f"k{number}"))
    await client.wait_for(log.image.index)
    seen = contents(client.image)
    peer.hang_up()
    peer = await controller.accept()
    assert (await peer.receive()).start == resume_of(log)
    await send_snapshot(peer, behind)  # a controller that is behind, and does not keep the rule
    peer = await controller.accept()  # the client leaves it
    assert (await peer.receive()).start == resume_of(log)
    assert contents(client.image) == seen
    await commit_and_send(log, peer, key_put("new"))
    await client.wait_for(log.image.index)
    assert contents(client.image) == contents(log.image)


async def test_batches_must_follow_the_applied_index(world: World) -> None:
    log = Log()
    client, controller, peer = await world.following(log)
    here = log.image.index
    log.commit(key_put("left out"))
    await commit_and_send(log, peer, key_put("k"))
    peer = await controller.accept()
    assert (await peer.receive()).start.resume_index == client.image.index == here
    assert world.counted("ponor_subscription_digest_mismatches_total") == 0, "a gap is not a divergence"
    await send_batches(peer, log.encoded[-2:], log.image.digest)
    await client.wait_for(log.image.index)


async def test_a_controller_that_finds_another_digest_raises_the_alarm(world: World) -> None:
    log = Log()
    client, controller, peer = await world.following(log)
    peer.hang_up()
    peer = await controller.accept()
    await peer.receive()
    log.commit(key_put("k"))
    await send_snapshot(peer, log.image, reason=wire.SnapshotBegin.REASON_DIVERGED)
    await client.wait_for(log.image.index)
    assert world.counted("ponor_subscription_digest_mismatches_total") == 1


async def test_digests_are_compared_while_there_are_no_batches(world: World) -> None:
    log = Log()
    client, controller, peer = await world.following(log)
    same = wire.Progress(commit_index=log.image.index, digest=log.image.digest)
    await peer.send(wire.SubscribeResponse(progress=same))
    await commit_and_send(log, peer, key_put("k"))
    await client.wait_for(log.image.index)
    other = wire.Progress(commit_index=log.image.index, digest=b"x" * 16)
    await peer.send(wire.SubscribeResponse(progress=other))
    peer = await controller.accept()
    start = (await peer.receive()).start
    assert (start.resume_index, start.seen_index) == (0, log.image.index)
    assert world.counted("ponor_subscription_digest_mismatches_total") == 1


async def test_a_snapshot_of_a_later_incarnation_ends_the_subscription(world: World) -> None:
    log = Log()
    client, controller, peer = await world.following(log)
    recovered = Log()
    recovered.commit(record(incarnation_raised=pb.IncarnationRaised(incarnation=1)))
    for number in range(5):
        recovered.commit(key_put(f"k{number}"))
    peer.hang_up()
    peer = await controller.accept()
    await peer.receive()
    await send_snapshot(peer, recovered.image, reason=wire.SnapshotBegin.REASON_INCARNATION)
    with pytest.raises(HistoryReplacedError, match="incarnation 1"):
        await world.clients[0][1]
    assert contents(client.image) == contents(log.image)


async def test_a_forced_recovery_without_lost_batches_continues_the_subscription(world: World) -> None:
    log = Log()
    client, controller, peer = await world.following(log)
    await commit_and_send(log, peer, record(incarnation_raised=pb.IncarnationRaised(incarnation=1)))
    await client.wait_for(log.image.index)
    peer.hang_up()
    peer = await controller.accept()
    start = (await peer.receive()).start
    assert start == resume_of(log)
    assert start.incarnation == 1


class SteeredClock(SystemClock):
    """A clock that the test moves; sleeping is real."""

    def __init__(self) -> None:
        self.now_ms = 0

    def monotonic_ns(self) -> int:
        return self.now_ms * 1_000_000


async def test_staleness_counts_from_the_answered_probe(world: World) -> None:
    log = Log()
    clock = SteeredClock()
    settings = SubscriptionSettings(ack_interval_ms=100, silence_ms_max=600_000)
    controller = await world.controller()
    client, _ = world.client(controller.address, clock=clock, settings=settings)
    peer = await controller.accept()
    await peer.receive()
    await send_snapshot(peer, log.image)
    await client.wait_for(log.image.index)
    at_first = client.staleness_ms
    assert at_first is None, "a snapshot may be old, and no probe was answered"
    clock.now_ms = 70
    await answer_probe(peer, log.image.index + 1)
    await commit_and_send(log, peer, key_put("k"))  # the batch of which the answer spoke
    await client.wait_for(log.image.index)
    while client.staleness_ms is None:
        await asyncio.sleep(0.001)
    assert client.staleness_ms == 70, "since the probe was sent"
    clock.now_ms = 900
    await commit_and_send(log, peer, key_put("k2"))
    await client.wait_for(log.image.index)
    assert client.staleness_ms == 900, "batches may have been delayed in transit"
    while client.staleness_ms:
        await answer_probe(peer, log.image.index, staleness_ms=0)  # also of a request that was sent before
        await asyncio.sleep(0.01)


async def test_a_controller_without_a_leader_is_left_for_another(world: World) -> None:
    log = Log()
    lonely, other = await world.controller(), await world.controller()
    client, _ = world.client(lonely.address, other.address)
    while True:
        left, right = asyncio.create_task(lonely.accept()), asyncio.create_task(other.accept())
        await asyncio.wait((left, right), return_when=asyncio.FIRST_COMPLETED)
        left.cancel()
        right.cancel()
        await asyncio.gather(left, right, return_exceptions=True)
        if not right.cancelled():
            break
        peer = left.result()
        await peer.receive()
        await send_snapshot(peer, log.image)
        await answer_probe(peer, log.image.index, staleness_ms=60_000)
    peer = right.result()
    await peer.receive()
    if client.image.index < log.image.index:
        await send_snapshot(peer, log.image)
    log.commit(key_put("from the other side"))
    await send_batches(peer, log.encoded[-1:], log.image.digest)
    await client.wait_for(log.image.index)


async def test_a_linearizable_read_waits_for_the_confirmed_index(world: World) -> None:
    log = Log()
    client, controller, peer = await world.following(log)
    reading = asyncio.create_task(client.wait_current())

    async def asked(peer: Peer) -> int:
        while True:
            request = await peer.receive()
            if request.WhichOneof("frame") == "read_index":
                return request.read_index.context

    context = await asked(peer)
    refusal = error_pb2.Error(code=error_pb2.ERROR_CODE_NOT_LEADER, message="no leader")
    response = wire.ReadIndexResponse(context=context, error=refusal)
    await peer.send(wire.SubscribeResponse(read_index=response))
    await asked(peer)
    peer.hang_up()
    peer = await controller.accept()
    response = wire.ReadIndexResponse(context=await asked(peer), index=log.image.index + 1)
    await peer.send(wire.SubscribeResponse(read_index=response))
    await asyncio.sleep(0.01)
    assert not reading.done()
    await commit_and_send(log, peer, key_put("k"))
    await reading
    with pytest.raises(MetadataLagError, match="majority"):
        await client.wait_current(deadline_ms=20)
