"""HTTP endpoint of a service: `/metrics`, `/livez` and `/readyz`.

It runs on its own threads, so it answers even if the event loop is blocked.
"""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from ponor_runtime.health import Verdict

REQUESTS_MAX: Final = 16
"""Maximum number of concurrent requests; further connections are closed."""
REQUEST_S_MAX: Final = 5.0
"""A client that is silent for longer is disconnected."""

Application: TypeAlias = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def route(metrics: Application, probes: Mapping[str, Callable[[], Verdict]]) -> Application:
    """Return an application that serves `/metrics` and the probes by path; any other path is 404."""

    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = str(environ.get("PATH_INFO", ""))
        if path == "/metrics":
            return metrics(environ, start_response)
        probe = probes.get(path)
        if probe is None:
            known = ", ".join(("/metrics", *probes))
            return _answer(start_response, "404 Not Found", (f"{path}: not found; known are {known}",))
        verdict = probe()
        return _answer(
            start_response, "200 OK" if verdict.is_good else "503 Service Unavailable", verdict.lines
        )

    return application


def _answer(start_response: Callable[..., Any], status: str, lines: Iterable[str]) -> Iterable[bytes]:
    body = "".join(f"{line}\n" for line in lines).encode()
    start_response(
        status, [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body)))]
    )
    return (body,)


class ProbeServer(socketserver.ThreadingMixIn, WSGIServer):
    """HTTP server with one thread per request, at most `REQUESTS_MAX`."""

    daemon_threads = True
    request_queue_size = 2 * REQUESTS_MAX

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._slots = threading.BoundedSemaphore(REQUESTS_MAX)
        super().__init__(*args, **kwargs)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer on a new thread, or close the connection at the limit."""
        if not self._slots.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._slots.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer on this thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def server_bind(self) -> None:
        """Bind without a lookup of the host's name, which can take seconds."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore disconnected clients."""


class _ProbeServer6(ProbeServer):
    address_family = socket.AF_INET6


class _QuietHandler(WSGIRequestHandler):
    timeout = REQUEST_S_MAX

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is the base class's
        """Do not log requests."""


def serve_probes(application: Application, host: str, port: int) -> ProbeServer:
    """Bind and serve on a thread; port 0 takes any free port.

    Raises:
        OSError: the address cannot be bound.
    """
    kind = _ProbeServer6 if ":" in host else ProbeServer
    server = make_server(host, port, application, server_class=kind, handler_class=_QuietHandler)
    threading.Thread(target=server.serve_forever, name="probes", daemon=True).start()
    return server
