"""The order of one client's requests, without sockets."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence

from ponor_broker.requests.connection import (
    PIPELINED_PRODUCES_MAX,
    QUEUED_OVERHEAD_BYTES,
    QUEUED_REQUESTS_MAX,
    Answer,
    ClientConnection,
    CloseConnectionError,
    ConnectionContext,
    PendingAnswer,
    Response,
)
from ponor_broker.requests.request_flow import (
    LARGE_CONTROL_BYTES,
    QUEUED_STARTS_PER_TURN_MAX,
    STARTS_PER_CHECK,
    RequestFlow,
)
from ponor_broker.requests.running_requests import RequestsUnderWay
from ponor_runtime.budgets import ByteBudget
from ponor_runtime.disk import Buffer
from ponor_runtime.system import SystemClock

from services.broker.tests.partition_rig import SteppedClock
from services.broker.tests.serving_kit import Permission

PRODUCE = b"\x00\x00"
FETCH = b"\x00\x01"
OFFSET_COMMIT = b"\x00\x08"
CREATE_TOPICS = b"\x00\x13"


def _refuse_to_begin_again() -> Response:
    raise AssertionError("permission to answer is never withdrawn here")


class Broker:
    """Starts Produces as pending answers and other requests as running ones; the test completes both."""

    def __init__(self) -> None:
        self.started: list[bytes] = []
        self.pending: dict[bytes, PendingAnswer] = {}
        self.work: dict[bytes, asyncio.Future[Response]] = {}
        self._under_way = RequestsUnderWay(Permission(SystemClock()).serving, SystemClock())

    def dispatch(self, frame: bytearray, connection: ConnectionContext, received_ns: int) -> Answer:
        name = bytes(frame[2:])
        self.started.append(name)
        if name == b"bad":
            raise CloseConnectionError("no")
        if name == b"now":
            return [b"now"]
        if frame.startswith(PRODUCE):
            self.pending[name] = PendingAnswer()
            return self.pending[name]
        work = self.work[name] = asyncio.get_running_loop().create_future()
        return self._under_way.add(work, self._under_way.serving.epoch, _refuse_to_begin_again)


class Wire:
    """Frames and flow control that the client observes."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.writes = 0
        self.reading = True
        self.ended: list[object] = []

    def send(self, buffers: Sequence[Buffer]) -> None:
        self.sent.extend(map(bytes, buffers))
        self.writes += 1

    def is_reading(self) -> bool:
        return self.reading

    def want_reading(self, *, wanted: bool) -> None:
        self.reading = wanted

    def end(self, reason: str | BaseException) -> None:
        self.ended.append(reason)


def connect(budget_bytes: int = 1 << 20) -> tuple[Broker, Wire, ClientConnection]:
    broker, wire = Broker(), Wire()
    flow = RequestFlow(
        SystemClock(),
        in_flight=ByteBudget("in flight", budget_bytes),
        waiting=ByteBudget("waiting", budget_bytes),
    )
    return broker, wire, ClientConnection(broker, wire, ConnectionContext("peer"), flow)


def receive(connection: ClientConnection, *frames: bytes) -> None:
    connection.frames_received([bytearray(frame) for frame in frames])


async def rest(connection: ClientConnection) -> None:
    """Wait until all requests are answered."""
    async with asyncio.timeout(30):
        while connection.is_busy:
            await asyncio.sleep(0)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_produces_overlap_and_are_answered_in_order() -> None:
    broker, wire, connection = connect()
    for name in (b"a", b"b", b"c"):
        receive(connection, PRODUCE + name)
    assert broker.started == [b"a", b"b", b"c"]
    broker.pending[b"b"].answer([b"B"])
    broker.pending[b"c"].answer(None)  # acks=0: no answer
    await settle()
    assert wire.sent == []
    broker.pending[b"a"].answer([b"A"])
    await settle()
    assert wire.sent == [b"A", b"B"]
    assert not connection.is_busy


async def test_other_requests_wait_for_earlier_ones() -> None:
    broker, wire, connection = connect()
    for api, name in ((PRODUCE, b"p1"), (FETCH, b"f"), (PRODUCE, b"p2")):
        receive(connection, api + name)
    assert broker.started == [b"p1"]
    broker.pending[b"p1"].answer([b"1"])
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
        receive(connection, FETCH + b"%d" % number)
    assert broker.started == []
    assert not wire.is_reading()
    connection.set_writable(writable=True)
    await settle()
    assert broker.started == [b"0"]


