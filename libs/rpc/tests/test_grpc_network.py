"""GrpcNetwork over real loopback sockets: the conformance suite, and behaviour specific to gRPC."""

from __future__ import annotations

import asyncio
import gc
import signal
import subprocess
import sys

import grpc
import grpc.aio
import pytest
from ponor.common.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from ponor_rpc.grpc_network import GrpcNetwork
from ponor_rpc.methods import HEALTH_CHECK, SESSION, service_name
from ponor_rpc.methods import PEER as PEER_METHOD
from ponor_runtime.health import Health
from ponor_runtime.network import FRAME_BYTES_MAX, Connection, ConnectionClosedError

from libs.rpc.tests import closing
from libs.rpc.tests import network_conformance as conformance


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    closing.give_time(monkeypatch)


async def assert_nothing_left() -> None:
    """Wait for all tasks; gRPC's threads also affect when they end."""
    try:
        async with asyncio.timeout(conformance.PATIENCE_SECONDS):
            while left := [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]:
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"tasks outlive the network: {left}") from None
    gc.collect()


@pytest.mark.parametrize("check", conformance.CHECKS, ids=lambda check: check.__name__)
async def test_conformance(check: conformance.Check) -> None:
    network = GrpcNetwork()
    await check(network, "127.0.0.1:0")
    await network.close()
    await assert_nothing_left()


async def test_close_of_the_network_ends_open_connections() -> None:
    network = GrpcNetwork()
    listener = await network.listen("127.0.0.1:0", {SESSION: conformance.echo})
    connection = await network.connect(listener.address, SESSION)
    await connection.send(b"frame")
    assert await connection.receive() == b"frame"
    waiting = asyncio.create_task(connection.receive())
    await asyncio.sleep(0)
    await network.close()
    await network.close()
    with pytest.raises(ConnectionClosedError):
        await waiting
    await connection.close()
    await assert_nothing_left()


async def test_exception_of_a_handler_reaches_fail_stop() -> None:
    failures: list[tuple[str, str]] = []
    network = GrpcNetwork(fail_stop=lambda what, error: failures.append((what, str(error))))

    async def broken(connection: Connection) -> None:
        await connection.receive()
        raise LookupError("a bug of the service")

    listener = await network.listen("127.0.0.1:0", {SESSION: broken})
    connection = await network.connect(listener.address, SESSION)
    await connection.send(b"go")
    with pytest.raises(ConnectionClosedError):
        await connection.receive()
    assert failures == [("rpc handler", "a bug of the service")]
    await connection.close()
    await network.close()
    await assert_nothing_left()


async def test_health_check_knows_the_services() -> None:
    network = GrpcNetwork()
    listener = await network.listen("127.0.0.1:0", {SESSION: conformance.echo})
    async with grpc.aio.insecure_channel(listener.address) as channel:
        check: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(HEALTH_CHECK)
        for service in ("", "ponor.controller.v1.SessionService"):
            answer = await check(HealthCheckRequest(service=service).SerializeToString())
            status = HealthCheckResponse.FromString(answer).status
            assert status == HealthCheckResponse.SERVING_STATUS_SERVING
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await check(HealthCheckRequest(service="unknown").SerializeToString())
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await check(b"\xff\xff")
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    await network.close()


async def test_health_check_follows_the_health_of_the_process() -> None:
    health = Health()
    network = GrpcNetwork(health=health)
    handlers = {SESSION: conformance.echo, PEER_METHOD: conformance.echo}
    listener = await network.listen("127.0.0.1:0", handlers)
    health.require_for(service_name(PEER_METHOD), lambda: "")
    async with grpc.aio.insecure_channel(listener.address) as channel:
        check: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(HEALTH_CHECK)

        async def status(service: str) -> int:
            answer = await check(HealthCheckRequest(service=service).SerializeToString())
            return HealthCheckResponse.FromString(answer).status

        not_serving = HealthCheckResponse.SERVING_STATUS_NOT_SERVING
        serving = HealthCheckResponse.SERVING_STATUS_SERVING
        assert await status("") == await status(service_name(SESSION)) == not_serving
        assert await status(service_name(PEER_METHOD)) == serving
        health.announce()
        assert await status("") == await status(service_name(SESSION)) == serving
    await network.close()


PEER = """
import asyncio, sys
from ponor_rpc.grpc_network import GrpcNetwork

async def echo(connection):
    while True:
        await connection.send(await connection.receive())

async def main():
    listener = await GrpcNetwork().listen("127.0.0.1:0", {"/test.v1.S/M": echo})
    print(listener.address, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_killed_peer_closes_the_connection() -> None:
    peer = subprocess.Popen([sys.executable, "-c", PEER], stdout=subprocess.PIPE, text=True)
    network = GrpcNetwork()
    try:
        assert peer.stdout is not None
        address = (await asyncio.to_thread(peer.stdout.readline)).strip()
        connection = await network.connect(address, "/test.v1.S/M")
        await connection.send(b"alive?")
        assert await connection.receive() == b"alive?"
        waiting = asyncio.create_task(connection.receive())
        await asyncio.sleep(0)
        peer.send_signal(signal.SIGKILL)
        with pytest.raises(ConnectionClosedError, match=address):
            await waiting
        with pytest.raises(ConnectionClosedError):
            await connection.send(b"alive?")
        await connection.close()
        again = await network.connect(address, "/test.v1.S/M")
        with pytest.raises(ConnectionClosedError, match="UNAVAILABLE"):
            await again.receive()
        await again.close()
    finally:
        peer.kill()
        peer.wait()
        assert peer.stdout is not None
        peer.stdout.close()
        await network.close()
    await assert_nothing_left()


async def test_malformed_frame_ends_only_its_own_connection() -> None:
    network = GrpcNetwork()
    listener = await network.listen("127.0.0.1:0", {SESSION: conformance.echo})
    polite = await network.connect(listener.address, SESSION)
    async with grpc.aio.insecure_channel(
        listener.address, options=[("grpc.max_send_message_length", -1)]
    ) as channel:
        call: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream(SESSION)()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call.write(b"x" * (FRAME_BYTES_MAX + 1))
            assert await call.read() is grpc.aio.EOF
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    await polite.send(b"still served")
    assert await polite.receive() == b"still served"
    await polite.close()
    await network.close()
    await assert_nothing_left()
