"""Dispatch of request frames to handlers, and conversion of the handlers' answers into response buffers.

Implements Kafka's rules, as measured on Apache Kafka 4.3.1 (docs/compatibility.md): the advertised versions,
the answer to an ApiVersions request of an unknown version, and the close of the connection after any other
request that this broker does not handle. Uses no sockets: the simulator calls `dispatch` with the bytes of a
frame.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeAlias

from ponor_kafka.api import ApiKey
from ponor_kafka.codec import decode, encode_steps
from ponor_kafka.headers import RequestHeader, decode_request_header, encode_response_frame
from ponor_kafka.message import Message
from ponor_runtime.clock import Clock
from ponor_runtime.disk import Buffer
from ponor_runtime.telemetry import Counter, Histogram, Telemetry
from ponor_runtime.tracing import Span
from ponor_runtime.turns import Steps, Turns

from ponor_broker.requests.api_handler import ApiHandler, RequestContext, WhenFenced
from ponor_broker.requests.connection import (
    Answer,
    CloseConnectionError,
    ConnectionContext,
    PendingAnswer,
    Response,
)
from ponor_broker.requests.request_flow import LARGE_CONTROL_BYTES
from ponor_broker.requests.request_tracing import begin_request
from ponor_broker.requests.running_requests import RequestsUnderWay, RequestUnderWay
from ponor_broker.serving import Serving

PRODUCE_ADVERTISED_MIN: Final = 0
"""Advertised minimum, although Produce 0 to 2 are refused: librdkafka derives the codecs of a broker from
this number (KAFKA-18659)."""


class Measured:
    """Counts the requests of one API and records their durations, once per event-loop turn: the requests that
    one group commit completes share one clock call.
    """

    __slots__ = ("_clock", "_duration", "_requests", "_started_ns")

    def __init__(self, requests: Counter, duration: Histogram, clock: Clock) -> None:
        self._requests = requests
        self._duration = duration
        self._clock = clock
        self._started_ns: list[int] = []

    @property
    def requests(self) -> int:
        """Number of counted requests."""
        return self._requests.value

    def answered(self, started_ns: int) -> None:
        """Count a request that was received at this monotonic time."""
        if not self._started_ns:
            asyncio.get_running_loop().call_soon(self._record)
        self._started_ns.append(started_ns)

    def _record(self) -> None:
        all_started_ns, self._started_ns = self._started_ns, []
        self._requests.add(len(all_started_ns))
        now_ns = self._clock.monotonic_ns()
        for started_ns in all_started_ns:
            self._duration.record((now_ns - started_ns) // 1000)


class Reply:
    """Builds the response frame of a body and counts the request as answered."""

    __slots__ = ("_is_noted", "_measured", "connection", "header", "place", "received_ns")

    def __init__(
        self, header: RequestHeader, connection: ConnectionContext, measured: Measured, received_ns: int
    ) -> None:
        self.header = header
        self.connection = connection
        self._measured = measured
        self._is_noted = False
        self.received_ns = received_ns
        self.place: RequestUnderWay | None = None
        """Set while the request runs, if its answer is produced later and needs permission."""

    def __call__(self, body: Sequence[Buffer]) -> Response:
        """Return the frame for a body's buffers, which are not copied."""
        self.note()
        header = self.header
        return encode_response_frame(header.api_key, header.api_version, header.correlation_id, body)

    def free(self, kept_bytes: int) -> None:
        """Free the frame of a large request; see `RequestContext.free`."""
        if self.place is not None:
            self.place.free(kept_bytes)

    def note(self) -> None:
        """Count the request as answered. Further calls have no effect: a refusal may replace an answer."""
        if not self._is_noted:
            self._is_noted = True
            self._measured.answered(self.received_ns)


class TracedReply(Reply):
    """The reply to a sampled request: the answer ends the request's span."""

    __slots__ = ("_span",)

    def __init__(
        self,
        header: RequestHeader,
        connection: ConnectionContext,
        measured: Measured,
        received_ns: int,
        span: Span,
    ) -> None:
        super().__init__(header, connection, measured, received_ns)
        self._span = span

    def note(self) -> None:
        super().note()
        self._span.end()


Started: TypeAlias = "Answer | asyncio.Future[Response]"
"""Result of starting a request: an answer, or the future of a response that needs permission (`Serving`)."""