async def test_requests_wait_for_the_budget_and_release_it() -> None:
    broker, wire, first = connect(budget_bytes=10)
    second = ClientConnection(broker, wire, ConnectionContext("other"), first._flow)
    receive(first, PRODUCE + b"12345678")
    receive(second, PRODUCE + b"87654321")
    await settle()
    assert broker.started == [b"12345678"]
    broker.pending[b"12345678"].answer([b"x"])
    await settle()
    assert broker.started == [b"12345678", b"87654321"]
    second.closed()
    await settle()
    assert first._flow.in_flight.held_bytes == first._flow.waiting.held_bytes == 0


async def test_slow_requests_of_one_read_start_in_several_turns() -> None:
    """64 small Produces that decompress to 60 MiB each stopped the event loop for seven seconds."""

    class SlowBroker(Broker):
        def dispatch(self, frame: bytearray, connection: ConnectionContext, received_ns: int) -> Answer:
            clock.now_ms += 30
            return super().dispatch(frame, connection, received_ns)

    clock = SteppedClock()
    budgets = [ByteBudget("bytes", 1 << 20) for _ in range(2)]
    flow = RequestFlow(clock, in_flight=budgets[0], waiting=budgets[1])
    broker, wire = SlowBroker(), Wire()
    connection = ClientConnection(broker, wire, ConnectionContext("peer"), flow)
    receive(connection, *(PRODUCE + b"%d" % number for number in range(PIPELINED_PRODUCES_MAX)))
    assert len(broker.started) == STARTS_PER_CHECK
    await asyncio.sleep(0)
    assert len(broker.started) == 2 * STARTS_PER_CHECK
    async with asyncio.timeout(30):
        while len(broker.started) < PIPELINED_PRODUCES_MAX:
            await asyncio.sleep(0)
    assert broker.started == [b"%d" % number for number in range(PIPELINED_PRODUCES_MAX)]
    connection.closed()
    assert [budget.held_bytes for budget in budgets] == [0, 0]


async def test_slow_requests_of_many_connections_start_in_several_turns() -> None:
    """Each of 80 connections sends one request whose start takes 60 ms, in the same turn."""

    class SlowBroker(Broker):
        def dispatch(self, frame: bytearray, connection: ConnectionContext, received_ns: int) -> Answer:
            clock.now_ms += 60
            return super().dispatch(frame, connection, received_ns)

    clock = SteppedClock()
    budgets = [ByteBudget("bytes", 1 << 20) for _ in range(2)]
    flow = RequestFlow(clock, in_flight=budgets[0], waiting=budgets[1])
    broker = SlowBroker()
    connections = [ClientConnection(broker, Wire(), ConnectionContext(f"{n}"), flow) for n in range(80)]
    for number, connection in enumerate(connections):
        receive(connection, PRODUCE + b"%d" % number)
    assert len(broker.started) == 1
    for turn in range(1, 80):
        await asyncio.sleep(0)
        assert turn <= len(broker.started) <= turn + 1
    assert sorted(map(int, broker.started)) == list(range(80))
    for connection in connections:
        connection.closed()
    assert [budget.held_bytes for budget in budgets] == [0, 0]


async def test_reads_that_are_each_within_the_bound_share_it() -> None:
    """Each of 80 connections sends one request whose start takes 40 ms: the turn took 3.2 s."""

    class SlowBroker(Broker):
        def dispatch(self, frame: bytearray, connection: ConnectionContext, received_ns: int) -> Answer:
            clock.now_ms += 40
            return super().dispatch(frame, connection, received_ns)

    clock = SteppedClock()
    budgets = [ByteBudget("bytes", 1 << 20) for _ in range(2)]
    flow = RequestFlow(clock, in_flight=budgets[0], waiting=budgets[1])
    broker = SlowBroker()
    connections = [ClientConnection(broker, Wire(), ConnectionContext(f"{n}"), flow) for n in range(80)]
    for number, connection in enumerate(connections):
        receive(connection, PRODUCE + b"%d" % number)
    assert len(broker.started) == 2
    for connection in connections:
        connection.closed()


