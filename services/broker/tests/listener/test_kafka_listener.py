"""The listener over real sockets: slow readers, half requests, hostile lengths, limits."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import uvloop
from ponor_broker.listener.kafka_listener import KafkaListener
from ponor_broker.requests.connection import Answer, ConnectionContext
from ponor_broker.requests.request_flow import AnswerBacklog
from ponor_broker.settings import BrokerSettings
from ponor_runtime.system import SystemClock
from ponor_runtime.telemetry import Telemetry

LIMITS = BrokerSettings(
    connections_max=10,
    connections_per_address_max=10,
    request_bytes_max=1 << 22,
    control_request_bytes_max=1 << 22,
    receive_bytes_max=1 << 22,
    in_flight_bytes_max=1 << 22,
    connection_idle_ms_max=600_000,
    request_stall_ms_max=600_000,
)


def on_uvloop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test on the event loop of production, because the listener shares buffers with it."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(test(*args, **kwargs))

    return run


class Echo:
    """Answers every frame with itself, `repeat` times."""

    def __init__(self) -> None:
        self.frames = 0
        self.repeat = 1

    def dispatch(self, frame: bytearray, connection: ConnectionContext, received_ns: int) -> Answer:
        self.frames += 1
        return [len(frame).to_bytes(4, "big"), frame] * self.repeat


@asynccontextmanager
async def serving(
    limits: BrokerSettings = LIMITS,
) -> AsyncIterator[tuple[KafkaListener, Echo, AnswerBacklog]]:
    echo, backlog = Echo(), AnswerBacklog(1 << 30)
    listener = await KafkaListener.bind(
        "127.0.0.1",
        0,
        limits,
        backlog=backlog,
        clock=SystemClock(),
        telemetry=Telemetry(),
        fail_stop=_no_fail_stop,
    )
    await listener.serve(echo)
    try:
        yield listener, echo, backlog
    finally:
        await listener.close()


def _no_fail_stop(what: str, error: BaseException) -> None:
    raise AssertionError(what) from error


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(90):
        while not condition():
            await asyncio.sleep(0.01)


def framed(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


@on_uvloop
async def test_requests_in_single_bytes_and_joined_are_served() -> None:
    async with serving() as (listener, echo, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        for byte in framed(b"\x00\x03hello"):
            writer.write(bytes((byte,)))
            await writer.drain()
            await asyncio.sleep(0)
        writer.write(framed(b"\x00\x03one") + framed(b"\x00\x00two") + framed(b"\x00\x03" + b"x" * 300_000))
        expected = (
            framed(b"\x00\x03hello")
            + framed(b"\x00\x03one")
            + framed(b"\x00\x00two")
            + framed(b"\x00\x03" + b"x" * 300_000)
        )
        assert await reader.readexactly(len(expected)) == expected
        assert echo.frames == 4
        writer.close()
        await until(lambda: listener.connections == 0)


@pytest.mark.parametrize("length", [b"\xff\xff\xff\xff", b"\x00\x00\x00\x00", b"\x7f\xff\xff\xff", b"GET "])
@on_uvloop
async def test_a_hostile_length_closes_only_that_connection(length: bytes) -> None:
    async with serving() as (listener, _, _):
        good_reader, good = await asyncio.open_connection("127.0.0.1", listener.port)
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(length + b"/ HTTP/1.1\r\n\r\n")
        assert await reader.read() == b""
        good.write(framed(b"\x00\x03still here"))
        assert await good_reader.readexactly(16) == framed(b"\x00\x03still here")
        for each in (good, writer):
            each.close()


@on_uvloop
async def test_good_requests_before_a_malformed_one_are_answered_and_a_large_request_must_be_a_produce() -> (
    None
):
    limits = replace(LIMITS, control_request_bytes_max=1 << 16)
    async with serving(limits) as (listener, echo, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        produce, fetch = framed(b"\x00\x00" + b"p" * (1 << 17)), framed(b"\x00\x01" + b"f" * (1 << 17))
        small = framed(b"\x00\x01small")
        writer.write(produce + small + fetch[:100])
        assert await reader.readexactly(len(produce + small)) == produce + small
        assert await reader.read() == b""
        assert echo.frames == 2
        writer.close()


@on_uvloop
async def test_small_requests_pass_while_the_receive_budget_is_full() -> None:
    limits = replace(LIMITS, receive_bytes_max=1 << 16, request_stall_ms_max=6_000)
    async with serving(limits) as (listener, echo, _):
        greedy_reader, greedy = await asyncio.open_connection("127.0.0.1", listener.port)
        greedy.write((1 << 17).to_bytes(4, "big") + b"\x00\x00only the beginning")
        await greedy.drain()
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        request = framed(b"\x00\x03" + b"x" * 300)
        writer.write(request * 50)
        assert await reader.readexactly(50 * len(request)) == request * 50
        assert echo.frames == 50
        assert await greedy_reader.read() == b""  # it stalled
        for each in (greedy, writer):
            each.close()


@on_uvloop
async def test_a_client_that_does_not_read_is_not_served_and_memory_is_bounded() -> None:
    async with serving() as (listener, echo, backlog):
        echo.repeat = 400
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port, limit=1 << 16)
        request = framed(b"\x00\x03" + b"y" * 10_000)
        for _ in range(300):
            writer.write(request)
        await until(lambda: backlog.bytes_waiting > 0)
        served = 0
        while served != echo.frames:  # the kernel's buffers grow for a while
            served = echo.frames
            await asyncio.sleep(0.3)
        assert served < 300
        assert backlog.bytes_waiting > 0, "counted as long as it is not read"
        assert backlog.bytes_waiting < 32 << 20
        total = 0
        while total < 300 * 400 * len(request):
            total += len(await reader.read(1 << 20))
        await until(lambda: backlog.bytes_waiting == 0)
        assert echo.frames == 300
        writer.close()


@on_uvloop
async def test_claims_of_half_sent_requests_are_bounded_and_freed_by_a_stall() -> None:
    limits = replace(
        LIMITS,
        request_bytes_max=1 << 20,
        control_request_bytes_max=1 << 20,
        receive_bytes_max=1 << 20,
        request_stall_ms_max=6_000,
    )
    async with serving(limits) as (listener, echo, _):
        greedy = [await asyncio.open_connection("127.0.0.1", listener.port) for _ in range(2)]
        for _, writer in greedy:
            writer.write((1 << 20).to_bytes(4, "big") + b"only the beginning")
            await writer.drain()
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(framed(b"\x00\x03patient"))
        # Everything is claimed; the claims end when their clients stall, and the patient one is served.
        assert await reader.readexactly(13) == framed(b"\x00\x03patient")
        assert echo.frames == 1
        for _, each in (*greedy, (reader, writer)):
            each.close()


@on_uvloop
async def test_idle_clients_and_too_many_clients_are_dropped() -> None:
    limits = replace(LIMITS, connections_max=2, connection_idle_ms_max=6_000)
    async with serving(limits) as (listener, _, _):
        first = await asyncio.open_connection("127.0.0.1", listener.port)
        second = await asyncio.open_connection("127.0.0.1", listener.port)
        await until(lambda: listener.connections == 2)
        third_reader, third = await asyncio.open_connection("127.0.0.1", listener.port)
        with pytest.raises(ConnectionError):
            third.write(framed(b"\x00\x03x"))
            if await third_reader.read() == b"":
                raise ConnectionResetError
        assert await first[0].read() == b""
        assert await second[0].read() == b""
        for each in (first[1], second[1], third):
            each.close()


@on_uvloop
async def test_the_error_names_a_port_in_use() -> None:
    async with serving() as (listener, _, _):
        with pytest.raises(OSError, match=f"127.0.0.1:{listener.port}"):
            await KafkaListener.bind(
                "127.0.0.1",
                listener.port,
                LIMITS,
                backlog=AnswerBacklog(1),
                clock=SystemClock(),
                telemetry=Telemetry(),
                fail_stop=_no_fail_stop,
            )


@on_uvloop
async def test_connections_are_refused_before_the_broker_serves() -> None:
    listener = await KafkaListener.bind(
        "127.0.0.1",
        0,
        LIMITS,
        backlog=AnswerBacklog(1),
        clock=SystemClock(),
        telemetry=Telemetry(),
        fail_stop=_no_fail_stop,
    )
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", listener.port)
    await listener.close()
