"""The Kafka port of a simulated broker: `ponor_broker.app.Frontend` on the simulated network.

It replaces the socket listener: one request is one frame, answers return in order, and a broker
that stops reading stalls the client. Everything from `ClientConnection` on is the shipped broker.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from ponor_broker.options import BrokerOptions
from ponor_broker.requests.connection import ClientConnection, ConnectionContext, RequestDispatcher
from ponor_broker.requests.request_flow import AnswerBacklog, RequestFlow
from ponor_broker.settings import BrokerSettings
from ponor_runtime.budgets import ByteBudget
from ponor_runtime.disk import Buffer
from ponor_runtime.network import Connection, ConnectionClosedError, Listener
from ponor_runtime.runtime import Runtime

KAFKA: Final = "kafka"
"""Method name of Kafka connections on the simulated network."""
LENGTH_BYTES: Final = 4
UNSENT_BYTES_MAX: Final = 1 << 20
"""Maximum bytes of answers that the client has not received; at this bound the broker starts no new request.
"""


class SimFrontend:
    """The Kafka listener of one life of a broker."""

    def __init__(self, runtime: Runtime, settings: BrokerSettings, options: BrokerOptions) -> None:
        self._runtime = runtime
        self._host = options.kafka_host
        self._port = options.kafka_port
        self._flow = RequestFlow(
            runtime.clock,
            in_flight=ByteBudget(
                "in-flight bytes", settings.in_flight_bytes_max, waiters_max=settings.connections_max
            ),
            waiting=ByteBudget(
                "receive bytes", settings.receive_bytes_max, waiters_max=settings.connections_max
            ),
        )
        self._listener: Listener | None = None
        self._dispatcher: RequestDispatcher | None = None

    @property
    def port(self) -> int:
        return self._port

    @property
    def addresses(self) -> Mapping[str, str]:
        return {}

    async def serve(self, dispatcher: RequestDispatcher) -> None:
        self._dispatcher = dispatcher
        address = f"{self._host}:{self._port}"
        self._listener = await self._runtime.network.listen(address, {KAFKA: self._handle})

    async def close(self) -> None:
        if self._listener is not None:
            await self._listener.close()

    async def _handle(self, connection: Connection) -> None:
        assert self._dispatcher is not None
        client = _Client(self._runtime, connection, self._dispatcher, self._flow)
        await client.converse()


class _Client:
    """The broker's side of one connection: `ConnectionOutput`."""

    def __init__(
        self,
        runtime: Runtime,
        connection: Connection,
        dispatcher: RequestDispatcher,
        flow: RequestFlow,
    ) -> None:
        self._runtime = runtime
        self._wire = connection
        self._requests = ClientConnection(dispatcher, self, ConnectionContext("client:1"), flow)
        self._unsent: deque[bytes] = deque()
        self._unsent_bytes = 0
        self._has_unsent = asyncio.Event()
        self._welcome = asyncio.Event()
        self._welcome.set()
        self._ended = asyncio.Event()

    async def converse(self) -> None:
        """Serve until either side closes."""
        loop = asyncio.get_running_loop()
        parts = [loop.create_task(part) for part in (self._read(), self._write(), self._ended.wait())]
        try:
            await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._requests.closed()
            for part in parts:
                part.cancel()

    async def _read(self) -> None:
        with suppress(ConnectionClosedError):
            while True:
                await self._welcome.wait()
                self._requests.frames_received([bytearray(await self._wire.receive())])

    async def _write(self) -> None:
        with suppress(ConnectionClosedError):
            while True:
                while self._unsent:
                    frame = self._unsent.popleft()
                    await self._wire.send(frame)
                    self._unsent_bytes -= len(frame)
                    if self._unsent_bytes < UNSENT_BYTES_MAX:
                        self._requests.set_writable(writable=True)
                self._has_unsent.clear()
                await self._has_unsent.wait()

    # ConnectionOutput

    def send(self, buffers: Sequence[Buffer]) -> None:
        frames = b"".join(buffers)
        at = 0
        while at < len(frames):
            begin = at + LENGTH_BYTES
            at = begin + int.from_bytes(frames[at:begin], "big")
            self._unsent.append(frames[begin:at])
            self._unsent_bytes += at - begin
        self._has_unsent.set()
        if self._unsent_bytes >= UNSENT_BYTES_MAX:
            self._requests.set_writable(writable=False)

    def want_reading(self, *, wanted: bool) -> None:
        if wanted:
            self._welcome.set()
        else:
            self._welcome.clear()

    def end(self, reason: str | BaseException) -> None:
        self._ended.set()
        if isinstance(reason, BaseException):
            # A real listener closes the connection and logs. A simulated run must fail instead.
            self._runtime.fail_stop("a request", reason)


async def bind_simulated(
    runtime: Runtime, settings: BrokerSettings, options: BrokerOptions, backlog: AnswerBacklog
) -> SimFrontend:
    """The `bind` argument of `ponor_broker.app.run`."""
    del backlog  # the network's window bounds waiting frames
    return SimFrontend(runtime, settings, options)
