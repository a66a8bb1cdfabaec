"""One connection: order, pipelining, timeouts, broken and hostile peers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from ponor_broker.peers.kafka_connection import KafkaConnection
from ponor_kafka.errors import KafkaWireError
from ponor_kafka.message import Message
from ponor_kafka.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ponor_runtime.network import ConnectionClosedError
from ponor_runtime.runtime import Runtime
from ponor_simulation.simulation import Simulation

from services.broker.tests.peers.peer_kit import KAFKA, PORT, Answer, listening

TIMEOUT_S = 5.0


class Peer:
    """Counts requests, answers with their number, and holds answers back while `gate` is closed."""

    def __init__(self) -> None:
        self.requests = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def answer(self, *_: object) -> Message:
        self.requests += 1
        number = self.requests
        await self.gate.wait()
        return ApiVersionsResponse(number)


def converse(
    story: Callable[[KafkaConnection, Peer], Awaitable[None]],
    *,
    in_flight_max: int = 100,
    answer: Answer | None = None,
) -> None:
    simulation = Simulation(1)
    peer = Peer()
    simulation.process("peer", listening("peer", answer or peer.answer)).start()
    over = asyncio.Event()

    async def main(runtime: Runtime) -> None:
        wire = await runtime.network.connect(f"peer:{PORT}", KAFKA)
        connection = KafkaConnection(wire, "here", in_flight_max=in_flight_max)
        try:
            await story(connection, peer)
        finally:
            await connection.close()
            over.set()

    async def scenario() -> None:
        await asyncio.sleep(0.1)
        here = simulation.process("here", main)
        here.start()
        await over.wait()
        assert here.failure is None, here.failure
        assert not simulation.network.forgotten()

    simulation.run(scenario())


async def ask(connection: KafkaConnection, timeout_s: float = TIMEOUT_S) -> int:
    answer = await connection.ask(ApiVersionsRequest(), 3, ApiVersionsResponse, timeout_s=timeout_s)
    return answer.error_code


def test_pipelined_requests_get_their_own_answers() -> None:
    async def story(connection: KafkaConnection, peer: Peer) -> None:
        arrived: list[int] = []
        asking = [
            connection.ask(
                ApiVersionsRequest(),
                3,
                ApiVersionsResponse,
                timeout_s=TIMEOUT_S,
                arrived=lambda answer: arrived.append(answer.error_code),
            )
            for _ in range(50)
        ]
        answers = [answer.error_code for answer in await asyncio.gather(*asking)]
        assert arrived == list(range(1, 51))
        assert sorted(answers) == arrived
        assert connection.under_way == 0

    converse(story)


def test_no_more_requests_are_in_flight_than_the_bound() -> None:
    async def story(connection: KafkaConnection, peer: Peer) -> None:
        peer.gate.clear()
        asking = [asyncio.ensure_future(ask(connection)) for _ in range(10)]
        await asyncio.sleep(1)
        assert connection.under_way == 3
        peer.gate.set()
        assert sorted(await asyncio.gather(*asking)) == list(range(1, 11))

    converse(story, in_flight_max=3)


def test_a_timeout_closes_the_connection_and_fails_all_requests() -> None:
    async def story(connection: KafkaConnection, peer: Peer) -> None:
        peer.gate.clear()
        asking = [ask(connection, timeout_s=1.0), *(ask(connection, timeout_s=100.0) for _ in range(4))]
        outcomes = await asyncio.gather(*asking, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [ConnectionClosedError] * 5
        assert connection.is_closed
        with pytest.raises(ConnectionClosedError):
            await ask(connection)

    converse(story, in_flight_max=3)


def test_a_cancelled_request_does_not_shift_later_answers() -> None:
    async def story(connection: KafkaConnection, peer: Peer) -> None:
        peer.gate.clear()
        first = asyncio.ensure_future(ask(connection))
        await asyncio.sleep(1)
        second = asyncio.ensure_future(ask(connection))
        await asyncio.sleep(1)
        first.cancel()
        peer.gate.set()
        assert await second == 2

    converse(story)


def test_a_wrong_answer_fails_the_requests_and_closes_the_connection() -> None:
    async def nonsense(*_: object) -> None:
        return None

    async def story(connection: KafkaConnection, peer: Peer) -> None:
        outcomes = await asyncio.gather(ask(connection), ask(connection), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [KafkaWireError] * 2
        assert connection.is_closed

    converse(story, answer=nonsense)


def test_an_error_of_the_caller_reaches_the_caller_alone() -> None:
    def refuse(_: ApiVersionsResponse) -> None:
        raise AssertionError("not what the scenario expects")

    async def story(connection: KafkaConnection, peer: Peer) -> None:
        with pytest.raises(AssertionError, match="the scenario"):
            await connection.ask(
                ApiVersionsRequest(), 3, ApiVersionsResponse, timeout_s=TIMEOUT_S, arrived=refuse
            )
        assert await ask(connection) == 2

    converse(story)
