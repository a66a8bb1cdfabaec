"""Conformance checks for the network port, as one function over a factory of networks.

Run over gRPC in test_grpc_network.py, and by the simulator over its own network. Nothing here knows which one
it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeAlias

import pytest
from ponor_runtime.network import FRAME_BYTES_MAX, Connection, ConnectionClosedError, Network

NetworkFactory: TypeAlias = Callable[[], Awaitable[Network]]
Check: TypeAlias = Callable[[Network, str], Awaitable[None]]
METHOD = "/ponor.test.v1.EchoService/Echo"
OTHER_METHOD = "/ponor.test.v1.EchoService/Other"
PATIENCE_SECONDS = 90.0
"""Only a hang takes longer, even on a busy machine."""


async def echo(connection: Connection) -> None:
    while True:
        await connection.send(await connection.receive())


async def frames_come_back_in_order(network: Network, address: str) -> None:
    listener = await network.listen(address, {METHOD: echo})
    connection = await network.connect(listener.address, METHOD)
    sent = [b"%d" % number for number in range(300)] + [b""]

    async def send_all() -> None:
        for frame in sent:
            await connection.send(frame)

    sender = asyncio.create_task(send_all())
    assert [await connection.receive() for _ in sent] == sent
    await sender
    await connection.close()
    await listener.close()


async def concurrent_senders_do_not_mix_their_frames(network: Network, address: str) -> None:
    listener = await network.listen(address, {METHOD: echo})
    connection = await network.connect(listener.address, METHOD)
    frames = [bytes([number]) * 10_000 for number in range(50)]
    senders = [asyncio.create_task(connection.send(frame)) for frame in frames]
    received = [await connection.receive() for _ in frames]
    await asyncio.gather(*senders)
    assert sorted(received) == frames
    await connection.close()
    await listener.close()


async def a_lone_frame_is_taken_at_once_and_none_overtakes_another(network: Network, address: str) -> None:
    listener = await network.listen(address, {METHOD: echo})
    connection = await network.connect(listener.address, METHOD)
    await connection.send(b"hello")
    assert await connection.receive() == b"hello"
    frames = [b"%d" % number for number in range(300)]
    refused = 0

    async def send_all() -> None:
        nonlocal refused
        for frame in frames:
            if not connection.try_send(frame):
                refused += 1
                await connection.send(frame)

    sender = asyncio.create_task(send_all())
    assert [await connection.receive() for _ in frames] == frames
    await sender
    assert refused < len(frames), "no frame was queued before the first"
    with pytest.raises(ValueError, match="exceeds the limit"):
        connection.try_send(bytes(FRAME_BYTES_MAX + 1))
    await connection.close()
    assert not connection.try_send(b"too late")
    await listener.close()


async def the_largest_frame_passes_and_a_larger_one_is_refused(network: Network, address: str) -> None:
    listener = await network.listen(address, {METHOD: echo})
    connection = await network.connect(listener.address, METHOD)
    largest = b"x" * FRAME_BYTES_MAX
    await connection.send(largest)
    assert await connection.receive() == largest
    with pytest.raises(ValueError, match="exceeds the limit"):
        await connection.send(largest + b"y")
    await connection.send(b"still open")
    assert await connection.receive() == b"still open"
    await connection.close()
    await listener.close()


async def methods_are_told_apart(network: Network, address: str) -> None:
    async def other(connection: Connection) -> None:
        await connection.receive()
        await connection.send(b"other")

    listener = await network.listen(address, {METHOD: echo, OTHER_METHOD: other})
    first = await network.connect(listener.address, METHOD)
    second = await network.connect(listener.address, OTHER_METHOD)
    await first.send(b"question")
    await second.send(b"question")
    assert await first.receive() == b"question"
    assert await second.receive() == b"other"
    with pytest.raises(ConnectionClosedError):
        await second.receive()
    await first.close()
    await second.close()
    await listener.close()


async def what_the_server_said_before_it_closed_arrives(network: Network, address: str) -> None:
    async def send_and_end(connection: Connection) -> None:
        await connection.receive()
        for number in range(100):
            await connection.send(b"%d" % number)

    listener = await network.listen(address, {METHOD: send_and_end})
    connection = await network.connect(listener.address, METHOD)
    await connection.send(b"go")
    assert [await connection.receive() for _ in range(100)] == [b"%d" % number for number in range(100)]
    for _ in range(2):
        with pytest.raises(ConnectionClosedError):
            await connection.receive()
    with pytest.raises(ConnectionClosedError):
        for _ in range(10_000):
            await connection.send(b"ping")
    await connection.close()
    await connection.close()
    await listener.close()


async def what_the_client_said_before_it_closed_arrives(network: Network, address: str) -> None:
    heard: list[bytes] = []
    over = asyncio.Event()

    async def listen(connection: Connection) -> None:
        with suppress(ConnectionClosedError):
            while True:
                heard.append(await connection.receive())
        over.set()

    listener = await network.listen(address, {METHOD: listen})
    connection = await network.connect(listener.address, METHOD)
    for number in range(100):
        await connection.send(b"%d" % number)
    await connection.close()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await over.wait()
    assert heard == [b"%d" % number for number in range(100)]
    with pytest.raises(ConnectionClosedError):
        await connection.receive()
    with pytest.raises(ConnectionClosedError):
        await connection.send(b"late")
    await listener.close()


async def a_receiver_that_gave_up_loses_no_frame(network: Network, address: str) -> None:
    release = asyncio.Event()

    async def slow(connection: Connection) -> None:
        await connection.receive()
        await release.wait()
        await connection.send(b"first")
        await connection.send(b"second")
        with suppress(ConnectionClosedError):
            await connection.receive()

    listener = await network.listen(address, {METHOD: slow})
    connection = await network.connect(listener.address, METHOD)
    await connection.send(b"go")
    receiver = asyncio.create_task(connection.receive())
    for _ in range(5):
        await asyncio.sleep(0)
    receiver.cancel()
    with pytest.raises(asyncio.CancelledError):
        await receiver
    release.set()
    assert await connection.receive() == b"first"
    assert await connection.receive() == b"second"
    await connection.close()
    await listener.close()


async def a_sender_waits_for_a_slow_peer(network: Network, address: str) -> None:
    release = asyncio.Event()
    # More than any window limited in bytes or in frames.
    frame = b"x" * (128 * 1024)
    frames = 400
    counted: list[int] = []

    async def slow(connection: Connection) -> None:
        await release.wait()
        for _ in range(frames):
            counted.append(len(await connection.receive()))
        await connection.send(b"all there")

    listener = await network.listen(address, {METHOD: slow})
    connection = await network.connect(listener.address, METHOD)
    accepted = 0

    async def send_all() -> None:
        nonlocal accepted
        for _ in range(frames):
            await connection.send(frame)
            accepted += 1

    sender = asyncio.create_task(send_all())
    done, _ = await asyncio.wait((sender,), timeout=1.0)
    assert not done, "no backpressure: 50 MiB were sent to a peer that does not read"
    assert accepted < frames
    release.set()
    await sender
    assert await connection.receive() == b"all there"
    assert counted == [len(frame)] * frames
    await connection.close()
    await listener.close()


async def both_sides_learn_that_the_other_closed(network: Network, address: str) -> None:
    seen = asyncio.Event()

    async def wait_for_end(connection: Connection) -> None:
        await connection.send(b"here")
        with pytest.raises(ConnectionClosedError):
            await connection.receive()
        seen.set()

    listener = await network.listen(address, {METHOD: wait_for_end})
    first = await network.connect(listener.address, METHOD)
    assert await first.receive() == b"here"
    await first.close()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await seen.wait()
    second = await network.connect(listener.address, METHOD)
    assert await second.receive() == b"here"
    waiting = asyncio.create_task(second.receive())
    await asyncio.sleep(0)
    await listener.close()
    async with asyncio.timeout(PATIENCE_SECONDS):
        with pytest.raises(ConnectionClosedError):
            await waiting
    await second.close()


async def closing_wakes_waiters(network: Network, address: str) -> None:
    async def silent(connection: Connection) -> None:
        await connection.send(b"here")
        with suppress(ConnectionClosedError):
            await connection.receive()

    listener = await network.listen(address, {METHOD: silent})
    connection = await network.connect(listener.address, METHOD)
    assert await connection.receive() == b"here"
    waiting = asyncio.create_task(connection.receive())
    await asyncio.sleep(0)
    await connection.close()
    async with asyncio.timeout(PATIENCE_SECONDS):
        with pytest.raises(ConnectionClosedError):
            await waiting
    await listener.close()


async def unreachable_peer_is_a_closed_connection(network: Network, address: str) -> None:
    listener = await network.listen(address, {METHOD: echo})
    abandoned = listener.address
    await listener.close()
    with pytest.raises(ConnectionClosedError):
        connection = await network.connect(abandoned, METHOD)
        try:
            await connection.receive()
        finally:
            await connection.close()


async def an_unknown_method_is_a_closed_connection(network: Network, address: str) -> None:
    listener = await network.listen(address, {METHOD: echo})
    with pytest.raises(ConnectionClosedError):
        connection = await network.connect(listener.address, OTHER_METHOD)
        try:
            await connection.receive()
        finally:
            await connection.close()
    await listener.close()


async def a_taken_address_is_named(network: Network, address: str) -> None:
    listener = await network.listen(address, {METHOD: echo})
    with pytest.raises(OSError, match=listener.address):
        await network.listen(listener.address, {METHOD: echo})
    connection = await network.connect(listener.address, METHOD)
    await connection.send(b"the first one serves on")
    assert await connection.receive() == b"the first one serves on"
    await connection.close()
    await listener.close()


CHECKS: tuple[Check, ...] = (
    frames_come_back_in_order,
    concurrent_senders_do_not_mix_their_frames,
    a_lone_frame_is_taken_at_once_and_none_overtakes_another,
    the_largest_frame_passes_and_a_larger_one_is_refused,
    methods_are_told_apart,
    what_the_server_said_before_it_closed_arrives,
    what_the_client_said_before_it_closed_arrives,
    a_receiver_that_gave_up_loses_no_frame,
    a_sender_waits_for_a_slow_peer,
    both_sides_learn_that_the_other_closed,
    closing_wakes_waiters,
    unreachable_peer_is_a_closed_connection,
    an_unknown_method_is_a_closed_connection,
    a_taken_address_is_named,
)


async def run_network_conformance(factory: NetworkFactory, address: str = "127.0.0.1:0") -> None:
    """Run every check, each on its own network."""
    for check in CHECKS:
        await check(await factory(), address)
