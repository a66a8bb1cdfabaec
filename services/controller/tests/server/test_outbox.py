"""Answers of one turn of the event loop are sent together at its end; answers that the network does
not accept wait in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ponor.common.v1 import error_pb2
from ponor.controller.v1 import session_service_pb2 as wire
from ponor_controller.server.sessions.outbox import RESULT_FRAME_BYTES, AnswerTurn, Outbox
from ponor_rpc.grpc_network import GrpcNetwork
from ponor_rpc.methods import SESSION
from ponor_runtime.network import Connection

NO_HEARTBEAT_SECONDS = 3_600.0


@asynccontextmanager
async def _outbox() -> AsyncIterator[tuple[Outbox, AnswerTurn, Connection]]:
    """A running outbox, its turn, and the node's end of the connection."""
    network = GrpcNetwork()
    made: asyncio.Future[tuple[Outbox, AnswerTurn]] = asyncio.get_running_loop().create_future()

    async def serve(connection: Connection) -> None:
        await connection.receive()
        turn = AnswerTurn()
        outbox = Outbox(connection, turn, wire.Heartbeat, NO_HEARTBEAT_SECONDS)
        made.set_result((outbox, turn))
        await outbox.run()

    listener = await network.listen("127.0.0.1:0", {SESSION: serve})
    connection = await network.connect(listener.address, SESSION)
    await connection.send(b"hello")
    outbox, turn = await made
    yield outbox, turn, connection
    outbox.refuse(error_pb2.Error())
    await connection.close()
    await network.close()


def _result(number: int, size_bytes: int = 0) -> bytes:
    padding = error_pb2.Error(message="x" * size_bytes) if size_bytes else None
    return wire.OperationResult(request_id=number, error=padding).SerializeToString()


async def _frame(connection: Connection) -> list[int]:
    response = wire.SessionResponse.FromString(await connection.receive())
    return [result.request_id for result in response.results.results]


async def test_the_answers_of_a_turn_share_a_frame() -> None:
    async with _outbox() as (outbox, _, connection):
        for number in range(1, 4):
            outbox.put(_result(number), 10)
        assert await _frame(connection) == [1, 2, 3]


async def test_the_end_of_the_turn_sends_and_counts_them() -> None:
    sent: list[tuple[int, int]] = []
    async with _outbox() as (outbox, turn, connection):
        outbox.on_sent = lambda answered, size_bytes: sent.append((answered, size_bytes))
        outbox.put(_result(1), 10)
        outbox.put(_result(2), 20)
        turn.end()
        assert sent == [(2, 30)], "no turn of the loop later"
        turn.end()
        assert await _frame(connection) == [1, 2]
        assert sent == [(2, 30)]


async def test_answers_that_the_network_did_not_accept_follow_in_order() -> None:
    async with _outbox() as (outbox, turn, connection):
        for number in range(1, 31):
            outbox.put(_result(number, RESULT_FRAME_BYTES // 2), 1)
            if number % 7 == 0:
                turn.end()
        numbers: list[int] = []
        while len(numbers) < 30:
            numbers += await _frame(connection)
        assert numbers == list(range(1, 31))


async def test_nothing_follows_the_refusal() -> None:
    async with _outbox() as (outbox, turn, connection):
        outbox.put(_result(1), 1)
        outbox.refuse(error_pb2.Error(message="over"))
        turn.end()
        response = wire.SessionResponse.FromString(await connection.receive())
        assert response.refused.message == "over"
