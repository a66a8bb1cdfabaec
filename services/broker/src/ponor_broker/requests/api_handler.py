"""What a request handler is: the type that dispatch and every file of `handlers/` share.

Only types, so that no handler imports the dispatcher or another handler.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

from ponor_kafka.api import ApiKey
from ponor_kafka.message import Message

from ponor_broker.requests.connection import ConnectionContext


class WhenFenced(Enum):
    """What becomes of requests of one API while this broker may not answer (`Serving`)."""

    CLOSES = "closes"
    """The connection is closed. The default: an API that says nothing about it never answers with state."""
    REFUSES = "refuses"
    """The handler answers with errors, without waiting, because partitions or the group coordinator refuse it."""
    SETTLES = "settles"
    """As REFUSES for what begins now. What began before is settled by the write-ahead log: its acknowledgement is true whoever leads by then."""


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
    """One API: the versions that are handled (inclusive), by what, and what it does on a fenced broker. `advertised_min` may be lower: see dispatch."""

    key: ApiKey
    version_min: int
    version_max: int
    handle: Handle
    when_fenced: WhenFenced = WhenFenced.CLOSES