async def test_large_requests_that_wait_leave_room_for_those_of_other_clients() -> None:
    """A client chooses how long a Fetch waits."""
    broker, wire, first = connect(budget_bytes=4 * LARGE_CONTROL_BYTES)
    flow, large = first._flow, bytes(LARGE_CONTROL_BYTES)
    clients = [first, *(ClientConnection(broker, wire, ConnectionContext("c"), flow) for _ in range(6))]
    for number, client in enumerate(clients[:4]):
        receive(client, FETCH + b"%d" % number + large[:-1])
    receive(clients[4], FETCH + b"small")
    receive(clients[5], PRODUCE + b"produce" + large)
    assert [name.rstrip(b"\0") for name in broker.started] == [b"0", b"small", b"produce"]
    broker.work[b"0" + large[:-1]].set_result([b"answered"])
    await settle()
    assert broker.started[-1] == b"1" + large[:-1]
    clients[1].closed()  # while it runs
    clients[3].closed()  # while it waits
    await settle()
    assert broker.started[-1] == b"2" + large[:-1]
    for client in clients:
        client.closed()
    await settle()
    assert flow.in_flight.held_bytes == flow.large_quick.held_bytes == flow.waiting.held_bytes == 0


async def test_slow_requests_do_not_delay_quick_ones() -> None:
    """5,000 topics of one CreateTopics took 9 s; one of 4 MiB may name 350,000. 32 such requests stopped all
    large offset commits and fetches for hours.
    """
    broker, wire, first = connect(budget_bytes=16 * LARGE_CONTROL_BYTES)
    flow, large = first._flow, bytes(2 * LARGE_CONTROL_BYTES)
    clients = [first, *(ClientConnection(broker, wire, ConnectionContext("c"), flow) for _ in range(3))]
    receive(clients[0], CREATE_TOPICS + b"1" + large)
    receive(clients[1], CREATE_TOPICS + b"2" + large)
    receive(clients[2], OFFSET_COMMIT + b"3" + large)
    await settle()
    assert [name.rstrip(b"\0") for name in broker.started] == [b"1", b"3"]
    assert flow.large_slow.held_bytes == flow.large_quick.held_bytes
    for client in clients:
        client.closed()
    await settle()
    assert flow.in_flight.held_bytes == flow.large_quick.held_bytes == flow.large_slow.held_bytes == 0


async def test_a_refused_request_closes_the_connection_and_drops_queued_ones() -> None:
    broker, wire, connection = connect()
    receive(connection, PRODUCE + b"a")
    receive(connection, PRODUCE + b"bad")
    receive(connection, PRODUCE + b"c")
    await settle()
    assert wire.ended == ["no"]
    assert broker.started == [b"a", b"bad"]
    assert connection._flow.in_flight.held_bytes == connection._flow.waiting.held_bytes == 0
    broker.pending[b"a"].answer([b"too late"])  # the append itself goes on
    await settle()
    assert wire.sent == []


async def test_a_disconnect_cancels_running_requests() -> None:
    broker, wire, connection = connect()
    receive(connection, FETCH + b"f", PRODUCE + b"p")
    connection.closed()
    await settle()
    assert broker.work[b"f"].cancelled()
    assert broker.started == [b"f"]
    assert (wire.sent, wire.ended) == ([], [])
    assert connection._flow.in_flight.held_bytes == connection._flow.waiting.held_bytes == 0


async def test_answers_of_one_turn_are_sent_in_one_write_per_connection() -> None:
    broker, wire, first = connect()
    other_wire = Wire()
    second = ClientConnection(broker, other_wire, ConnectionContext("other"), first._flow)
    receive(first, PRODUCE + b"1", PRODUCE + b"2", PRODUCE + b"3")
    receive(second, PRODUCE + b"4", PRODUCE + b"5")
    for name in (b"2", b"5", b"4", b"1"):  # one group commit; whose callback comes first does not matter
        broker.pending[name].answer([name])
    assert wire.sent == other_wire.sent == []
    await settle()
    assert (wire.sent, wire.writes) == ([b"1", b"2"], 1)
    assert (other_wire.sent, other_wire.writes) == ([b"4", b"5"], 1)
    broker.pending[b"3"].answer([b"3"])
    await settle()
    assert wire.sent == [b"1", b"2", b"3"]
    assert first._flow.in_flight.held_bytes == 0


