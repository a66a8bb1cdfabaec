"""The tracing port on OpenTelemetry, loaded only by a process that exports spans.

The sampler decides once, at the root of a trace; child spans, also in other processes, use that decision.
"""

from __future__ import annotations

import contextvars
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context, attach
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, Status, StatusCode, TraceFlags

from ponor_runtime.telemetry import TelemetryNameError
from ponor_runtime.telemetry_names import SPANS
from ponor_runtime.tracing import LINKS_MAX, Attributes, Span, SpanKind, TraceContext

_KINDS: Final = {
    SpanKind.INTERNAL: trace.SpanKind.INTERNAL,
    SpanKind.SERVER: trace.SpanKind.SERVER,
    SpanKind.CLIENT: trace.SpanKind.CLIENT,
}


class RecordedTracing:
    """`Tracing` on an OpenTelemetry tracer."""

    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer
        # Spans need wall-clock times. A fixed offset to the monotonic clock keeps them in order.
        self._epoch_ns: Final = time.time_ns() - time.monotonic_ns()

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
        span = self._start(name, attributes, kind, parent, links, started_ns)
        return RecordedSpan(self, span) if span.get_span_context().trace_flags.sampled else None

    @contextmanager
    def span(
        self,
        name: str,
        attributes: Attributes | None = None,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        parent: TraceContext | None = None,
        links: Sequence[TraceContext] = (),
    ) -> Iterator[Span | None]:
        raw = self._start(name, attributes, kind, parent, links, None)
        span = RecordedSpan(self, raw) if raw.get_span_context().trace_flags.sampled else None
        error: str | None = None
        try:
            with trace.use_span(
                raw, end_on_exit=False, record_exception=False, set_status_on_exception=False
            ):
                yield span
        except BaseException as failure:
            error = type(failure).__qualname__
            raise
        finally:
            if span is not None:
                span.end(error=error)

    def current(self) -> TraceContext | None:
        return _named(trace.get_current_span().get_span_context())

    def inside(self, span: Span) -> contextvars.Context:
        context = contextvars.copy_context()
        context.run(attach, _below(span.context))
        return context

    def wall_ns(self, monotonic_ns: int | None) -> int | None:
        """Convert a monotonic time to the wall-clock time of a span."""
        return None if monotonic_ns is None else monotonic_ns + self._epoch_ns

    def _start(
        self,
        name: str,
        attributes: Attributes | None,
        kind: SpanKind,
        parent: TraceContext | None,
        links: Sequence[TraceContext],
        started_ns: int | None,
    ) -> trace.Span:
        if name not in SPANS:
            raise TelemetryNameError(
                f"span {name!r} is not in ponor_runtime.telemetry_names.SPANS: add a row"
            )
        return self._tracer.start_span(
            name,
            context=_below(parent),
            kind=_KINDS[kind],
            attributes=attributes,
            links=[Link(_foreign(link)) for link in links[:LINKS_MAX]],
            start_time=self.wall_ns(started_ns),
        )


class RecordedSpan:
    """`Span` on an OpenTelemetry span."""

    __slots__ = ("_ended", "_span", "_tracing", "context")

    def __init__(self, tracing: RecordedTracing, span: trace.Span) -> None:
        self._tracing = tracing
        self._span = span
        self._ended = False
        context = span.get_span_context()
        self.context = TraceContext(context.trace_id, context.span_id)

    def set(self, attributes: Attributes) -> None:
        self._span.set_attributes(dict(attributes))

    def step(
        self,
        name: str,
        started_ns: int,
        attributes: Attributes | None = None,
        *,
        ended_ns: int | None = None,
    ) -> None:
        tracing = self._tracing
        child = tracing.begin(name, attributes, parent=self.context, started_ns=started_ns)
        if isinstance(child, RecordedSpan):
            child.finish(tracing.wall_ns(time.monotonic_ns() if ended_ns is None else ended_ns))

    def end(self, *, error: str | None = None) -> None:
        if not self._ended and error is not None:
            self._span.set_attribute("error.type", error)
            self._span.set_status(Status(StatusCode.ERROR, error))
        self.finish(self._tracing.wall_ns(time.monotonic_ns()))

    def finish(self, wall_ns: int | None) -> None:
        """End the span at a wall-clock time. Idempotent."""
        if not self._ended:
            self._ended = True
            self._span.end(wall_ns)


def _named(context: SpanContext) -> TraceContext | None:
    if not context.is_valid or not context.trace_flags.sampled:
        return None
    return TraceContext(context.trace_id, context.span_id)


def _foreign(context: TraceContext) -> SpanContext:
    return SpanContext(
        context.trace_id, context.span_id, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED)
    )


def _below(parent: TraceContext | None) -> Context:
    """Return a context in which a new span is a child of `parent`, or the root of a trace."""
    if parent is None:
        return Context()
    return trace.set_span_in_context(NonRecordingSpan(_foreign(parent)), Context())
