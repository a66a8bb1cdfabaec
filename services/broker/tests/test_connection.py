"""The order of one client's requests, without sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ponor_broker.connection import ClientConnection, CloseConnectionError, ConnectionContext, Response
from ponor_runtime.budgets import ByteBudget
from ponor_runtime.disk import Buffer

PRODUCE = b"\x00\x00"
FETCH = b"\x00\x01"


class Broker:
    """Starts every request as a future that the test resolves."""

    def __init__(self) -> None:
        self.started: list[bytes] = []
        self.work: dict[bytes, asyncio.Future[Response]] = {}

    def dispatch(
        self, frame: bytearray, connection: ConnectionContext
    ) -> Response | asyncio.Future[Response]:
        name = bytes(frame[2:])
        self.started.append(name)
        if name == b"bad":
            raise CloseConnectionError("no")
        if name == b"now":
            return [b"now"]
        self.work[name] = asyncio.get_running_loop().create_future()
        return self.work[name]


class Wire:
    """What the client sees."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.reading = True
        self.ended: list[object] = []

    def send(self, buffers: Sequence[Buffer]) -> None:
        self.sent.append(b"".join(buffers))

    def want_reading(self, *, wanted: bool) -> None:
        self.reading = wanted

    def end(self, reason: str | BaseException) -> None:
        self.ended.append(reason)


def connect(budget_bytes: int = 1 << 20) -> tuple[Broker, Wire, ClientConnection]:
    broker, wire = Broker(), Wire()
    budget = ByteBudget("in flight", budget_bytes)
    return broker, wire, ClientConnection(broker, wire, ConnectionContext("peer"), budget)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_produces_overlap_and_are_answered_in_order() -> None:
    broker, wire, connection = connect()
    for name in (b"a", b"b", b"c"):
        connection.frame_received(bytearray(PRODUCE + name))
    assert broker.started == [b"a", b"b", b"c"]
    broker.work[b"b"].set_result([b"B"])
    broker.work[b"c"].set_result(None)  # acks=0: no answer
    await settle()
    assert wire.sent == []
    broker.work[b"a"].set_result([b"A"])
    await settle()
    assert wire.sent == [b"A", b"B"]
    assert not connection.is_busy


async def test_everything_else_waits_for_what_was_sent_before() -> None:
    broker, wire, connection = connect()
    for api, name in ((PRODUCE, b"p1"), (FETCH, b"f"), (PRODUCE, b"p2")):
        connection.frame_received(bytearray(api + name))
    assert broker.started == [b"p1"]
    broker.work[b"p1"].set_result([b"1"])
    await settle()
    assert broker.started == [b"p1", b"f"]
    broker.work[b"f"].set_result([b"2"])
    await settle()
    assert broker.started == [b"p1", b"f", b"p2"]
    assert wire.sent == [b"1", b"2"]


async def test_a_client_that_does_not_read_gets_nothing_new_started() -> None:
    broker, wire, connection = connect()
    connection.set_writable(writable=False)
    for number in range(40):
        connection.frame_received(bytearray(FETCH + b"%d" % number))
    assert broker.started == []
    assert not wire.reading
    connection.set_writable(writable=True)
    assert broker.started == [b"0"]


async def test_requests_wait_for_the_budget_and_release_it() -> None:
    broker, wire, first = connect(budget_bytes=10)
    second = ClientConnection(broker, wire, ConnectionContext("other"), first._budget)
    first.frame_received(bytearray(PRODUCE + b"12345678"))
    second.frame_received(bytearray(PRODUCE + b"87654321"))
    await settle()
    assert broker.started == [b"12345678"]
    broker.work[b"12345678"].set_result([b"x"])
    await settle()
    assert broker.started == [b"12345678", b"87654321"]
    second.closed()
    await settle()
    assert first._budget.held_bytes == 0


async def test_a_refused_request_ends_the_connection_and_what_waits_is_dropped() -> None:
    broker, wire, connection = connect()
    connection.frame_received(bytearray(PRODUCE + b"a"))
    connection.frame_received(bytearray(PRODUCE + b"bad"))
    connection.frame_received(bytearray(PRODUCE + b"c"))
    await settle()
    assert wire.ended == ["no"]
    assert broker.started == [b"a", b"bad"]
    assert broker.work[b"a"].cancelled()
    assert connection._budget.held_bytes == 0


async def test_answers_given_at_once_do_not_recurse() -> None:
    _, wire, connection = connect()
    connection.set_writable(writable=False)
    for _ in range(5000):
        connection.frame_received(bytearray(FETCH + b"now"))
    connection.set_writable(writable=True)
    assert len(wire.sent) == 5000
