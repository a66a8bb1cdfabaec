"""The tracing port: what service code says about a request that somebody follows.

What lives here: types without OpenTelemetry, so that the hot path imports nothing and the simulator needs nothing. `trace_recording` fulfils them.
Two ways to carry a trace on: asynchronous work has a current span (a context variable that tasks inherit), the synchronous hot path has
`Telemetry.request`, a plain attribute that is None unless a sampled request is being taken in right now. The second is not a context
variable because callbacks inherit those: whatever an append wakes would become part of the append's trace.

Between processes a context travels as a W3C `traceparent` (https://www.w3.org/TR/trace-context/).
"""

from __future__ import annotations

import contextvars
import enum
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

AttributeValue: TypeAlias = str | int | bool | Sequence[str]
Attributes: TypeAlias = Mapping[str, AttributeValue]
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
_SAMPLED: Final = 1
LINKS_MAX: Final = 32
"""Links of one span; what came after the first so many is not named."""


class SpanKind(enum.Enum):
    """Whose side of a call a span tells of."""

    INTERNAL = "internal"
    SERVER = "server"
    CLIENT = "client"


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A span that is being recorded, as others name it. What is not sampled has no context."""

    trace_id: int
    span_id: int

    @property
    def traceparent(self) -> str:
        """As W3C Trace Context writes it."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{_SAMPLED:02x}"

    @classmethod
    def parse(cls, traceparent: str) -> TraceContext | None:
        """The context of a `traceparent`; None when it is malformed or not sampled, as the standard asks."""
        match = _TRACEPARENT.fullmatch(traceparent)
        if match is None or not int(match[3], 16) & _SAMPLED:
            return None
        trace_id, span_id = int(match[1], 16), int(match[2], 16)
        return cls(trace_id, span_id) if trace_id and span_id else None


class Span(Protocol):
    """A piece of work that is being recorded. Instants are of the monotonic clock, in nanoseconds; None means now."""

    @property
    def context(self) -> TraceContext:
        """Its name for others."""
        ...

    def set(self, attributes: Attributes) -> None:
        """Add what is known by now."""
        ...

    def step(
        self,
        name: str,
        started_ns: int,
        attributes: Attributes | None = None,
        *,
        ended_ns: int | None = None,
    ) -> None:
        """Record a child that is over already."""
        ...

    def end(self, *, error: str | None = None) -> None:
        """Over; with the error's type if it failed. Idempotent."""
        ...


class Tracing(Protocol):
    """Where spans come from. A process without tracing has none (`Telemetry.tracing` is None)."""

    def begin(
        self,
        name: str,
        attributes: Attributes | None = None,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        parent: TraceContext | None = None,
        links: Sequence[TraceContext] = (),
        started_ns: int | None = None,
    ) -> Span | None:
        """Begin a span that is nobody's current one; None when it is not sampled. Without a parent it begins a trace.

        Raises:
            TelemetryNameError: the name is not in the registry.
        """
        ...

    def span(
        self,
        name: str,
        attributes: Attributes | None = None,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        parent: TraceContext | None = None,
        links: Sequence[TraceContext] = (),
    ) -> AbstractContextManager[Span | None]:
        """Begin a span below `parent`, or a trace; it is current inside of the block. An exception is its error."""
        ...

    def current(self) -> TraceContext | None:
        """The current span of this task; None when there is none, or it is not sampled."""
        ...

    def inside(self, span: Span) -> contextvars.Context:
        """A context for a new task whose current span is this one."""
        ...
