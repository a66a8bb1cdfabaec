"""The Kafka listener: sockets, their buffers and their limits.

Bytes become frames in `frame_receiver`, and frames become ordered requests in `connection`. All connections
of an event loop receive into one shared buffer: the loop calls `get_buffer`, receives, and calls
`buffer_updated` without a pause in between. An idle connection therefore holds only a few kilobytes.

`BrokerSettings` bounds connections, bytes of frames that are arriving or waiting, bytes of requests in
process, bytes of answers that a client has not read, idle time, and time without progress within a request.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol, TypeAlias, cast

from ponor_runtime.budgets import BudgetExceededError, ByteBudget
from ponor_runtime.clock import Clock
from ponor_runtime.disk import Buffer
from ponor_runtime.runtime import Runtime
from ponor_runtime.tasks import FailStop
from ponor_runtime.telemetry import Telemetry

from ponor_broker.listener.connection_limits import ConnectionCounts, RefusalLog
from ponor_broker.listener.frame_receiver import FrameReceiver
from ponor_broker.options import BrokerOptions
from ponor_broker.requests.connection import ClientConnection, ConnectionContext, RequestDispatcher
from ponor_broker.requests.request_flow import AnswerBacklog, RequestFlow
from ponor_broker.settings import BrokerSettings

LOG: Final = logging.getLogger("ponor.broker.listener")

SCRATCH_BYTES: Final = 256 << 10
"""Size of the shared read buffer: one read gets up to four batches of 64 KiB, and the buffer fits into a
core's second-level cache."""
SCRATCH_BYTES_WHEN_FULL: Final = 512
"""Size of a read while the receive budget is used up: its bytes exceed the budget, so it must be small."""
LARGE_FRAME_BYTES: Final = 4 << 20
"""Larger frames share half of the receive budget, so that they cannot block small ones."""
SWEEP_S: Final = 2.0
WRITE_HIGH_BYTES: Final = 0
"""Every byte that the socket does not accept immediately counts as unread against `fetch_answers_bytes_max`.
While there are such bytes, no request of the connection starts."""
JOINED_BYTES_MAX: Final = 16 << 10
"""Answers up to this total size are joined: one buffer costs the event loop less than several, and
a small copy is cheap."""


