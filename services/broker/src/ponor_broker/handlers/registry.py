"""What a request handler is: the type that dispatch and every file of `handlers/` share.

What lives here: types alone, so that no handler imports the dispatcher or another handler.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from ponor_kafka.api import ApiKey
from ponor_kafka.message import Message

from ponor_broker.connection import ConnectionContext


@dataclass(frozen=True, slots=True)
class RequestContext:
    """What a handler knows beside the request."""

    api_version: int
    client_id: str | None
    connection: ConnectionContext

    @property
    def client_host(self) -> str:
        """Address of the client without its port."""
        return self.connection.host


Handle: TypeAlias = Callable[[Any, RequestContext], Awaitable[Message | None]]
"""From a decoded request to the response message; None: no answer is sent."""


@dataclass(frozen=True, slots=True)
class ApiHandler:
    """One API: the versions that are handled (inclusive), and by what. `advertised_min` may be lower: see dispatch."""

    key: ApiKey
    version_min: int
    version_max: int
    handle: Handle
