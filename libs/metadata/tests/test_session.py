"""The session client against a scripted controller on real loopback connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
from ponor.common.v1 import error_pb2
from ponor.controller.v1 import session_service_pb2 as wire
from ponor_metadata.errors import (
    NodeFencedError,
    OperationTimeoutError,
    OperationTooLargeError,
    SessionClosedError,
)
from ponor_metadata.rows import NodeRole
from ponor_metadata.session import NodeIdentity, SessionClient, SessionSettings
from ponor_rpc.errors import OperationError
from ponor_rpc.grpc_network import GrpcNetwork
from ponor_rpc.methods import SESSION
from ponor_runtime.system import SystemClock, SystemRandomness
from ponor_runtime.telemetry import Telemetry

from libs.metadata.tests.metadata_kit import NODE_A
from libs.metadata.tests.scripted_controller import ScriptedConnection, ScriptedController

IDENTITY = NodeIdentity(
    node_id=NODE_A, role=NodeRole.BROKER, incarnation=b"i" * 16, kafka_host="127.0.0.1", kafka_port=9092
)
SETTINGS = SessionSettings(
    reconnect_backoff_ms_min=1, reconnect_backoff_ms_max=20, overloaded_backoff_ms_max=30
)
Peer = ScriptedConnection[wire.SessionRequest]


@dataclass
class World:
    network: GrpcNetwork
    controllers: list[ScriptedController[wire.SessionRequest]] = field(default_factory=list)
    sessions: list[tuple[SessionClient, asyncio.Task[None]]] = field(default_factory=list)

    async def controller(self) -> ScriptedController[wire.SessionRequest]:
        controller = ScriptedController(self.network, SESSION, wire.SessionRequest.FromString)
        await controller.start()
        self.controllers.append(controller)
        return controller

    def session(
        self, *addresses: str, settings: SessionSettings = SETTINGS
    ) -> tuple[SessionClient, asyncio.Task[None]]:
        client = SessionClient(
            network=self.network,
            clock=SystemClock(),
            randomness=SystemRandomness(),
            telemetry=Telemetry(),
            identity=IDENTITY,
            addresses=addresses,
            settings=settings,
            applied_index=lambda: 77,
        )
        running = asyncio.create_task(client.run())
        self.sessions.append((client, running))
        return client, running

    async def welcomed(self) -> tuple[SessionClient, ScriptedController[wire.SessionRequest], Peer]:
        controller = await self.controller()
        client, _ = self.session(controller.address)
        peer = await controller.accept()
        await welcome(peer)
        await client.ready()
        return client, controller, peer


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World(GrpcNetwork())
    yield world
    for client, running in world.sessions:
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
    assert not left, f"tasks outlive the session: {left}"


async def welcome(peer: Peer, node_epoch: int = 3, session_timeout_ms: int = 60_000) -> wire.Hello:
    hello = (await peer.receive()).hello
    await peer.send(
        wire.SessionResponse(
            welcome=wire.Welcome(
                cluster_id="c-1",
                node_epoch=node_epoch,
                registered_index=5,
                cluster_time_ms=1_000,
                session_timeout_ms=session_timeout_ms,
            )
        )
    )
    return hello


def put_key(key: str, size: int = 1) -> wire.Operation:
    return wire.Operation(put_key=wire.PutKey(key=key, value=b"v" * size))


def done(request_id: int, commit_index: int = 9) -> wire.OperationResult:
    return wire.OperationResult(request_id=request_id, commit_index=commit_index, done=wire.Done())


def refused(request_id: int, code: error_pb2.ErrorCode.ValueType) -> wire.OperationResult:
    return wire.OperationResult(request_id=request_id, error=error_pb2.Error(code=code, message="because"))


async def answer(peer: Peer, *results: wire.OperationResult) -> None:
    await peer.send(wire.SessionResponse(results=wire.ResultBatch(results=results)))


async def next_batch(peer: Peer) -> wire.OperationBatch:
    while True:
        request = await peer.receive()
        if request.WhichOneof("frame") == "operations":
            return request.operations


def ids(batch: wire.OperationBatch) -> list[int]:
    return [operation.request_id for operation in batch.operations]


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_hello_tells_who_comes_and_welcome_what_it_is(world: World) -> None:
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


async def test_what_has_no_answer_goes_again_under_the_same_id(world: World) -> None:
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
    nobody = await world.controller()
    await nobody.close()
    world.controllers.remove(nobody)
    client, _ = world.session(nobody.address, controller.address)
    submitted = asyncio.create_task(client.submit(put_key("k")))
    peer = await controller.accept()
    await welcome(peer)
    await answer(peer, done(ids(await next_batch(peer))[0]))
    await submitted


async def test_frames_and_what_is_in_flight_are_bounded(world: World) -> None:
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


async def test_a_wide_operation_travels_alone_and_a_wider_one_is_refused(world: World) -> None:
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


async def test_a_large_operation_in_line_is_not_overtaken(world: World) -> None:
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


async def test_a_refusal_is_the_callers_alone(world: World) -> None:
    client, _, peer = await world.welcomed()
    bad, good = (asyncio.create_task(client.submit(put_key(key))) for key in ("bad", "good"))
    await next_batch(peer)
    await answer(peer, refused(1, error_pb2.ERROR_CODE_STREAM_FENCED), done(2))
    with pytest.raises(OperationError, match="STREAM_FENCED: because") as caught:
        await bad
    assert caught.value.code == error_pb2.ERROR_CODE_STREAM_FENCED
    await good
    assert not client.fenced.is_set()


async def test_an_overloaded_controller_is_asked_again_later(world: World) -> None:
    client, _, peer = await world.welcomed()
    submitted = asyncio.create_task(client.submit(put_key("k")))
    for _ in range(3):
        assert ids(await next_batch(peer)) == [1]
        await answer(peer, refused(1, error_pb2.ERROR_CODE_OVERLOADED))
    assert ids(await next_batch(peer)) == [1]
    await answer(peer, done(1))
    await submitted


async def test_a_controller_that_does_not_lead_is_left_for_another(world: World) -> None:
    follower, leader = await world.controller(), await world.controller()
    client, _ = world.session(follower.address, leader.address)
    peer = await follower.accept()
    await welcome(peer)
    submitted = asyncio.create_task(client.submit(put_key("k")))
    await next_batch(peer)
    await answer(peer, refused(1, error_pb2.ERROR_CODE_NOT_LEADER))
    peer = await leader.accept()
    await welcome(peer)
    assert ids(await next_batch(peer)) == [1]
    await answer(peer, done(1))
    await submitted


@pytest.mark.parametrize("code", [error_pb2.ERROR_CODE_NODE_FENCED, error_pb2.ERROR_CODE_NODE_EPOCH_STALE])
@pytest.mark.parametrize("how", ["result", "refused", "hello"])
async def test_a_fenced_node_stops(world: World, code: error_pb2.ErrorCode.ValueType, how: str) -> None:
    client, controller, peer = await world.welcomed()
    submitted = asyncio.create_task(client.submit(put_key("k")))
    await next_batch(peer)
    last_word = wire.SessionResponse(refused=error_pb2.Error(code=code, message="a newer process took over"))
    match how:
        case "result":
            await answer(peer, refused(1, code))
        case "refused":
            await peer.send(last_word)
        case _:
            peer.hang_up()
            peer = await controller.accept()
            await peer.receive()
            await peer.send(last_word)
    with pytest.raises(NodeFencedError, match="must stop"):
        await submitted
    assert client.fenced.is_set()
    with pytest.raises(NodeFencedError):
        await client.submit(put_key("k"))
    with pytest.raises(NodeFencedError):
        await client.ready()
    await world.sessions[0][1]


async def test_another_epoch_for_the_same_process_is_a_fence(world: World) -> None:
    client, controller, peer = await world.welcomed()
    peer.hang_up()
    await welcome(await controller.accept(), node_epoch=4)
    await client.fenced.wait()
    with pytest.raises(NodeFencedError, match="epoch 3 was replaced by 4"):
        await client.submit(put_key("k"))


async def test_a_deadline_before_sending_leaves_nothing_behind(world: World) -> None:
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
    with pytest.raises(OperationTimeoutError) as caught:
        await client.submit(put_key("slow"), deadline_ms=100)
    assert caught.value.sent
    assert ids(await next_batch(peer)) == [1]
    submitted = asyncio.create_task(client.submit(put_key("next")))
    batch = await next_batch(peer)
    assert (ids(batch), batch.first_incomplete_id) == ([2], 1)
    await answer(peer, done(1), done(2))
    await submitted
    last = asyncio.create_task(client.submit(put_key("last")))
    assert (await next_batch(peer)).first_incomplete_id == 3
    await answer(peer, done(3))
    await last


async def test_silence_is_broken_by_heartbeats_and_a_silent_controller_is_left(world: World) -> None:
    controller = await world.controller()
    client, _ = world.session(controller.address)
    peer = await controller.accept()
    await welcome(peer, session_timeout_ms=300)
    await client.ready()
    for clock_ms in (2_000, 3_000):
        request = await peer.receive()
        assert request.heartbeat == wire.Heartbeat(index=77)
        await peer.send(wire.SessionResponse(heartbeat=wire.Heartbeat(index=8, cluster_time_ms=clock_ms)))
    peer = await controller.accept()  # the first connection says nothing more
    await welcome(peer)
    assert client.cluster_time_ms == 3_000


async def test_close_ends_what_is_in_flight_and_in_line(world: World) -> None:
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


async def test_a_node_of_another_cluster_is_told_so_and_does_not_try_again(world: World) -> None:
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


async def test_a_peer_that_breaks_the_protocol_is_left(world: World) -> None:
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
