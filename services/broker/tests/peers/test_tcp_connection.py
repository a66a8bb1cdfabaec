"""Requests between the listeners of brokers over real sockets, and peers that break the framing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
from ponor_broker.listener.kafka_listener import KafkaListener
from ponor_broker.peers.connection_pool import PeerConnections
from ponor_broker.peers.kafka_connection import KafkaConnection
from ponor_broker.peers.request_port import RequestPort, UnansweredError
from ponor_broker.peers.tcp_connection import connect_tcp
from ponor_broker.requests.api_handler import ApiHandler, RequestContext
from ponor_broker.requests.dispatch import Dispatcher
from ponor_broker.requests.request_flow import AnswerBacklog
from ponor_broker.serving import Serving
from ponor_broker.settings import BrokerSettings
from ponor_kafka.api import ApiKey
from ponor_kafka.codec import encode
from ponor_kafka.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopic,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from ponor_runtime.network import ConnectionClosedError
from ponor_runtime.runtime import Runtime
from ponor_runtime.system import SystemClock, SystemRandomness
from ponor_runtime.telemetry import Telemetry

from services.broker.tests.listener.test_kafka_listener import LIMITS, on_uvloop

TIMEOUT_S = 30.0


class Broker:
    """A listener that answers WriteTxnMarkers, and connections to other listeners."""

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.received: list[int] = []
        self.listener: KafkaListener

    async def answer(self, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        raise AssertionError("requests to another broker use the network")

    async def write(self, request: WriteTxnMarkersRequest, _: RequestContext) -> WriteTxnMarkersResponse:
        self.received += [marker.producer_id for marker in request.markers]
        return WriteTxnMarkersResponse(
            [
                WritableTxnMarkerResult(
                    marker.producer_id,
                    [
                        WritableTxnMarkerTopicResult(
                            topic.name,
                            [
                                WritableTxnMarkerPartitionResult(index, self.node_id)
                                for index in topic.partition_indexes
                            ],
                        )
                        for topic in marker.topics
                    ],
                )
                for marker in request.markers
            ]
        )

    async def start(self) -> None:
        clock, telemetry = SystemClock(), Telemetry()
        self.listener = await KafkaListener.bind(
            "127.0.0.1",
            0,
            LIMITS,
            backlog=AnswerBacklog(1 << 30),
            clock=clock,
            telemetry=telemetry,
            fail_stop=_no_fail_stop,
        )
        dispatcher = Dispatcher(
            [ApiHandler(ApiKey.WRITE_TXN_MARKERS, 1, 2, self.write)],
            raw={},
            serving=Serving(clock, staleness_ms=lambda: 0, silence_ms=lambda: 0),
            clock=clock,
            telemetry=telemetry,
        )
        await self.listener.serve(dispatcher)

    @property
    def host(self) -> str:
        return "127.0.0.1"

    @property
    def port(self) -> int:
        return self.listener.port


class Brokers(dict[int, Broker]):
    def broker(self, node_id: int) -> Broker | None:
        return self.get(node_id)


def _no_fail_stop(what: str, error: BaseException) -> None:
    raise AssertionError(what) from error


@asynccontextmanager
async def brokers() -> AsyncIterator[tuple[Brokers, PeerConnections]]:
    running = Brokers({node_id: Broker(node_id) for node_id in (1, 2)})
    for broker in running.values():
        await broker.start()
    runtime = Runtime(SystemClock(), SystemRandomness(), None, None, Telemetry())  # type: ignore[arg-type]
    pool = PeerConnections(connect_tcp, running, runtime, client_id=str)
    try:
        yield running, pool
    finally:
        await pool.close()
        for broker in running.values():
            await broker.listener.close()


def markers(producer_ids: range) -> WriteTxnMarkersRequest:
    topics = [WritableTxnMarkerTopic("t" * 249, [0, 1])]
    return WriteTxnMarkersRequest(
        [WritableTxnMarker(producer_id, 3, True, topics, 5) for producer_id in producer_ids]
    )


async def send(pool: PeerConnections, node_id: int, producer_ids: range) -> WriteTxnMarkersResponse:
    connection = await pool.connection(node_id)
    return await connection.ask(markers(producer_ids), 1, WriteTxnMarkersResponse, timeout_s=TIMEOUT_S)


@on_uvloop
async def test_requests_reach_the_listeners_of_two_brokers() -> None:
    async with brokers() as (running, pool):
        answers = await asyncio.gather(*(send(pool, 1 + n % 2, range(n, n + 1)) for n in range(20)))
        assert running[1].received == list(range(0, 20, 2))
        assert running[2].received == list(range(1, 20, 2))
        codes = [answer.markers[0].topics[0].partitions[0].error_code for answer in answers]
        assert codes == [1, 2] * 10


@on_uvloop
async def test_requests_larger_than_any_socket_buffer_arrive_whole() -> None:
    async with brokers() as (running, pool):
        answer = await send(pool, 1, range(10_000))  # 2.6 MB
        assert [row.producer_id for row in answer.markers] == list(range(10_000))
        assert running[1].received == list(range(10_000))


@on_uvloop
async def test_a_request_above_the_limit_of_a_frame_fails_alone() -> None:
    async with brokers() as (running, pool):
        port = RequestPort(pool, running[1].answer, node_id=2, version=1, answer=WriteTxnMarkersResponse)
        connection = await pool.connection(1)
        with pytest.raises(UnansweredError, match="a frame of 5560016 bytes"):
            await port.ask(1, partial(markers, range(20_000)))
        await send(pool, 1, range(1))
        assert await pool.connection(1) is connection
        assert running[1].received == [0]


@on_uvloop
async def test_a_listener_that_closes_fails_the_request() -> None:
    async with brokers() as (running, pool):
        await send(pool, 1, range(1))
        connection = await pool.connection(1)
        await running[1].listener.close()
        with pytest.raises(ConnectionClosedError):
            await connection.ask(markers(range(1)), 1, WriteTxnMarkersResponse, timeout_s=TIMEOUT_S)
        await connection.wait_closed()


@on_uvloop
async def test_an_address_without_a_listener_is_refused() -> None:
    broker = Broker(1)
    await broker.start()
    port = broker.port
    await broker.listener.close()
    with pytest.raises(ConnectionClosedError, match="cannot be reached"):
        await connect_tcp(f"127.0.0.1:{port}")


@pytest.mark.parametrize("claim", [1 << 30, (1 << 32) - 1])
def test_an_answer_that_claims_too_many_bytes_ends_the_connection(claim: int) -> None:
    @on_uvloop
    async def story() -> None:
        async def claims(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(claim.to_bytes(4, "big"))
            await writer.drain()

        server = await asyncio.start_server(claims, "127.0.0.1", 0)
        wire = await connect_tcp(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
        connection = KafkaConnection(wire, "here")
        with pytest.raises(ConnectionClosedError, match="sent a frame length"):
            await connection.ask(markers(range(1)), 1, WriteTxnMarkersResponse, timeout_s=TIMEOUT_S)
        await connection.close()
        server.close()

    story()


@on_uvloop
async def test_what_a_peer_did_not_read_is_dropped_when_the_connection_is_given_up() -> None:
    may_read, total, is_over = asyncio.Event(), 0, asyncio.Event()

    async def reads_late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal total
        await may_read.wait()
        try:
            while part := await reader.read(1 << 20):
                total += len(part)
        except ConnectionResetError:
            pass
        finally:
            writer.close()
            is_over.set()

    server = await asyncio.start_server(reads_late, "127.0.0.1", 0)
    wire = await connect_tcp(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
    connection = KafkaConnection(wire, "here")
    request = markers(range(10_000))
    with pytest.raises(ConnectionClosedError, match="no answer"):
        await connection.ask(request, 1, WriteTxnMarkersResponse, timeout_s=0.5)
    may_read.set()
    await is_over.wait()
    await connection.close()
    server.close()
    assert total < len(encode(request, 1))


def test_the_largest_marker_request_fits_every_limit() -> None:
    """1,000 partitions with the longest names, each of another producer."""
    request = WriteTxnMarkersRequest(
        [WritableTxnMarker(n, 3, True, [WritableTxnMarkerTopic("t" * 249, [n])], 5) for n in range(1_000)]
    )
    assert len(encode(request, 1)) < BrokerSettings().control_request_bytes_max // 10
