"""The Kafka listener: sockets, their buffers and their limits.

What lives here: the one place of the broker that knows sockets. Bytes become frames in `frame_receiver`, frames become ordered requests in
`connection`. One shared 64 KiB scratch per loop receives for all connections (the loop calls `get_buffer`, receives and calls
`buffer_updated` without a pause between), so an idle connection holds about a kilobyte.

Limits, all named in `ListenerSettings`: connections, bytes of frames that are arriving or waiting, bytes of requests in process, bytes of
answers a client has not read, idle time, time without progress in the middle of a frame.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, cast

from ponor_kafka.errors import KafkaWireError
from ponor_runtime.budgets import BudgetExceededError, ByteBudget
from ponor_runtime.clock import Clock
from ponor_runtime.disk import Buffer
from ponor_runtime.tasks import FailStop
from ponor_runtime.telemetry import Telemetry

from ponor_broker.answer_backlog import AnswerBacklog
from ponor_broker.connection import ClientConnection, ConnectionContext, RequestDispatcher
from ponor_broker.frame_receiver import FrameReceiver

LOG: Final = logging.getLogger("ponor.broker.listener")

SCRATCH_BYTES: Final = 64 << 10
LARGE_FRAME_BYTES: Final = 4 << 20
"""Frames above this share half of the receive budget, so that they cannot keep small ones out."""
SWEEP_S: Final = 2.0
WRITE_HIGH_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class ListenerSettings:
    """Bounds of the listener; Kafka's names are in `ponor_broker.settings`."""

    connections_max: int
    request_bytes_max: int
    receive_bytes_max: int
    in_flight_bytes_max: int
    idle_ms_max: int
    stall_ms_max: int


