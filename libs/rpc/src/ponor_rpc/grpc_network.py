"""The network port over gRPC: servers, channels and their options.

Every connection is one bidirectional call, so any gRPC client can talk to the services. Frames are opaque
bytes.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import grpc
import grpc.aio
from ponor_runtime.health import Health
from ponor_runtime.network import FRAME_BYTES_MAX, Connection, ConnectionClosedError, Handler, Listener
from ponor_runtime.tasks import FailStop, report_to_loop

from ponor_rpc.frame_stream import CLOSE_GRACE_SECONDS, ClientStream, ServerStream
from ponor_rpc.health import health_handler
from ponor_rpc.methods import HEALTH_CHECK
from ponor_rpc.tls import TlsFiles

COMMON_OPTIONS: Final[tuple[tuple[str, Any], ...]] = (
    ("grpc.max_send_message_length", FRAME_BYTES_MAX),
    ("grpc.max_receive_message_length", FRAME_BYTES_MAX),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)
SERVER_OPTIONS: Final = (
    *COMMON_OPTIONS,
    # With SO_REUSEPORT two processes could bind one port and share the calls; binding a used port must fail.
    ("grpc.so_reuseport", 0),
    # Must be less than the clients' ping interval; otherwise the server answers pings with GOAWAY
    # "too_many_pings".
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    # A client that was suspended sends its overdue pings in a burst. The server must not end the connection
    # for that.
    ("grpc.http2.max_ping_strikes", 0),
)
CHANNEL_OPTIONS: Final = (
    *COMMON_OPTIONS,
    # Callers have their own backoff. An HTTP proxy in the environment is ignored, because connections stay in
    # the cluster.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
)
HANDLER_STOP_SECONDS: Final = 1.0
"""How long a closing listener waits for handlers to return before it cancels them."""


class GrpcNetwork:
    """`Network` over gRPC. Connections to one address share a channel, which is closed with the last of
    them.
    """

    def __init__(
        self,
        *,
        fail_stop: FailStop = report_to_loop,
        tls: TlsFiles | None = None,
        health: Health | None = None,
    ) -> None:
        self._fail_stop = fail_stop
        self._tls = tls
        self._serves: Callable[[str], bool] = health.serves if health is not None else lambda _: True
        self._channels: dict[str, _SharedChannel] = {}
        self._listeners: list[GrpcListener] = []

    @classmethod
    def reporting(cls, health: Health) -> GrpcNetwork:
        """Create the network of a service process; its gRPC health service reports `health`."""
        return cls(health=health)

    async def connect(self, address: str, method: str) -> Connection:
        """Open a connection; returns before the connection to the peer is established."""
        shared = self._channels.get(address)
        if shared is None:
            shared = _SharedChannel(self._channel(address))
            self._channels[address] = shared
        shared.users += 1
        # No serializers: frames are already bytes.
        call: grpc.aio.StreamStreamCall[bytes, bytes] = shared.channel.stream_stream(method)()
        return ClientStream(call, address, lambda: self._release(address, shared))

    def _channel(self, address: str) -> grpc.aio.Channel:
        if self._tls is None:
            return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        credentials = self._tls.channel_credentials()
        return grpc.aio.secure_channel(address, credentials, options=CHANNEL_OPTIONS)

    async def _release(self, address: str, shared: _SharedChannel) -> None:
        shared.users -= 1
        if shared.users == 0:
            if self._channels.get(address) is shared:
                del self._channels[address]
            await shared.channel.close()

    async def listen(self, address: str, handlers: Mapping[str, Handler]) -> Listener:
        """Serve `handlers` and health checks."""
        listener = GrpcListener(dict(handlers), self._fail_stop, self._tls, self._serves)
        await listener.start(address)
        self._listeners.append(listener)
        return listener

    async def close(self) -> None:
        """Close every open listener and channel. Idempotent."""
        for listener in self._listeners:
            await listener.close()
        self._listeners.clear()
        for shared in list(self._channels.values()):
            await shared.channel.close()
        self._channels.clear()


@dataclass(slots=True)
class _SharedChannel:
    channel: grpc.aio.Channel
    users: int = 0


class GrpcListener(grpc.GenericRpcHandler):
    """`Listener` on a gRPC server; every method is a handler of connections."""

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        fail_stop: FailStop,
        tls: TlsFiles | None,
        serves: Callable[[str], bool],
    ) -> None:
        self._fail_stop = fail_stop
        self._tls = tls
        self._methods = {path: self._method(handler) for path, handler in handlers.items()}
        self._methods[HEALTH_CHECK] = health_handler(handlers, serves)
        # Dicts and not sets, so that connections are closed in the order of arrival.
        self._connections: dict[ServerStream, None] = {}
        self._handler_tasks: dict[asyncio.Task[None], None] = {}
        self._server: grpc.aio.Server | None = None
        self._closing = False
        self._address = ""

    @property
    def address(self) -> str:
        return self._address

    async def start(self, address: str) -> None:
        """Bind and serve.

        Raises:
            OSError: the address cannot be bound.
        """
        server = grpc.aio.server(options=SERVER_OPTIONS)
        server.add_generic_rpc_handlers((self,))
        try:
            if self._tls is None:
                port = server.add_insecure_port(address)
            else:
                port = server.add_secure_port(address, self._tls.server_credentials())
        except RuntimeError as error:
            await server.stop(None)
            raise OSError(
                errno.EADDRINUSE,
                f"cannot listen on {address}: another process uses the port, or this machine does"
                f" not have the address ({error})",
            ) from None
        await server.start()
        self._server = server
        self._address = f"{address.rpartition(':')[0]}:{port}"

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        """Find the handler of a call (called by gRPC); None makes gRPC answer UNIMPLEMENTED."""
        return self._methods.get(str(handler_call_details.method))

    def _method(self, handler: Handler) -> grpc.RpcMethodHandler[bytes, bytes]:
        async def serve(_requests: object, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
            await self._serve(handler, context)

        return grpc.stream_stream_rpc_method_handler(serve)

    async def _serve(self, handler: Handler, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        """Serve one call until its status is sent."""
        # The handler runs in its own task. gRPC cancels this task when the peer is gone. The handler must see
        # this as the end of its connection, not as its own cancellation.
        if self._closing:
            return
        connection = ServerStream(context)
        self._connections[connection] = None
        task = asyncio.get_running_loop().create_task(self._handle(handler, connection), name="rpc-handler")
        self._handler_tasks[task] = None
        task.add_done_callback(self._handler_tasks.pop)
        try:
            await connection.over.wait()
        finally:
            connection.end("closed by the peer")
            del self._connections[connection]
            await connection.settle()

    async def _handle(self, handler: Handler, connection: ServerStream) -> None:
        try:
            await handler(connection)
        except ConnectionClosedError:
            pass  # the normal end of most connections
        except Exception as error:  # noqa: BLE001 -- a bug in a handler ends the process, not only this call
            self._fail_stop("rpc handler", error)
        finally:
            connection.end("closed on this side")

    async def close(self) -> None:
        if self._closing or self._server is None:
            return
        self._closing = True
        for connection in list(self._connections):
            connection.end("the listener was closed")
        tasks = list(self._handler_tasks)
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=HANDLER_STOP_SECONDS)
            for task in late:
                task.cancel()
            await asyncio.wait(tasks)
        await self._server.stop(CLOSE_GRACE_SECONDS)
