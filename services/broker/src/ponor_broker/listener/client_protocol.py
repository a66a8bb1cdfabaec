"""One client's socket: its buffers, limits, TLS and the state of its authentication.

Bytes become frames in `frame_receiver`, and frames become ordered requests in `connection`. All connections
of an event loop receive into one shared buffer: the loop calls `get_buffer`, receives, and calls
`buffer_updated` without a pause in between. An idle connection therefore holds only a few kilobytes.

A client is *pending* from its connection until its TLS handshake and its SASL authentication are complete.
Pending clients have small requests, little time and a bound of their own: at the bound the oldest one is
disconnected, so that clients which never finish do not keep others out.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Sequence
from typing import Final, cast

from ponor_runtime.budgets import BudgetExceededError, ByteBudget
from ponor_runtime.clock import Clock
from ponor_runtime.disk import Buffer
from ponor_runtime.tasks import FailStop
from ponor_runtime.telemetry import Telemetry

from ponor_broker.listener.connection_limits import ConnectionCounts, RefusalLog
from ponor_broker.listener.frame_receiver import FrameReceiver
from ponor_broker.listener.tls_stream import TlsStream
from ponor_broker.requests.connection import ClientConnection, ConnectionContext, RequestDispatcher
from ponor_broker.requests.request_flow import AnswerBacklog, RequestFlow
from ponor_broker.security.authentication import REQUEST_BYTES_MAX, Authentication
from ponor_broker.security.tls import TlsConfigurationError, TlsContext, principal_of
from ponor_broker.settings import BrokerSettings

LOG: Final = logging.getLogger("ponor.broker.listener")

SCRATCH_BYTES: Final = 256 << 10
"""Size of the shared read buffer: one read gets up to four batches of 64 KiB, and the buffer fits into a
core's second-level cache."""
SCRATCH_BYTES_WHEN_FULL: Final = 512
"""Size of a read while the receive budget is used up: its bytes exceed the budget, so it must be small."""
CIPHERTEXT_BYTES: Final = 64 << 10
"""Size of the shared buffer for ciphertext. Each TLS connection keeps buffers of about this size."""
PENDING_READ_BYTES: Final = 8 << 10
"""Size of a read from a client that is not authenticated."""
EMPTY_CIPHERTEXT_BYTES_MAX: Final = 64 << 10
"""Ciphertext without data that a client may send in a row: key updates cost more CPU than data."""
UNREAD_CONTROL_BYTES_MAX: Final = 64 << 10
"""Unread bytes above which a client gets no further answers to TLS control records, such as key updates."""
LARGE_FRAME_BYTES: Final = 4 << 20
"""Larger frames share half of the receive budget, so that they cannot block small ones."""
WRITE_HIGH_BYTES: Final = 0
"""Every byte that the socket does not accept immediately counts as unread against `fetch_answers_bytes_max`.
While there are such bytes, no request of the connection starts."""
JOINED_BYTES_MAX: Final = 16 << 10
"""Answers up to this total size are joined: one buffer costs the event loop less than several, and
a small copy is cheap."""


class SharedState:
    """State that the connections of all listeners of a broker share."""

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
        self.ciphertext = memoryview(bytearray(CIPHERTEXT_BYTES))
        self.connections: dict[ClientProtocol, None] = {}
        self.pending: dict[ClientProtocol, None] = {}
        """Clients that are not authenticated yet, oldest first."""
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
        telemetry.gauge("ponor_kafka_connections_pending", lambda: len(self.pending))
        telemetry.gauge("ponor_kafka_connections", lambda: len(self.connections))
        telemetry.gauge("ponor_kafka_inflight_bytes", lambda: in_flight.held_bytes)
        telemetry.gauge(
            "ponor_kafka_receiving_bytes", lambda: self.receive.held_bytes + self.receive_large.held_bytes
        )
        telemetry.gauge("ponor_fetch_answers_bytes", lambda: backlog.bytes_waiting)


class ListenerState:
    """State that the connections of one listener share: its name, security and connection limits."""

    def __init__(
        self,
        shared: SharedState,
        name: str,
        *,
        tls: TlsContext | None = None,
        mechanisms: tuple[str, ...] = (),
    ) -> None:
        settings = shared.settings
        self.shared = shared
        self.name = name
        self.tls = tls
        self.mechanisms = mechanisms
        self.counts = ConnectionCounts(
            connections_max=settings.connections_max, per_address_max=settings.connections_per_address_max
        )


