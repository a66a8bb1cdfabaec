"""Schema registry for tests: a small HTTP server on the loopback device, in place of an external system.

It gives the answers that readers need over real sockets, and fails on request. The test packages include no
real registry.
"""

from __future__ import annotations

import base64
import json
import threading
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit


class RegistryServer:
    """Subjects and their schemas, with ids from 1. `failures`: HTTP statuses of the next responses."""

    def __init__(self) -> None:
        self.schemas: dict[int, dict[str, Any]] = {}
        self.subjects: dict[str, list[int]] = {}
        self.serialized: dict[int, bytes] = {}
        self.asked: Counter[str] = Counter()
        self.failures: deque[int] = deque()
        self.auth = ""
        self.url = ""

    def register(
        self,
        subject: str,
        schema: str,
        kind: str = "AVRO",
        references: list[dict[str, Any]] | None = None,
        serialized: bytes = b"",
    ) -> int:
        number = len(self.schemas) + 1
        self.schemas[number] = (
            {"schema": schema}
            | ({"schemaType": kind} if kind != "AVRO" else {})
            | ({"references": references} if references else {})
        )
        self.subjects.setdefault(subject, []).append(number)
        if serialized:
            self.serialized[number] = serialized
        return number

    def answer(self, target: str, auth: str) -> tuple[int, dict[str, Any]]:
        self.asked[target] += 1
        if self.failures:
            return self.failures.popleft(), {"error_code": 50001}
        if self.auth and auth != "Basic " + base64.b64encode(self.auth.encode()).decode():
            return 401, {"error_code": 401}
        parts = urlsplit(target)
        match parts.path.strip("/").split("/"):
            case ["schemas", "ids", number] if int(number) in self.schemas:
                found = dict(self.schemas[int(number)])
                if parse_qs(parts.query).get("format") == ["serialized"] and int(number) in self.serialized:
                    found["schema"] = base64.b64encode(self.serialized[int(number)]).decode()
                return 200, found
            case ["subjects", subject, "versions", version] if unquote(subject) in self.subjects:
                numbers = self.subjects[unquote(subject)]
                at = len(numbers) if version == "latest" else int(version)
                return 200, {
                    "subject": unquote(subject),
                    "id": numbers[at - 1],
                    "version": at,
                    **self.schemas[numbers[at - 1]],
                }
        return 404, {"error_code": 40403, "message": "not found"}


@contextmanager
def registry_server() -> Iterator[RegistryServer]:
    """Run a registry for the duration of the context."""
    registry = RegistryServer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, content = registry.answer(self.path, self.headers.get("Authorization", ""))
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Suppress the log."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    registry.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
