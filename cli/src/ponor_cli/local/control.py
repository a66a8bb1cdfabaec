"""The control socket between `ponor node` and `ponor up`: one JSON line per request and reply.

Request  {"verb": VERB, "role": ROLE, "id": N, "settings": {NAME: VALUE}}
         VERB is start, stop, kill, add or remove; add has no id, the others no settings
Reply    {"ok": true, "message": "..."} or {"ok": false, "message": "..."}
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from ponor_cli.errors import CommandError
from ponor_cli.local.directory import UNIX_SOCKET_PATH_BYTES_MAX, ClusterDirectory

REQUEST_BYTES_MAX = 4096
NEXT_FREE = -1
"""Number in an "add" request: `ponor up` chooses it. A controller gets a number that no controller had
before, another process the lowest free number of its role.
"""


@dataclass(frozen=True, slots=True)
class ControlRequest:
    """A request to the running `ponor up`."""

    verb: str
    role: str
    number: int
    settings: dict[str, str] = field(default_factory=dict)


ControlHandler: TypeAlias = Callable[[ControlRequest], Awaitable[str]]
"""Executes a request and returns the message of the reply; raises CommandError."""


def socket_path(directory: ClusterDirectory) -> Path:
    """Return the socket's path: in the directory, or under /tmp if that path is too long for the kernel."""
    path = directory.root.resolve() / "control.sock"
    if len(str(path).encode()) <= UNIX_SOCKET_PATH_BYTES_MAX:
        return path
    digest = hashlib.blake2b(str(path).encode(), digest_size=8).hexdigest()
    # Safe under /tmp: only the holder of the data directory's lock creates this socket.
    return Path("/tmp") / f"ponor-{digest}.sock"  # noqa: S108


class ControlServer:
    """Server of the control socket, in `ponor up`."""

    def __init__(self, directory: ClusterDirectory, handler: ControlHandler) -> None:
        self._path = socket_path(directory)
        self._handler = handler
        self._server: asyncio.AbstractServer | None = None

    async def start(self) -> None:
        """Start serving. Replaces an existing socket. The caller holds the directory's lock, so the
        socket must be left from a `ponor up` that was killed.
        """
        self._path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._serve, str(self._path), limit=REQUEST_BYTES_MAX)

    async def close(self) -> None:
        """Stop serving and remove the socket."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
        self._path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = json.loads(await asyncio.wait_for(reader.readline(), 5))
            message = await self._handler(
                ControlRequest(
                    str(request["verb"]),
                    str(request["role"]),
                    int(request.get("id", NEXT_FREE)),
                    {str(name): str(value) for name, value in request.get("settings", {}).items()},
                )
            )
            reply = {"ok": True, "message": message}
        except CommandError as error:
            reply = {"ok": False, "message": str(error)}
        except OSError as error:  # for example a full disk, or a client that sends no request
            reply = {"ok": False, "message": f"`ponor up` failed: {error}"}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            reply = {"ok": False, "message": f"malformed control request: {error!r}"}
        writer.write(json.dumps(reply).encode() + b"\n")
        await writer.drain()
        writer.close()


def send_control(directory: ClusterDirectory, request: ControlRequest, timeout_s: float = 60.0) -> str:
    """Send a request to the running `ponor up` and return the message of its reply.

    Raises:
        CommandError: no `ponor up` answers, or it refuses.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(timeout_s)
        try:
            client.connect(str(socket_path(directory)))
            body = {
                "verb": request.verb,
                "role": request.role,
                "id": request.number,
                "settings": request.settings,
            }
            client.sendall(json.dumps(body).encode() + b"\n")
            reply: dict[str, Any] = json.loads(client.makefile("r").readline())
        except (OSError, ValueError) as error:
            raise CommandError(
                f"no `ponor up` answers for {directory.root}; start it with `ponor up --data"
                f" {directory.root}`"
            ) from error
    if not reply["ok"]:
        raise CommandError(str(reply["message"]))
    return str(reply["message"])