class RawHandler(Protocol):
    """Produce, Fetch and Metadata: they parse the frame themselves and answer with the body's
    buffers, immediately or later.
    """

    @property
    def version_min(self) -> int: ...

    @property
    def version_max(self) -> int: ...

    @property
    def when_fenced(self) -> WhenFenced: ...

    def start(self, frame: bytearray, header: RequestHeader, reply: Reply) -> Started:
        """Start the request; return `reply(body)`, or an object that delivers it later; None: no answer."""
        ...


class PlainHandler(Protocol):
    """The fast path of Produce requests; see `handlers.produce.plain_produce`."""

    def start(self, frame: bytearray, measured: Measured, received_ns: int) -> PendingAnswer | None:
        """Start the request; return None, without any effect, if it needs the general path.
        `measured` counts its answer.
        """
        ...


class _Route:
    """The handler of one API: a `RawHandler` or an `ApiHandler`."""

    __slots__ = ("handler", "measured", "raw", "version_max", "version_min", "when_fenced")

    def __init__(self, raw: RawHandler | None, handler: ApiHandler | None, measured: Measured) -> None:
        self.raw = raw
        self.handler = handler
        self.measured = measured
        either = raw or handler
        assert either is not None
        self.version_min = either.version_min
        self.version_max = either.version_max
        self.when_fenced = either.when_fenced


class AdvertisedApi(NamedTuple):
    """One row of an ApiVersions answer."""

    key: int
    version_min: int
    version_max: int


