"""The session client with a scripted controller on real loopback connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
from ponor.common.v1 import error_pb2
from ponor.controller.v1 import session_service_pb2 as wire
from ponor_metadata.client.errors import OperationTimeoutError, OperationTooLargeError, SessionClosedError
from ponor_metadata.client.seen_history import SeenHistory
from ponor_rpc.errors import OperationError
from ponor_runtime.network import ConnectionClosedError

from libs.metadata.tests.metadata_kit import NODE_A
from libs.metadata.tests.session_world import (
    World,
    answer,
    done,
    ids,
    next_batch,
    put_key,
    refused,
    session_world,
    settle,
    welcome,
)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with session_world() as opened:
        yield opened


async def test_hello_has_the_identity_and_welcome_the_epoch(world: World) -> None:
    controller = await world.controller()
    client, _ = world.session(controller.address)
    peer = await controller.accept()
    hello = await welcome(peer)
    assert (hello.node_id, hello.incarnation, hello.node_epoch, hello.cluster_id) == (
        NODE_A,
        b"i" * 16,
        0,
        "",
    )
    assert (hello.kafka_host, hello.kafka_port, hello.role) == ("127.0.0.1", 9092, 1)
    await client.ready()
    assert (client.node_epoch, client.cluster_id, client.registered_index) == (3, "c-1", 5)
    assert client.cluster_time_ms == 1_000


async def test_operations_of_one_turn_share_a_frame(world: World) -> None:
    client, _, peer = await world.welcomed()
    submitted = [asyncio.create_task(client.submit(put_key(f"k{number}"))) for number in range(100)]
    batch = await next_batch(peer)
    assert ids(batch) == list(range(1, 101))
    assert batch.first_incomplete_id == 1
    await answer(peer, *(done(request_id, request_id + 1000) for request_id in reversed(ids(batch))))
    results = await asyncio.gather(*submitted)
    assert [result.commit_index for result in results] == list(range(1001, 1101))
    later = asyncio.create_task(client.submit(put_key("later")))
    batch = await next_batch(peer)
    assert (ids(batch), batch.first_incomplete_id) == ([101], 101)
    await answer(peer, done(101))
    await later


async def test_operations_in_order_share_a_frame_and_a_refusal_stops_none(world: World) -> None:
    client, _, peer = await world.welcomed()
    asked = asyncio.create_task(client.submit_in_order([put_key(f"k{number}") for number in range(3)]))
    batch = await next_batch(peer)
    assert [operation.put_key.key for operation in batch.operations] == ["k0", "k1", "k2"]
    await answer(peer, done(3), refused(2, error_pb2.ERROR_CODE_STREAM_NOT_FOUND), done(1))
    first, second, third = await asked
    assert isinstance(first, wire.OperationResult)
    assert isinstance(second, OperationError)
    assert second.code == error_pb2.ERROR_CODE_STREAM_NOT_FOUND
    assert isinstance(third, wire.OperationResult)
    assert (first.request_id, third.request_id) == (1, 3)
    await client.close()
    with pytest.raises(SessionClosedError):
        await client.submit_in_order([put_key("k")])


async def test_unanswered_operations_are_sent_again_under_the_same_id(world: World) -> None:
    client, controller, peer = await world.welcomed()
    submitted = [asyncio.create_task(client.submit(put_key(f"k{number}"))) for number in range(3)]
    sent = await next_batch(peer)
    await answer(peer, done(2))
    await submitted[1]
    peer.hang_up()
    peer = await controller.accept()
    hello = await welcome(peer)
    assert (hello.incarnation, hello.node_epoch, hello.cluster_id) == (b"i" * 16, 3, "c-1")
    again = await next_batch(peer)
    assert ids(again) == [1, 3]
    assert again.operations[0] == sent.operations[0]
    assert again.operations[1] == sent.operations[2]
    await answer(peer, done(3), done(1), done(2), done(1))  # answers that come twice change nothing
    await asyncio.gather(*submitted)


async def test_operations_wait_for_a_controller(world: World) -> None:
    controller = await world.controller()
    closed = await world.controller()
    await closed.close()
    world.controllers.remove(closed)
    client, _ = world.session(closed.address, controller.address)
    submitted = asyncio.create_task(client.submit(put_key("k")))
    peer = await controller.accept()
    await welcome(peer)
    await answer(peer, done(ids(await next_batch(peer))[0]))
    await submitted


async def test_frames_and_bytes_in_flight_are_bounded(world: World) -> None:
    client, _, peer = await world.welcomed()
    submitted = [asyncio.create_task(client.submit(put_key(f"k{number}", 4_000))) for number in range(600)]
    in_flight: list[int] = []
    answered = 0
    while answered < len(submitted):
        frame = await peer.receive_raw()
        assert len(frame) <= 256 * 1024
        in_flight += ids(wire.SessionRequest.FromString(frame).operations)
        assert len(in_flight) * 4_000 <= 1024 * 1024
        if len(in_flight) * 4_050 > 1024 * 1024 or answered + len(in_flight) == len(submitted):
            await settle()
            await answer(peer, *(done(request_id) for request_id in in_flight))
            answered += len(in_flight)
            in_flight.clear()
    await asyncio.gather(*submitted)


async def test_at_most_1024_operations_are_in_flight(world: World) -> None:
    client, _, peer = await world.welcomed()
    submitted = [asyncio.create_task(client.submit(put_key("k"))) for _ in range(1_500)]
    first = await next_batch(peer)
    assert len(first.operations) == 1_024
    await answer(peer, done(1), done(2))
    assert ids(await next_batch(peer)) == [1_025, 1_026]
    await answer(peer, *(done(request_id) for request_id in range(3, 1_027)))
    rest = await next_batch(peer)
    assert ids(rest) == list(range(1_027, 1_501))
    assert rest.first_incomplete_id == 1_027
    await answer(peer, *(done(request_id) for request_id in ids(rest)))
    await asyncio.gather(*submitted)


async def test_a_large_operation_has_its_own_frame_and_a_larger_one_is_refused(world: World) -> None:
    client, _, peer = await world.welcomed()
    submitted = [
        asyncio.create_task(client.submit(put_key(key, size)))
        for key, size in (("small", 1), ("wide", 600_000), ("next", 1))
    ]
    assert [ids(await next_batch(peer)) for _ in range(3)] == [[1], [2], [3]]
    await answer(peer, done(1), done(2), done(3))
    await asyncio.gather(*submitted)
    with pytest.raises(OperationTooLargeError, match="split it"):
        await client.submit(put_key("wider", 2_000_000))


async def test_a_waiting_large_operation_is_not_overtaken(world: World) -> None:
    client, _, peer = await world.welcomed()
    first = asyncio.create_task(client.submit(put_key("first", 700_000)))
    await settle()
    large = asyncio.create_task(client.submit(put_key("large", 700_000)))
    small = asyncio.create_task(client.submit(put_key("small")))
    await settle()
    assert ids(await next_batch(peer)) == [1]
    await answer(peer, done(1))
    assert [(await next_batch(peer)).operations[0].put_key.key for _ in range(2)] == ["large", "small"]
    await answer(peer, done(2), done(3))
    await asyncio.gather(first, large, small)


async def test_a_refusal_fails_only_its_caller(world: World) -> None:
    client, _, peer = await world.welcomed()
    bad, good = (asyncio.create_task(client.submit(put_key(key))) for key in ("bad", "good"))
    await next_batch(peer)
    await answer(peer, refused(1, error_pb2.ERROR_CODE_STREAM_FENCED), done(2))
    with pytest.raises(OperationError, match="STREAM_FENCED: because") as caught:
        await bad
    assert caught.value.code == error_pb2.ERROR_CODE_STREAM_FENCED
    await good
    assert not client.fenced.is_set()


async def test_a_load_report_is_sent_once_and_a_newer_one_replaces_it(world: World) -> None:
    client, controller, peer = await world.welcomed()
    client.report_load(wire.LoadReport(window_ms=1))
    client.report_load(wire.LoadReport(window_ms=2))
    assert (await peer.receive()).load.window_ms == 2
    # The next leader does not get the old report.
    peer.hang_up()
    peer = await controller.accept()
    await welcome(peer)
    submitted = asyncio.create_task(client.submit(put_key("k")))
    assert ids(await next_batch(peer)) == [1]
    await answer(peer, done(1))
    await submitted


async def test_an_operation_refused_for_overload_is_retried_later(world: World) -> None:
    client, _, peer = await world.welcomed()
    submitted = asyncio.create_task(client.submit(put_key("k")))
    for _ in range(3):
        assert ids(await next_batch(peer)) == [1]
        await answer(peer, refused(1, error_pb2.ERROR_CODE_OVERLOADED))
    assert ids(await next_batch(peer)) == [1]
    await answer(peer, done(1))
    await submitted


async def test_a_deadline_before_sending_removes_the_operation(world: World) -> None:
    controller = await world.controller()
    client, _ = world.session(controller.address)
    peer = await controller.accept()
    with pytest.raises(OperationTimeoutError, match="put_key: no answer within 20 ms") as caught:
        await client.submit(put_key("never sent"), deadline_ms=20)
    assert not caught.value.sent
    await welcome(peer)
    submitted = asyncio.create_task(client.submit(put_key("sent")))
    batch = await next_batch(peer)
    assert [operation.put_key.key for operation in batch.operations] == ["sent"]
    assert batch.first_incomplete_id == batch.operations[0].request_id
    await answer(peer, done(ids(batch)[0]))
    await submitted


async def test_a_deadline_after_sending_keeps_the_id_in_use(world: World) -> None:
    client, _, peer = await world.welcomed()
    deadline_ms, is_sent = 100, False
    while not is_sent:
        with pytest.raises(OperationTimeoutError) as caught:
            await client.submit(put_key("slow"), deadline_ms=deadline_ms)
        is_sent = caught.value.sent
        deadline_ms *= 4  # the deadline passed before this machine had sent anything
    (slow,) = ids(await next_batch(peer))
    submitted = asyncio.create_task(client.submit(put_key("next")))
    batch = await next_batch(peer)
    assert (ids(batch), batch.first_incomplete_id) == ([slow + 1], slow)
    await answer(peer, done(slow), done(slow + 1))
    await submitted
    last = asyncio.create_task(client.submit(put_key("last")))
    assert (await next_batch(peer)).first_incomplete_id == slow + 2
    await answer(peer, done(slow + 2))
    await last


async def test_an_idle_session_sends_heartbeats_and_leaves_a_silent_controller(world: World) -> None:
    controller = await world.controller()
    client, _ = world.session(controller.address)
    peer = await controller.accept()
    await welcome(peer, session_timeout_ms=300)
    await client.ready()
    clock_ms = 1_000
    while client.cluster_time_ms < 3_000:
        try:
            request = await peer.receive()
            assert request.heartbeat == wire.Heartbeat(index=77)
            clock_ms += 1_000
            answered = wire.Heartbeat(index=8, cluster_time_ms=clock_ms)
            await peer.send(wire.SessionResponse(heartbeat=answered))
        except ConnectionClosedError:
            # This machine paused for longer than the limit of silence.
            peer = await controller.accept()
            with suppress(ConnectionClosedError):
                await welcome(peer, session_timeout_ms=300)
    await controller.accept()  # the previous connection is silent


async def test_close_fails_operations_in_flight_and_waiting(world: World) -> None:
    client, _, peer = await world.welcomed()
    submitted = [asyncio.create_task(client.submit(put_key("k", 400_000))) for _ in range(5)]
    await next_batch(peer)
    await client.close()
    await client.close()
    outcomes = await asyncio.gather(*submitted, return_exceptions=True)
    assert all(isinstance(outcome, SessionClosedError) for outcome in outcomes)
    with pytest.raises(SessionClosedError):
        await client.submit(put_key("k"))
    await peer.wait_closed()


async def test_cancelled_callers_do_not_disturb_the_others(world: World) -> None:
    client, _, peer = await world.welcomed()
    submitted = [asyncio.create_task(client.submit(put_key(f"k{number}", 400_000))) for number in range(5)]
    await settle()
    submitted[0].cancel()  # sent
    submitted[2].cancel()  # in line
    received: list[str] = []
    for _ in range(4):
        batch = await next_batch(peer)
        received += [operation.put_key.key for operation in batch.operations]
        await answer(peer, *(done(request_id) for request_id in ids(batch)))
    outcomes = await asyncio.gather(*submitted, return_exceptions=True)
    assert received == ["k0", "k1", "k3", "k4"]
    assert [isinstance(outcome, asyncio.CancelledError) for outcome in outcomes] == [
        True,
        False,
        True,
        False,
        False,
    ]


async def test_a_node_of_another_cluster_gets_the_refusal_and_does_not_retry(world: World) -> None:
    controller = await world.controller()
    client, running = world.session(controller.address)
    peer = await controller.accept()
    await peer.receive()
    code = error_pb2.ERROR_CODE_INVALID_REQUEST
    await peer.send(wire.SessionResponse(refused=error_pb2.Error(code=code, message="this is cluster c-2")))
    with pytest.raises(OperationError, match="this is cluster c-2"):
        await running
    with pytest.raises(SessionClosedError):
        await client.ready()


async def test_a_later_hello_has_the_records_of_nodes_and_operations_continue(world: World) -> None:
    client, controller, peer = await world.welcomed()
    submitted = asyncio.create_task(client.submit(put_key("k")))
    first = await next_batch(peer)
    recorded = SeenHistory(1, 2, 3, b"n" * 8)
    telling = asyncio.create_task(client.register_again((recorded,)))
    peer = await controller.accept()
    assert not telling.done()
    hello = await welcome(peer)
    assert hello.seen[0] == recorded.message()
    assert (hello.node_epoch, len(hello.seen)) == (3, 2)
    await telling
    again = await next_batch(peer)
    assert again == first
    await answer(peer, done(again.operations[0].request_id))
    await submitted
    await client.close()
    with pytest.raises(SessionClosedError):
        await client.register_again(())


async def test_a_peer_that_violates_the_protocol_is_left(world: World) -> None:
    client, controller, peer = await world.welcomed()
    await peer._connection.send(b"\xff\xff\xff")
    peer = await controller.accept()
    await welcome(peer)
    await peer.send(wire.SessionResponse(welcome=wire.Welcome()))
    peer = await controller.accept()
    await peer.receive()
    await answer(peer, done(1))
    await welcome(await controller.accept())
    await client.ready()
