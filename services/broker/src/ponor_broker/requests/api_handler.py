"""The handler of one API: the types that the dispatcher and all of `handlers/` share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

from ponor_kafka.api import ApiKey
from ponor_kafka.message import Message

from ponor_broker.requests.connection import ConnectionContext


class WhenFenced(Enum):
    """Treatment of an API's requests while this broker must not answer (`Serving`)."""

    CLOSES = "closes"
    """The connection is closed. The default: the API has no error answer."""
    REFUSES = "refuses"
    """The handler is called and answers with errors immediately: partitions and coordinators refuse work."""
    SETTLES = "settles"
    """New requests are handled as with REFUSES. Requests that started before get the result of their
    append to the write-ahead log: a durable append stays valid under a new leader."""


def _keep(kept_bytes: int) -> None:
    """Keep the frame."""
    del kept_bytes


@dataclass(frozen=True, slots=True)
class RequestContext:
    """Context of a request beyond its body."""

    api_version: int
    client_id: str | None
    connection: ConnectionContext
    free: Callable[[int], None] = _keep
    """Frees the frame of a large request and the bytes charged for it. Handlers call it before a wait whose
    length the client chooses. The argument: bytes that stay in memory and that no other bound counts."""


Handle: TypeAlias = Callable[[Any, RequestContext], Awaitable[Message | None]]
"""Handles a decoded request and returns the response message; None: no answer is sent."""


@dataclass(frozen=True, slots=True)
class ApiHandler:
    """One API: its handled versions (inclusive), its handler, and its behaviour on a fenced broker."""

    key: ApiKey
    version_min: int
    version_max: int
    handle: Handle
    when_fenced: WhenFenced = WhenFenced.CLOSES