class _Shared:
    """What all connections of one listener share."""

    def __init__(
        self,
        settings: ListenerSettings,
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
        waiters_max = settings.connections_max
        self.receive = ByteBudget("receive bytes", settings.receive_bytes_max, waiters_max=waiters_max)
        self.receive_large = ByteBudget(
            "receive bytes of large requests",
            max(settings.receive_bytes_max // 2, 1),
            waiters_max=waiters_max,
        )
        self.in_flight = ByteBudget("in-flight bytes", settings.in_flight_bytes_max, waiters_max=waiters_max)
        self.bytes_in = telemetry.counter("ponor_kafka_bytes_total", direction="in")
        self.bytes_out = telemetry.counter("ponor_kafka_bytes_total", direction="out")
        self.refused: Callable[[str], None] = lambda reason: telemetry.counter(
            "ponor_kafka_connections_refused_total", reason=reason
        ).add()
        telemetry.gauge("ponor_kafka_connections", lambda: len(self.connections))
        telemetry.gauge("ponor_kafka_inflight_bytes", lambda: self.in_flight.held_bytes)


class ClientProtocol(asyncio.BufferedProtocol):
    """One client's socket."""

    __slots__ = (
        "_admission",
        "_connection",
        "_context",
        "_held",
        "_last_progress_ns",
        "_paused",
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
        assert shared.dispatcher is not None, "no client gets in before the broker serves"
        self._connection = ClientConnection(shared.dispatcher, self, self._context, shared.in_flight)
        self._receiver = FrameReceiver(
            self._frame_received, self._admit_frame, frame_bytes_max=shared.settings.request_bytes_max
        )
        self._held: tuple[ByteBudget, int] | None = None  # claim of the frame that is arriving
        self._admission: asyncio.Task[None] | None = None
        self._wants_reading = True
        self._paused = False
        self._unread_bytes = 0  # our share of the backlog; 0 while the client keeps up
        self._last_progress_ns = shared.clock.monotonic_ns()

    # asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        self._context.peer = (
            f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) and len(peer) >= 2 else str(peer)
        )
        if len(self._shared.connections) >= self._shared.settings.connections_max:
            self._refuse("connections_max", f"{len(self._shared.connections)} clients are connected")
            return
        self._shared.connections[self] = None
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint
        own = self._receiver.own_buffer()
        return self._shared.scratch if own is None else own

    def buffer_updated(self, nbytes: int) -> None:
        self._shared.bytes_in.add(nbytes)
        self._last_progress_ns = self._shared.clock.monotonic_ns()
        try:
            if self._receiver.own_buffer() is not None:
                self._receiver.received_own(nbytes)
            else:
                self._receiver.received(self._shared.scratch[:nbytes])
        except KafkaWireError as error:
            self._refuse("malformed", str(error))

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._note_unread(self._buffered_bytes())
        self._connection.set_writable(writable=False)

    def resume_writing(self) -> None:
        self._last_progress_ns = self._shared.clock.monotonic_ns()
        self._note_unread(0)
        self._connection.set_writable(writable=True)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._shared.connections.pop(self, None)
        if self._admission is not None:
            self._admission.cancel()
        self._release_claim()
        self._note_unread(0)
        self._connection.closed()
        self._transport = None

    # Frames

    def _frame_received(self, frame: bytearray) -> None:
        self._release_claim()
        if self._transport is not None and not self._transport.is_closing():
            self._connection.frame_received(frame)

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
        try:
            self._receiver.resume()
        except KafkaWireError as error:
            self._refuse("malformed", str(error))
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
        self._shared.bytes_out.add(sum(map(len, buffers)))
        self._last_progress_ns = self._shared.clock.monotonic_ns()
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
        LOG.warning("closing connection of %s (%s): %s", self._context.peer, reason, text)
        if self._transport is not None:
            self._transport.abort() if reason == "connections_max" else self._transport.close()

    def sweep(self, now_ns: int) -> None:
        """Close the connection if it is idle, or stuck in the middle of a frame or of an answer, for too long."""
        silent_ms = (now_ns - self._last_progress_ns) // 1_000_000
        settings = self._shared.settings
        if self._receiver.is_mid_frame and not self._paused and silent_ms > settings.stall_ms_max:
            self._refuse("stalled", f"no byte of a half-sent request for {silent_ms} ms")
        elif silent_ms > settings.idle_ms_max and not self._connection.is_busy:
            self._refuse("idle", f"idle for {silent_ms} ms")
        elif self._buffered_bytes() and silent_ms > settings.idle_ms_max:
            self._refuse("stalled", f"no answer was read for {silent_ms} ms")

    def _note_unread(self, unread_bytes: int) -> None:
        self._shared.backlog.replace(self._unread_bytes, unread_bytes)
        self._unread_bytes = unread_bytes

    def _buffered_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def abort(self) -> None:
        """End the connection at once."""
        if self._transport is not None:
            self._transport.abort()


class KafkaListener:
    """A bound port that serves Kafka clients once `serve` was called; before that connections are refused."""

    def __init__(self, server: asyncio.Server, shared: _Shared) -> None:
        self._server = server
        self._shared = shared
        self._sweeper: asyncio.Task[None] | None = None

    @classmethod
    async def bind(
        cls,
        host: str,
        port: int,
        settings: ListenerSettings,
        *,
        backlog: AnswerBacklog,
        clock: Clock,
        telemetry: Telemetry,
        fail_stop: FailStop,
    ) -> KafkaListener:
        """Take the port (0: any), so that the broker can tell the cluster its address before it serves.

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
                f"cannot listen on {host}:{port} ({error.strerror}): stop what uses the port, or choose another",
            ) from error
        return cls(server, shared)

    async def serve(self, dispatcher: RequestDispatcher) -> None:
        """Let clients in."""
        self._shared.dispatcher = dispatcher
        await self._server.start_serving()
        self._sweeper = asyncio.get_running_loop().create_task(self._sweep(), name="sweep idle connections")

    @property
    def port(self) -> int:
        """The port that was really bound."""
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._shared.connections)

    async def _sweep(self) -> None:
        while True:
            await self._shared.clock.sleep(SWEEP_S)
            now_ns = self._shared.clock.monotonic_ns()
            for protocol in list(self._shared.connections):
                protocol.sweep(now_ns)

    async def close(self) -> None:
        """Stop listening and end every connection."""
        self._server.close()
        for protocol in list(self._shared.connections):
            protocol.abort()
        if self._sweeper is not None:
            self._sweeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sweeper