class _Shared:
    """State that all connections of one listener share."""

    def __init__(
        self,
        settings: BrokerSettings,
        backlog: AnswerBacklog,
        clock: Clock,
        telemetry: Telemetry,
        fail_stop: FailStop,
    ) -> None:
        self.dispatcher: RequestDispatcher | None = None
        self.backlog = backlog
        self.settings = settings
        self.clock = clock
        self.fail_stop = fail_stop
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.connections: dict[ClientProtocol, None] = {}
        self.counts = ConnectionCounts(
            connections_max=settings.connections_max, per_address_max=settings.connections_per_address_max
        )
        self.refusals = RefusalLog()
        waiters_max = settings.connections_max
        self.receive = ByteBudget("receive bytes", settings.receive_bytes_max, waiters_max=waiters_max)
        self.receive_large = ByteBudget(
            "receive bytes of large requests",
            max(settings.receive_bytes_max // 2, 1),
            waiters_max=waiters_max,
        )
        in_flight = ByteBudget("in-flight bytes", settings.in_flight_bytes_max, waiters_max=waiters_max)
        self.flow = RequestFlow(clock, in_flight=in_flight, waiting=self.receive)
        self.bytes_in = telemetry.counter("ponor_kafka_bytes_total", direction="in")
        self.bytes_out = telemetry.counter("ponor_kafka_bytes_total", direction="out")
        self.refused: Callable[[str], None] = lambda reason: telemetry.counter(
            "ponor_kafka_connections_refused_total", reason=reason
        ).add()
        telemetry.gauge("ponor_kafka_connections", lambda: len(self.connections))
        telemetry.gauge("ponor_kafka_inflight_bytes", lambda: in_flight.held_bytes)
        telemetry.gauge(
            "ponor_kafka_receiving_bytes", lambda: self.receive.held_bytes + self.receive_large.held_bytes
        )
        telemetry.gauge("ponor_fetch_answers_bytes", lambda: backlog.bytes_waiting)


class ClientProtocol(asyncio.BufferedProtocol):
    """One client's socket."""

    __slots__ = (
        "_admission",
        "_connection",
        "_context",
        "_held",
        "_last_progress_ns",
        "_paused",
        "_progressed",
        "_receiver",
        "_shared",
        "_transport",
        "_unread_bytes",
        "_wants_reading",
    )

    def __init__(self, shared: _Shared) -> None:
        self._shared = shared
        self._transport: asyncio.Transport | None = None
        self._context = ConnectionContext(peer="?")
        assert shared.dispatcher is not None, "a client connected before `serve`"
        self._connection = ClientConnection(shared.dispatcher, self, self._context, shared.flow)
        self._receiver = FrameReceiver(
            self._admit_frame,
            frame_bytes_max=shared.settings.request_bytes_max,
            control_bytes_max=shared.settings.control_request_bytes_max,
        )
        self._held: tuple[ByteBudget, int] | None = None  # charge for the frame that is arriving
        self._admission: asyncio.Task[None] | None = None
        self._wants_reading = True
        self._paused = False
        # this connection's share of the backlog; 0 while the client reads fast enough
        self._unread_bytes = 0
        self._progressed = True
        """Whether bytes were received or sent since the last sweep. Only the sweep reads the clock: a clock
        call per read and answer cost 1 µs per request."""
        self._last_progress_ns = 0

    # asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        self._context.peer = (
            f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) and len(peer) >= 2 else str(peer)
        )
        counts = self._shared.counts
        refusal = counts.refusal(self._context.host)
        if refusal is not None:
            self._refuse(refusal, f"{counts.total} clients are connected")
            return
        counts.add(self._context.host)
        self._shared.connections[self] = None
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint
        if self._held is not None:
            own = self._receiver.own_buffer()
            assert own is not None, "a charged frame has no buffer of its own"
            return own
        shared = self._shared
        return shared.scratch[:SCRATCH_BYTES_WHEN_FULL] if shared.receive.is_full else shared.scratch

    def buffer_updated(self, nbytes: int) -> None:
        shared, receiver = self._shared, self._receiver
        shared.bytes_in.value += nbytes
        self._progressed = True
        if self._held is None:
            frames = receiver.received(shared.scratch, nbytes)
        else:
            frames = receiver.received_own(nbytes)
            if frames:
                self._release_claim()
        if frames and self._transport is not None and not self._transport.is_closing():
            self._connection.frames_received(frames)
        if receiver.failure is not None:
            self._refuse("malformed", str(receiver.failure))

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._note_unread(self._buffered_bytes())
        self._connection.set_writable(writable=False)

    def resume_writing(self) -> None:
        self._progressed = True
        self._note_unread(0)
        self._connection.set_writable(writable=True)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        if self in self._shared.connections:
            del self._shared.connections[self]
            self._shared.counts.remove(self._context.host)
        if self._admission is not None:
            self._admission.cancel()
        self._release_claim()
        self._note_unread(0)
        self._connection.closed()
        self._transport = None

    # Frames

    def _budget_of(self, length: int) -> ByteBudget:
        return self._shared.receive_large if length > LARGE_FRAME_BYTES else self._shared.receive

    def _admit_frame(self, length: int) -> bool:
        budget = self._budget_of(length)
        if budget.try_acquire(length):
            self._held = (budget, length)
            return True
        self._admission = asyncio.get_running_loop().create_task(self._wait_for_room(budget, length))
        self._apply_reading()
        return False

    async def _wait_for_room(self, budget: ByteBudget, length: int) -> None:
        try:
            await budget.acquire(length)
        except BudgetExceededError as error:
            self._refuse("overload", str(error))
            return
        self._held = (budget, length)
        self._admission = None
        self._receiver.resume()
        self._apply_reading()

    def _release_claim(self) -> None:
        if self._held is not None:
            budget, length = self._held
            self._held = None
            budget.release(length)

    # ConnectionOutput

    def send(self, buffers: Sequence[Buffer]) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        size_bytes = len(buffers[0]) if len(buffers) == 1 else sum(map(len, buffers))
        self._shared.bytes_out.value += size_bytes
        self._progressed = True
        if len(buffers) == 1:
            transport.write(buffers[0])
        elif size_bytes <= JOINED_BYTES_MAX:
            transport.write(b"".join(buffers))
        else:
            transport.writelines(buffers)
        if self._unread_bytes:
            self._note_unread(self._buffered_bytes())

    def want_reading(self, *, wanted: bool) -> None:
        if wanted != self._wants_reading:
            self._wants_reading = wanted
            self._apply_reading()

    def end(self, reason: str | BaseException) -> None:
        if isinstance(reason, AssertionError):
            self._shared.fail_stop(f"a request of {self._context.peer}", reason)
        if isinstance(reason, BaseException):
            LOG.error("closing %s: unexpected %r", self._context.peer, reason, exc_info=reason)
            self._refuse("error", type(reason).__name__)
        else:
            self._refuse("protocol", reason)

    def _apply_reading(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        pause = not self._wants_reading or self._receiver.blocked or self._admission is not None
        if pause and not self._paused:
            transport.pause_reading()
        elif not pause and self._paused:
            transport.resume_reading()
        self._paused = pause

    def _refuse(self, reason: str, text: str) -> None:
        self._shared.refused(reason)
        self._shared.refusals.say(self._context.peer, reason, text)
        if self._transport is not None:
            # A client that was refused at connect gets no graceful close.
            self._transport.close() if self in self._shared.connections else self._transport.abort()

    def sweep(self, now_ns: int) -> None:
        """Close the connection if it was idle, or stalled within a frame or an answer, for too long."""
        if self._progressed:
            self._progressed = False
            self._last_progress_ns = now_ns
        silent_ms = (now_ns - self._last_progress_ns) // 1_000_000
        settings = self._shared.settings
        if self._receiver.is_mid_frame and not self._paused and silent_ms > settings.request_stall_ms_max:
            self._refuse("stalled", f"received no byte of an incomplete request for {silent_ms} ms")
        elif silent_ms > settings.connection_idle_ms_max and not self._connection.is_busy:
            self._refuse("idle", f"idle for {silent_ms} ms")
        elif self._buffered_bytes() and silent_ms > settings.connection_idle_ms_max:
            self._refuse("stalled", f"the client read no answer for {silent_ms} ms")

    def _note_unread(self, unread_bytes: int) -> None:
        self._shared.backlog.replace(self._unread_bytes, unread_bytes)
        self._unread_bytes = unread_bytes

    def _buffered_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def abort(self) -> None:
        """Close the connection immediately."""
        if self._transport is not None:
            self._transport.abort()


class Frontend(Protocol):
    """The interface between a broker and its Kafka clients: real sockets, or the simulator.

    It is bound before the broker registers, because the port number is part of the registration. The broker
    calls `serve` when everything else is ready.
    """

    @property
    def port(self) -> int:
        """The port number for clients."""
        ...

    async def serve(self, dispatcher: RequestDispatcher) -> None:
        """Accept clients."""
        ...

    async def close(self) -> None:
        """Stop accepting clients and close every connection. Idempotent."""
        ...


BindFrontend: TypeAlias = Callable[
    [Runtime, BrokerSettings, BrokerOptions, AnswerBacklog], Awaitable[Frontend]
]


class KafkaListener:
    """A bound port that accepts Kafka clients after `serve`; before that, connections are refused."""

    def __init__(self, server: asyncio.Server, shared: _Shared) -> None:
        self._server = server
        self._shared = shared
        self._sweeper: asyncio.Task[None] | None = None

    @classmethod
    async def bind(
        cls,
        host: str,
        port: int,
        settings: BrokerSettings,
        *,
        backlog: AnswerBacklog,
        clock: Clock,
        telemetry: Telemetry,
        fail_stop: FailStop,
    ) -> KafkaListener:
        """Bind the port (0: any), so that its number is available before the broker serves.

        Raises:
            OSError: the address cannot be bound; the message names it.
        """
        shared = _Shared(settings, backlog, clock, telemetry, fail_stop)
        loop = asyncio.get_running_loop()
        try:
            server = await loop.create_server(
                lambda: ClientProtocol(shared), host, port, backlog=1024, start_serving=False
            )
        except OSError as error:
            raise OSError(
                error.errno,
                f"cannot listen on {host}:{port} ({error.strerror}): stop what uses the port, or choose"
                " another",
            ) from error
        return cls(server, shared)

    async def serve(self, dispatcher: RequestDispatcher) -> None:
        """Accept clients."""
        self._shared.dispatcher = dispatcher
        await self._server.start_serving()
        self._sweeper = asyncio.get_running_loop().create_task(self._sweep(), name="sweep idle connections")

    @property
    def port(self) -> int:
        """The bound port."""
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def connections(self) -> int:
        """Number of connected clients."""
        return len(self._shared.connections)

    async def _sweep(self) -> None:
        while True:
            await self._shared.clock.sleep(SWEEP_S)
            now_ns = self._shared.clock.monotonic_ns()
            self._shared.refusals.begin_period()
            for protocol in list(self._shared.connections):
                protocol.sweep(now_ns)

    async def close(self) -> None:
        """Stop listening and close every connection."""
        self._server.close()
        for protocol in list(self._shared.connections):
            protocol.abort()
        if self._sweeper is not None:
            self._sweeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sweeper


async def bind_listener(
    runtime: Runtime, settings: BrokerSettings, options: BrokerOptions, backlog: AnswerBacklog
) -> Frontend:
    """Bind the sockets of a real broker.

    Raises:
        OSError: the address cannot be bound; the message names it.
    """
    return await KafkaListener.bind(
        options.kafka_host,
        options.kafka_port,
        settings,
        backlog=backlog,
        clock=runtime.clock,
        telemetry=runtime.telemetry,
        fail_stop=runtime.fail_stop,
    )