async def test_an_immediate_answer_is_sent_after_earlier_ones() -> None:
    broker, wire, connection = connect()
    receive(connection, PRODUCE + b"slow", PRODUCE + b"now", PRODUCE + b"later")
    assert wire.sent == []
    broker.pending[b"slow"].answer([b"slow"])
    await settle()
    assert wire.sent == [b"slow", b"now"]


async def test_a_malformed_request_closes_the_connection_after_the_requests_before_it() -> None:
    broker, wire, connection = connect()
    receive(connection, PRODUCE + b"good", PRODUCE + b"bad", PRODUCE + b"never")
    assert broker.started == [b"good", b"bad"]
    assert wire.ended == ["no"]
    receive(connection, PRODUCE + b"never")
    assert broker.started == [b"good", b"bad"]


async def test_a_failed_request_closes_the_connection_with_its_error() -> None:
    broker, wire, connection = connect()
    receive(connection, FETCH + b"f", FETCH + b"g")
    error = AssertionError("a bug")
    broker.work[b"f"].set_exception(error)
    await settle()
    assert wire.ended == [error]
    assert broker.started == [b"f"]
    assert connection._flow.in_flight.held_bytes == connection._flow.waiting.held_bytes == 0


async def test_queued_requests_are_charged_and_pause_reading_at_the_bound() -> None:
    broker, wire, connection = connect()
    receive(connection, FETCH + b"0")
    seen: list[bool] = []
    for number in range(1, QUEUED_REQUESTS_MAX + 1):
        seen.append(wire.is_reading())
        receive(connection, FETCH + b"%d" % number)
    assert all(seen)
    assert not wire.is_reading()
    assert connection._flow.waiting.held_bytes == sum(
        len(b"..%d" % n) + QUEUED_OVERHEAD_BYTES for n in range(1, QUEUED_REQUESTS_MAX + 1)
    )
    for number in range(QUEUED_REQUESTS_MAX + 1):
        broker.work[b"%d" % number].set_result([b"%d" % number])
        await settle()
    assert wire.is_reading()
    assert wire.sent == [b"%d" % number for number in range(QUEUED_REQUESTS_MAX + 1)]
    assert connection._flow.waiting.held_bytes == 0


async def test_one_queued_request_pauses_reading_while_the_budget_is_full() -> None:
    broker, wire, connection = connect(budget_bytes=100)
    receive(connection, FETCH + b"f")
    connection._flow.waiting.charge(100)  # by others
    receive(connection, FETCH + b"g")
    assert not wire.is_reading()
    connection._flow.waiting.release(100)
    broker.work[b"f"].set_result(None)
    await settle()
    assert wire.is_reading()
    assert broker.started == [b"f", b"g"]


async def test_immediate_answers_do_not_recurse() -> None:
    _, wire, connection = connect()
    connection.set_writable(writable=False)
    for _ in range(5000):
        receive(connection, FETCH + b"now")
    connection.set_writable(writable=True)
    await rest(connection)
    assert len(wire.sent) == 5000


async def test_requests_beyond_the_turns_bound_start_in_later_turns() -> None:
    broker, wire, connection = connect()
    frames = 3 * PIPELINED_PRODUCES_MAX
    receive(connection, *[PRODUCE + b"now"] * frames)
    assert len(wire.sent) == PIPELINED_PRODUCES_MAX
    await rest(connection)
    assert len(broker.started) == len(wire.sent) == frames


async def test_single_requests_do_not_wait_for_pipelined_requests_of_others() -> None:
    broker, _, first = connect()
    crowd = [ClientConnection(broker, Wire(), ConnectionContext("crowd"), first._flow) for _ in range(200)]
    for each in crowd:
        each.set_writable(writable=False)
        receive(each, *[FETCH + b"now"] * 50)
        each.set_writable(writable=True)
    newcomer_wire = Wire()
    newcomer = ClientConnection(broker, newcomer_wire, ConnectionContext("new"), first._flow)
    started = []
    for turn in range(10):
        await asyncio.sleep(0)
        receive(newcomer, FETCH + b"now")
        assert len(newcomer_wire.sent) == turn + 1
        started.append(len(broker.started))
    most = max(after - before for before, after in itertools.pairwise(started))
    assert most <= QUEUED_STARTS_PER_TURN_MAX + 1
    assert started[-1] < 200 * 50
    for each in crowd:
        await rest(each)
    assert len(broker.started) == 200 * 50 + 10
