"""The Kafka listeners of one broker: bound ports and the sweep that closes idle connections.

`BrokerSettings` bounds connections, bytes of frames that are arriving or waiting, bytes of requests in
process, bytes of answers that a client has not read, idle time, and time without progress within a request.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Protocol, TypeAlias

from ponor_runtime.clock import Clock
from ponor_runtime.host_port import join_host_port
from ponor_runtime.lifecycle import StartRefusedError
from ponor_runtime.runtime import Runtime
from ponor_runtime.tasks import FailStop
from ponor_runtime.telemetry import Telemetry

from ponor_broker.listener.client_protocol import ClientProtocol, ListenerState, SharedState
from ponor_broker.options import BrokerOptions, ListenerOptions
from ponor_broker.requests.connection import RequestDispatcher
from ponor_broker.requests.request_flow import AnswerBacklog
from ponor_broker.security.tls import TlsConfigurationError, TlsContext
from ponor_broker.settings import BrokerSettings

MAIN_LISTENER: Final = ""
SWEEP_S: Final = 2.0


class Frontend(Protocol):
    """The interface between a broker and its Kafka clients: real sockets, or the simulator.

    It is bound before the broker registers, because the port number is part of the registration. The broker
    calls `serve` when everything else is ready.
    """

    @property
    def port(self) -> int:
        """The port number of the main listener."""
        ...

    @property
    def addresses(self) -> Mapping[str, str]:
        """HOST:PORT, for clients, of each further listener, by its name."""
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
    """Bound ports that accept Kafka clients after `serve`; before that, connections are refused."""

    def __init__(self, shared: SharedState) -> None:
        self._shared = shared
        self._servers: list[asyncio.Server] = []
        self._addresses: dict[str, str] = {}
        self._tls: list[TlsContext] = []
        self._sweeper: asyncio.Task[None] | None = None

    @classmethod
    async def bind(
        cls,
        host: str,
        port: int,
        settings: BrokerSettings,
        *,
        further: Sequence[ListenerOptions] = (),
        backlog: AnswerBacklog,
        clock: Clock,
        telemetry: Telemetry,
        fail_stop: FailStop,
    ) -> KafkaListener:
        """Bind the port (0: any) of the main listener and those of the further ones, so that their numbers
        are available before the broker serves.

        Raises:
            OSError: an address cannot be bound; the message names it.
            StartRefusedError: the certificate of a listener cannot be used.
        """
        listener = cls(SharedState(settings, backlog, clock, telemetry, fail_stop))
        try:
            await listener._open(host, port, ListenerState(listener._shared, MAIN_LISTENER))
            for options in further:
                await listener._open_further(options)
        except BaseException:
            await listener.close()
            raise
        return listener

    async def _open_further(self, options: ListenerOptions) -> None:
        tls: TlsContext | None = None
        if options.tls is not None:
            try:
                tls = TlsContext.load(options.tls)
            except TlsConfigurationError as error:
                raise StartRefusedError(f"listener {options.name}: {error}") from error
            self._tls.append(tls)
        state = ListenerState(self._shared, options.name, tls=tls, mechanisms=options.mechanisms)
        port = await self._open(options.host, options.port, state)
        self._addresses[options.name] = join_host_port(options.client_host, options.advertised_port or port)

    async def _open(self, host: str, port: int, state: ListenerState) -> int:
        loop = asyncio.get_running_loop()
        try:
            server = await loop.create_server(
                lambda: ClientProtocol(state), host, port, backlog=1024, start_serving=False
            )
        except OSError as error:
            raise OSError(
                error.errno,
                f"cannot listen on {host}:{port} ({error.strerror}): stop what uses the port, or choose"
                " another",
            ) from error
        self._servers.append(server)
        return _port_of(server)

    async def serve(self, dispatcher: RequestDispatcher) -> None:
        """Accept clients."""
        self._shared.dispatcher = dispatcher
        for server in self._servers:
            await server.start_serving()
        self._sweeper = asyncio.get_running_loop().create_task(self._sweep(), name="sweep idle connections")

    @property
    def port(self) -> int:
        """The bound port of the main listener."""
        return _port_of(self._servers[0])

    @property
    def addresses(self) -> Mapping[str, str]:
        """HOST:PORT, for clients, of each further listener, by its name."""
        return self._addresses

    @property
    def connections(self) -> int:
        """Number of connected clients."""
        return len(self._shared.connections)

    async def _sweep(self) -> None:
        while True:
            await self._shared.clock.sleep(SWEEP_S)
            now_ns = self._shared.clock.monotonic_ns()
            self._shared.refusals.begin_period()
            for tls in self._tls:
                tls.reload()
            for protocol in list(self._shared.connections):
                protocol.sweep(now_ns)

    async def close(self) -> None:
        """Stop listening and close every connection."""
        for server in self._servers:
            server.close()
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
        OSError: an address cannot be bound; the message names it.
        StartRefusedError: the certificate of a listener cannot be used.
    """
    return await KafkaListener.bind(
        options.kafka_host,
        options.kafka_port,
        settings,
        further=options.listeners,
        backlog=backlog,
        clock=runtime.clock,
        telemetry=runtime.telemetry,
        fail_stop=runtime.fail_stop,
    )


def _port_of(server: asyncio.Server) -> int:
    return int(server.sockets[0].getsockname()[1])