class Dispatcher:
    """Routes requests to handlers. `advertised` is the content of ApiVersions."""

    def __init__(
        self,
        handlers: Iterable[ApiHandler],
        *,
        raw: Mapping[ApiKey, RawHandler],
        plain: PlainHandler | None = None,
        serving: Serving,
        clock: Clock,
        telemetry: Telemetry,
    ) -> None:
        self._serving = serving
        self._under_way = RequestsUnderWay(serving, clock)
        self._turns = Turns()
        self._telemetry = telemetry
        self._plain = plain
        self._produce_measured = _measured(telemetry, ApiKey.PRODUCE, clock)
        own = {ApiKey.PRODUCE: self._produce_measured}
        self._routes = {
            int(key): _Route(one, None, own.get(key) or _measured(telemetry, key, clock))
            for key, one in raw.items()
        }
        for handler in handlers:
            self._routes[int(handler.key)] = _Route(None, handler, _measured(telemetry, handler.key, clock))

    @property
    def requests(self) -> int:
        """Number of answered requests."""
        return sum(route.measured.requests for route in self._routes.values())

    @property
    def advertised(self) -> list[AdvertisedApi]:
        """Every handled API, by key."""
        return sorted(
            AdvertisedApi(
                key,
                PRODUCE_ADVERTISED_MIN if key == ApiKey.PRODUCE else route.version_min,
                route.version_max,
            )
            for key, route in self._routes.items()
        )

    def dispatch(self, frame: bytearray, connection: ConnectionContext, received_ns: int) -> Answer:
        """Start a request that was received at this monotonic time.

        Returns:
            The response frame's buffers, or the place of a later answer; None if the request has no answer.

        Raises:
            KafkaWireError: the request is malformed.
            CloseConnectionError: this broker does not handle the API or its version, must not answer, or the
                client is not authenticated.
        """
        authentication = connection.authentication
        if authentication is not None and not authentication.permits(frame, received_ns):
            raise CloseConnectionError("the client is not authenticated, or its session has expired")
        if self._plain is not None and self._telemetry.tracing is None:
            pending = self._plain.start(frame, self._produce_measured, received_ns)
            if pending is not None:
                return pending
        header = decode_request_header(frame)
        route = self._routes.get(header.api_key)
        if route is None:
            raise CloseConnectionError(f"this broker does not support the API {ApiKey(header.api_key).name}")
        reply = Reply(header, connection, route.measured, received_ns)
        if self._telemetry.tracing is not None:
            return self._dispatch_traced(route, frame, connection, reply)
        return self._start(route, frame, connection, reply)

    def _dispatch_traced(
        self, route: _Route, frame: bytearray, connection: ConnectionContext, reply: Reply
    ) -> Answer:
        telemetry, header = self._telemetry, reply.header
        assert telemetry.tracing is not None
        span = begin_request(telemetry.tracing, header, connection, reply.received_ns)
        if span is None:
            return self._start(route, frame, connection, reply)
        reply = TracedReply(header, connection, route.measured, reply.received_ns, span)
        telemetry.request = span
        try:
            if header.api_key == ApiKey.PRODUCE:
                return self._start(route, frame, connection, reply)
            # The tasks that handle the request inherit its span. Produce starts no task, and callbacks
            # that its appends trigger must not inherit the span.
            inside = telemetry.tracing.inside(span)
            return inside.run(self._start, route, frame, connection, reply)
        except BaseException as error:
            span.end(error=type(error).__qualname__)
            raise
        finally:
            telemetry.request = None

    def _start(self, route: _Route, frame: bytearray, connection: ConnectionContext, reply: Reply) -> Answer:
        header = reply.header
        if (
            not route.version_min <= header.api_version <= route.version_max
            and header.api_key != ApiKey.API_VERSIONS
        ):
            raise _unhandled_version(header, route)
        self._serving.check()
        if route.when_fenced is WhenFenced.SETTLES:
            return self._begin(route, frame, connection, reply)  # type: ignore[return-value]  # never a future
        epoch = self._serving.epoch
        answer = self._begin_guarded(route, frame, connection, reply)
        if not isinstance(answer, asyncio.Future):
            if self._under_way.may_be_sent(epoch):
                return answer
            epoch = self._serving.epoch
            answer = self._begin_guarded(route, frame, connection, reply)
            if not isinstance(answer, asyncio.Future):
                return answer
        again = partial(self._begin_guarded, route, frame, connection, reply)
        reply.place = self._under_way.add(answer, epoch, again)
        return reply.place

    def _begin_guarded(
        self, route: _Route, frame: bytearray, connection: ConnectionContext, reply: Reply
    ) -> Response | asyncio.Future[Response]:
        """Start a request whose answer needs permission (`Serving`).

        Raises:
            CloseConnectionError: permission is withdrawn, and this API has no error answer.
        """
        if self._serving.refusal is not None and route.when_fenced is WhenFenced.CLOSES:
            raise CloseConnectionError(f"this broker must not answer: {self._serving.refusal}")
        answer = self._begin(route, frame, connection, reply)
        assert not isinstance(answer, PendingAnswer), "only SETTLES handlers wait for the write-ahead log"
        return answer

    def _begin(self, route: _Route, frame: bytearray, connection: ConnectionContext, reply: Reply) -> Started:
        if route.raw is not None:
            return route.raw.start(frame, reply.header, reply)
        assert route.handler is not None
        return asyncio.get_running_loop().create_task(
            self._handle(route.handler, frame, reply.header, connection, reply), name=route.handler.key.name
        )

    async def _handle(
        self,
        handler: ApiHandler,
        frame: bytearray,
        header: RequestHeader,
        connection: ConnectionContext,
        reply: Reply,
    ) -> Response:
        version = header.api_version
        if handler.key is ApiKey.API_VERSIONS and not handler.version_min <= version <= handler.version_max:
            # Version 0 of the answer lists the versions; a request of an unknown version cannot be decoded.
            version = header.api_version = 0
            request = None
        elif len(frame) > LARGE_CONTROL_BYTES:
            # The request may have a million elements, whose decoding takes a second, and many clients may
            # send such requests at once.
            request = await self._turns.run(_decoding(header, frame))
        else:
            request, _ = decode(header.api_key, version, frame, header.body_position)
        handling = handler.handle(request, RequestContext(version, header.client_id, connection, reply.free))
        del frame, request  # the handler may free them before it waits
        response = await handling
        if response is None:
            reply.note()
            return None
        return reply(await self._turns.run_short(encode_steps(response, version)))


def _decoding(header: RequestHeader, frame: bytearray) -> Steps[Message]:
    request, _ = decode(header.api_key, header.api_version, frame, header.body_position)
    yield
    return request


def _unhandled_version(header: RequestHeader, route: _Route) -> CloseConnectionError:
    return CloseConnectionError(
        f"{ApiKey(header.api_key).name} version {header.api_version} is not supported; this broker supports"
        f" {route.version_min} to {route.version_max}"
    )


def _measured(telemetry: Telemetry, key: int, clock: Clock) -> Measured:
    name = ApiKey(key).name.lower()
    return Measured(
        telemetry.counter("ponor_kafka_requests_total", api=name),
        telemetry.histogram("ponor_kafka_request_seconds", api=name),
        clock,
    )
