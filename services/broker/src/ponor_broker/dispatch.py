"""From a request frame to its handler, and from the handler's answer to response buffers.

What lives here: the rules of Kafka's envelope as measured on Apache Kafka 4.3.1 (docs/compatibility.md): which versions are advertised, what an
ApiVersions request of an unknown version gets, and that everything else this broker does not handle closes the connection without an
answer. No sockets: the simulator calls `dispatch` with the bytes of a frame.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
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


class RawHandler(Protocol):
    """Produce, Fetch and Metadata: they read the frame themselves and answer with the body's buffers, at once or later."""

    @property
    def version_min(self) -> int: ...

    @property
    def version_max(self) -> int: ...

    def start(
        self, frame: bytearray, header: RequestHeader
    ) -> list[Buffer] | asyncio.Future[list[Buffer]] | None:
        """Begin the request; None: it has no answer."""
        ...


class AdvertisedApi(NamedTuple):
    """One row of an ApiVersions answer."""

    key: int
    version_min: int
    version_max: int


class _Measured(NamedTuple):
    requests: Counter
    duration: Histogram


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
        started_ns = self._clock.monotonic_ns()
        raw = self._raw.get(header.api_key)
        if raw is not None:
            _check_version(header, raw.version_min, raw.version_max)
            return self._dispatch_raw(raw, frame, header, started_ns)
        handler = self._handlers.get(header.api_key)
        if handler is None:
            raise CloseConnectionError(f"API {ApiKey(header.api_key).name} is not handled by this broker")
        if header.api_key != ApiKey.API_VERSIONS:
            _check_version(header, handler.version_min, handler.version_max)
        return asyncio.get_running_loop().create_task(
            self._handle(handler, frame, header, connection, started_ns), name=handler.key.name
        )

    def _dispatch_raw(
        self, raw: RawHandler, frame: bytearray, header: RequestHeader, started_ns: int
    ) -> Response | asyncio.Future[Response]:
        answer = raw.start(frame, header)
        if answer is None:
            self._note(header, started_ns)
            return None
        if not isinstance(answer, asyncio.Future):
            return self._framed(header, answer, started_ns)
        response: asyncio.Future[Response] = asyncio.get_running_loop().create_future()

        def finish(done: asyncio.Future[list[Buffer]]) -> None:
            if response.done():
                return
            if done.cancelled():
                response.cancel()
            elif (error := done.exception()) is not None:
                response.set_exception(error)
            else:
                response.set_result(self._framed(header, done.result(), started_ns))

        answer.add_done_callback(finish)
        response.add_done_callback(lambda ended: answer.cancel() if ended.cancelled() else None)
        return response

    async def _handle(
        self,
        handler: ApiHandler,
        frame: bytearray,
        header: RequestHeader,
        connection: ConnectionContext,
        started_ns: int,
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
            self._note(header, started_ns)
            return None
        return self._framed(header, encode_buffers(response, version), started_ns)

    def _framed(self, header: RequestHeader, body: list[Buffer], started_ns: int) -> list[Buffer]:
        self._note(header, started_ns)
        return encode_response_frame(header.api_key, header.api_version, header.correlation_id, body)

    def _note(self, header: RequestHeader, started_ns: int) -> None:
        measured = self._measured[header.api_key]
        measured.requests.add()
        measured.duration.record((self._clock.monotonic_ns() - started_ns) // 1000)


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
