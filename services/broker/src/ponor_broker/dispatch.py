"""From a request frame to its handler, and from the handler's answer to response buffers.

What lives here: the rules of Kafka's envelope as measured on Apache Kafka 4.3.1 (docs/compatibility.md): which versions are advertised, what an
ApiVersions request of an unknown version gets, and that everything else this broker does not handle closes the connection without an
answer. No sockets: the simulator calls `dispatch` with the bytes of a frame.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from ponor_kafka.api import ApiKey
from ponor_kafka.codec import decode, encode_buffers
from ponor_kafka.headers import RequestHeader, decode_request_header, encode_response_frame
from ponor_runtime.clock import Clock
from ponor_runtime.disk import Buffer
from ponor_runtime.telemetry import Counter, Histogram, Telemetry

from ponor_broker.connection import CloseConnectionError, ConnectionContext, Response
from ponor_broker.handlers.registry import ApiHandler, RequestContext

PRODUCE_ADVERTISED_MIN: Final = 0
"""Advertised although Produce 0 to 2 are refused: librdkafka reads from it which codecs a broker knows (KAFKA-18659)."""


class _Measured(NamedTuple):
    requests: Counter
    duration: Histogram


class Reply:
    """Makes a response frame of a body, and counts the request as answered."""

    __slots__ = ("_clock", "_header", "_measured", "_started_ns")

    def __init__(self, header: RequestHeader, measured: _Measured, clock: Clock) -> None:
        self._header = header
        self._measured = measured
        self._clock = clock
        self._started_ns = clock.monotonic_ns()

    def __call__(self, body: Sequence[Buffer]) -> Response:
        """The frame for a body's buffers, which are not copied."""
        self.note()
        header = self._header
        return encode_response_frame(header.api_key, header.api_version, header.correlation_id, body)

    def note(self) -> None:
        """The request is answered, or wants no answer."""
        self._measured.requests.add()
        self._measured.duration.record((self._clock.monotonic_ns() - self._started_ns) // 1000)


class RawHandler(Protocol):
    """Produce, Fetch and Metadata: they read the frame themselves and answer with the body's buffers, at once or later."""

    @property
    def version_min(self) -> int: ...

    @property
    def version_max(self) -> int: ...

    def start(
        self, frame: bytearray, header: RequestHeader, reply: Reply
    ) -> Response | asyncio.Future[Response]:
        """Begin the request: `reply(body)`, or a future of it; None: it has no answer."""
        ...


class AdvertisedApi(NamedTuple):
    """One row of an ApiVersions answer."""

    key: int
    version_min: int
    version_max: int


class Dispatcher:
    """Routes requests. Handlers are given by constructor; `advertised` is what ApiVersions shows."""

    def __init__(
        self,
        handlers: Iterable[ApiHandler],
        *,
        raw: Mapping[ApiKey, RawHandler],
        clock: Clock,
        telemetry: Telemetry,
    ) -> None:
        self._handlers = {int(handler.key): handler for handler in handlers}
        self._raw = {int(key): handler for key, handler in raw.items()}
        self._clock = clock
        self._measured = {key: _measured(telemetry, key) for key in (*self._raw, *self._handlers)}

    @property
    def advertised(self) -> list[AdvertisedApi]:
        """Every handled API, by key: never an API that is not, and with the one measured exception."""
        rows = [AdvertisedApi(key, _advertised_min(key, h), h.version_max) for key, h in self._raw.items()]
        rows.extend(AdvertisedApi(h.key, h.version_min, h.version_max) for h in self._handlers.values())
        return sorted(rows)

    def dispatch(
        self, frame: bytearray, connection: ConnectionContext
    ) -> Response | asyncio.Future[Response]:
        """Start one request.

        Returns:
            The response frame's buffers, or a future of them; None (also as the future's result) when no answer is due.

        Raises:
            KafkaWireError: malformed; CloseConnectionError: not handled. The connection is closed for both.
        """
        header = decode_request_header(frame)
        raw = self._raw.get(header.api_key)
        if raw is not None:
            _check_version(header, raw.version_min, raw.version_max)
            return raw.start(frame, header, Reply(header, self._measured[header.api_key], self._clock))
        handler = self._handlers.get(header.api_key)
        if handler is None:
            raise CloseConnectionError(f"API {ApiKey(header.api_key).name} is not handled by this broker")
        if header.api_key != ApiKey.API_VERSIONS:
            _check_version(header, handler.version_min, handler.version_max)
        reply = Reply(header, self._measured[header.api_key], self._clock)
        return asyncio.get_running_loop().create_task(
            self._handle(handler, frame, header, connection, reply), name=handler.key.name
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
        if handler.key is ApiKey.API_VERSIONS and version > handler.version_max:
            # The client learns from version 0 what to ask next; its request cannot even be decoded.
            version = header.api_version = 0
            request = None
        else:
            request, _ = decode(header.api_key, version, frame, header.body_position)
        response = await handler.handle(request, RequestContext(version, header.client_id, connection))
        if response is None:
            reply.note()
            return None
        return reply(encode_buffers(response, version))


def _advertised_min(key: int, handler: RawHandler) -> int:
    return PRODUCE_ADVERTISED_MIN if key == ApiKey.PRODUCE else handler.version_min


def _check_version(header: RequestHeader, version_min: int, version_max: int) -> None:
    if not version_min <= header.api_version <= version_max:
        name = ApiKey(header.api_key).name
        raise CloseConnectionError(
            f"{name} version {header.api_version} is not handled, only {version_min} to {version_max}"
        )


def _measured(telemetry: Telemetry, key: int) -> _Measured:
    name = ApiKey(key).name.lower()
    return _Measured(
        telemetry.counter("ponor_kafka_requests_total", api=name),
        telemetry.histogram("ponor_kafka_request_us", api=name),
    )