class ClientProtocol(asyncio.BufferedProtocol):
    """One client's socket."""

    __slots__ = (
        "_admission",
        "_closing_bytes",
        "_connection",
        "_context",
        "_empty_bytes",
        "_held",
        "_last_progress_ns",
        "_listener",
        "_paused",
        "_pending_since_ns",
        "_progressed",
        "_receiver",
        "_shared",
        "_tls",
        "_transport",
        "_unread_bytes",
        "_wants_reading",
    )

    def __init__(self, listener: ListenerState) -> None:
        self._listener = listener
        self._shared = shared = listener.shared
        self._transport: asyncio.Transport | None = None
        self._context = ConnectionContext(peer="?", listener=listener.name)
        assert shared.dispatcher is not None, "a client connected before `serve`"
        self._connection = ClientConnection(shared.dispatcher, self, self._context, shared.flow)
        self._receiver = FrameReceiver(
            self._admit_frame,
            frame_bytes_max=shared.settings.request_bytes_max,
            control_bytes_max=shared.settings.control_request_bytes_max,
        )
        self._held: tuple[ByteBudget, int] | None = None  # charge for the frame that is arriving
        self._admission: asyncio.Task[None] | None = None
        self._tls: TlsStream | None = None
        self._pending_since_ns = 0
        self._empty_bytes = 0  # ciphertext since the last data
        self._closing_bytes: int | None = None
        """Unread bytes at the last sweep of a closed connection."""
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
        counts = self._listener.counts
        refusal = counts.refusal(self._context.host)
        if refusal is not None:
            self._refuse(refusal, f"{counts.total} clients are connected")
            return
        counts.add(self._context.host)
        self._shared.connections[self] = None
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)
        if self._listener.tls is not None or self._listener.mechanisms:
            self._begin_pending()
        if self._listener.mechanisms:
            self._context.authentication = Authentication(self._listener.mechanisms, self._authenticated)
            self._receiver.limit(REQUEST_BYTES_MAX, REQUEST_BYTES_MAX)
        if self._listener.tls is not None:
            self._tls = TlsStream(self._listener.tls.context)

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint
        is_pending = self in self._shared.pending
        if self._tls is not None:
            return self._shared.ciphertext[:PENDING_READ_BYTES] if is_pending else self._shared.ciphertext
        buffer = self._plaintext_buffer()
        return buffer[:PENDING_READ_BYTES] if is_pending else buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._shared.bytes_in.value += nbytes
        self._progressed = True
        if self._tls is None:
            self._plaintext_received(nbytes)
        else:
            self._ciphertext_received(self._tls, nbytes)

    def _plaintext_buffer(self) -> memoryview:
        if self._held is not None:
            own = self._receiver.own_buffer()
            assert own is not None, "a charged frame has no buffer of its own"
            return own
        shared = self._shared
        return shared.scratch[:SCRATCH_BYTES_WHEN_FULL] if shared.receive.is_full else shared.scratch

    def _plaintext_received(self, nbytes: int) -> None:
        shared, receiver = self._shared, self._receiver
        if self._held is None:
            frames = receiver.received(shared.scratch, nbytes)
        else:
            frames = receiver.received_own(nbytes)
            if frames:
                self._release_claim()
        if frames and not self._has_ended:
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
            self._listener.counts.remove(self._context.host)
        self._shared.pending.pop(self, None)
        if self._admission is not None:
            self._admission.cancel()
        self._release_claim()
        self._note_unread(0)
        self._connection.closed()
        self._transport = None

    # Security

    def _begin_pending(self) -> None:
        pending = self._shared.pending
        while len(pending) >= self._shared.settings.pending_connections_max:
            oldest = next(iter(pending))
            oldest.drop_pending(f"{len(pending)} clients are not authenticated yet, and this is the oldest")
        pending[self] = None
        self._pending_since_ns = self._shared.clock.monotonic_ns()

    def drop_pending(self, reason: str) -> None:
        """Disconnect a client that is not authenticated yet."""
        self._shared.pending.pop(self, None)
        self._refuse("pending", reason)
        self.abort()

    def _ciphertext_received(self, tls: TlsStream, nbytes: int) -> None:
        was_open = tls.is_open
        try:
            tls.received(self._shared.ciphertext[:nbytes])
            if tls.is_open and not was_open:
                self._handshake_done(tls)
        except (ssl.SSLError, TlsConfigurationError) as error:
            self._fail_tls(tls, error)
            return
        self._send_outgoing(tls)
        if tls.is_open:
            self._empty_bytes += nbytes
            self._decrypt(tls)
            if self._empty_bytes > EMPTY_CIPHERTEXT_BYTES_MAX:
                self._refuse("tls", f"sent {self._empty_bytes} bytes of TLS records without data")

    def _decrypt(self, tls: TlsStream) -> None:
        """Process decrypted bytes until there are no more, or the receiver has no room for them."""
        is_more = True
        while is_more and not (self._paused or self._receiver.failure is not None or self._has_ended):
            buffer = self._plaintext_buffer()
            try:
                count = tls.read_into(buffer)
            except ssl.SSLError as error:
                self._fail_tls(tls, error)
                return
            is_more = count == len(buffer)
            if count:
                self._empty_bytes = 0
                self._plaintext_received(count)
        if self._paused:
            self._empty_bytes = 0  # the rest may be data
        self._send_outgoing(tls)
        if tls.has_ended:
            self._close()

    def _handshake_done(self, tls: TlsStream) -> None:
        options = self._listener.tls.options if self._listener.tls is not None else None
        if options is not None and options.client_ca is not None and not self._listener.mechanisms:
            self._context.principal = principal_of(tls.peer_certificate, options.principal_rules)
        if not self._listener.mechanisms:
            self._shared.pending.pop(self, None)

    def _fail_tls(self, tls: TlsStream, error: Exception) -> None:
        self._send_outgoing(tls)  # the alert that tells the client the reason
        self._refuse("tls", f"TLS failed: {error}")

    def _send_outgoing(self, tls: TlsStream) -> None:
        outgoing = tls.take_outgoing()
        if not outgoing or self._has_ended or self._transport is None:
            return
        self._transport.write(outgoing)
        if self._buffered_bytes() > len(outgoing) + UNREAD_CONTROL_BYTES_MAX:
            self._refuse("tls", "sent TLS control records without reading")
            self.abort()

    def _continue_tls(self, tls: TlsStream) -> None:
        """Decrypt what arrived before a pause, and read on when nothing of it is left."""
        self._decrypt(tls)
        if not self._paused and not self._has_ended and self._transport is not None:
            self._transport.resume_reading()

    def _authenticated(self) -> None:
        """Give an authenticated client the limits of its listener."""
        settings = self._shared.settings
        self._shared.pending.pop(self, None)
        self._receiver.limit(settings.request_bytes_max, settings.control_request_bytes_max)

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
        if self._tls is not None:
            try:
                transport.writelines(self._tls.encrypt(buffers))
            except ssl.SSLError as error:  # the client has left an unfinished handshake record
                self._fail_tls(self._tls, error)
                return
        elif len(buffers) == 1:
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
            if self._tls is None:
                transport.resume_reading()
            else:
                # Ciphertext that arrived before the pause comes first. Later, because the caller is not
                # finished.
                asyncio.get_running_loop().call_soon(self._continue_tls, self._tls)
        self._paused = pause

    def _refuse(self, reason: str, text: str) -> None:
        self._shared.refused(reason)
        self._shared.refusals.say(self._context.peer, reason, text)
        if self._transport is not None:
            # A client that was refused at connect gets no graceful close.
            self._close() if self in self._shared.connections else self._transport.abort()

    def _close(self) -> None:
        """Close the connection after the answers that are written already."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._tls is not None:
            self._tls.end()
            transport.write(self._tls.take_outgoing())
        transport.close()

    @property
    def _has_ended(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def sweep(self, now_ns: int) -> None:
        """Close the connection if it was idle, or stalled within a frame or an answer, for too long."""
        if self._progressed:
            self._progressed = False
            self._last_progress_ns = now_ns
        silent_ms = (now_ns - self._last_progress_ns) // 1_000_000
        settings = self._shared.settings
        if self._has_ended:
            self._end_close()
            return
        if self in self._shared.pending:
            pending_ms = (now_ns - self._pending_since_ns) // 1_000_000
            if pending_ms > settings.authentication_ms_max:
                self.drop_pending(f"not authenticated after {pending_ms} ms")
            return
        if self._receiver.is_mid_frame and not self._paused and silent_ms > settings.request_stall_ms_max:
            self._refuse("stalled", f"received no byte of an incomplete request for {silent_ms} ms")
        elif silent_ms > settings.connection_idle_ms_max and not self._connection.is_busy:
            self._refuse("idle", f"idle for {silent_ms} ms")
        elif self._buffered_bytes() and silent_ms > settings.connection_idle_ms_max:
            self._refuse("stalled", f"the client read no answer for {silent_ms} ms")

    def _end_close(self) -> None:
        """Abort a connection that is closed but whose client has read nothing since the last sweep."""
        unread_bytes = self._buffered_bytes()
        if self._closing_bytes is not None and unread_bytes >= self._closing_bytes:
            self.abort()
        self._closing_bytes = unread_bytes

    def _note_unread(self, unread_bytes: int) -> None:
        self._shared.backlog.replace(self._unread_bytes, unread_bytes)
        self._unread_bytes = unread_bytes

    def _buffered_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def abort(self) -> None:
        """Close the connection immediately."""
        if self._transport is not None:
            self._transport.abort()
