"""The tracing port. It does not import OpenTelemetry, so neither the hot path nor the simulator loads it.

`trace_recording` implements it.

Asynchronous work has a current span in a context variable, which tasks inherit. The synchronous hot path uses
`Telemetry.request`, a plain attribute that is None unless a sampled request is being received. It is not a
context variable, because callbacks inherit context variables: every task that an append wakes would become
part of the append's trace.

Processes propagate a context as a W3C `traceparent` (https://www.w3.org/TR/trace-context/).
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
"""Maximum number of links of one span; further links are dropped."""


class SpanKind(enum.Enum):
    """Side of a call that a span describes."""

    INTERNAL = "internal"
    SERVER = "server"
    CLIENT = "client"


@dataclass(frozen=True, slots=True)
class TraceContext:
    """Identity of a sampled span. Unsampled spans have no context."""

    trace_id: int
    span_id: int

    @property
    def traceparent(self) -> str:
        """The `traceparent` header value."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{_SAMPLED:02x}"

    @classmethod
    def parse(cls, traceparent: str) -> TraceContext | None:
        """Parse a `traceparent`; None if it is malformed or not sampled, as the standard requires."""
        match = _TRACEPARENT.fullmatch(traceparent)
        if match is None or not int(match[3], 16) & _SAMPLED:
            return None
        trace_id, span_id = int(match[1], 16), int(match[2], 16)
        return cls(trace_id, span_id) if trace_id and span_id else None


class Span(Protocol):
    """A span being recorded. Times are monotonic nanoseconds; None means now."""

    @property
    def context(self) -> TraceContext:
        """Identity for children, links and other processes."""
        ...

    def set(self, attributes: Attributes) -> None:
        """Add attributes."""
        ...

    def step(
        self,
        name: str,
        started_ns: int,
        attributes: Attributes | None = None,
        *,
        ended_ns: int | None = None,
    ) -> None:
        """Record a child span that has already ended."""
        ...

    def end(self, *, error: str | None = None) -> None:
        """End the span; `error` is the type of the error if the work failed. Idempotent."""
        ...


class Tracing(Protocol):
    """Factory of spans. `Telemetry.tracing` is None in a process without tracing."""

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
        """Start a span without making it current; None if not sampled. Without a parent it starts a trace.

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
        """Start a span below `parent`, or a new trace without a parent. The span is current inside the block.

        An exception in the block becomes the span's error.
        """
        ...

    def current(self) -> TraceContext | None:
        """Current span of this task; None if there is none or it is not sampled."""
        ...

    def inside(self, span: Span) -> contextvars.Context:
        """Return a context for a new task in which `span` is current."""
        ...
