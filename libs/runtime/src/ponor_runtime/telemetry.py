"""Telemetry instruments under the names of one registry (`telemetry_names`).

Instruments are plain Python numbers that the hot path increments. Exporters (`telemetry_export`) read them by
callback, so telemetry costs nothing while no exporter runs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, TypeAlias

from ponor_runtime.telemetry_names import METRICS, Metric, MetricKind
from ponor_runtime.tracing import Attributes, Span, SpanKind, TraceContext, Tracing

LabelValues: TypeAlias = tuple[str, ...]
"""Values in the order of the registry's label names."""

NO_SPAN: Final[AbstractContextManager[Any]] = nullcontext()


class TelemetryNameError(LookupError):
    """A name or label is not in the registry, or belongs to another kind of metric."""


class Counter:
    """A monotonically increasing number."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def add(self, amount: int = 1) -> None:
        """Add `amount`."""
        self.value += amount


class Histogram:
    """Counts by bucket; `bounds` are inclusive upper bounds, the last bucket is unbounded."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[int, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0

    def record(self, value: int) -> None:
        """Record one value, in the unit of the registry."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Telemetry:
    """The instruments of one process.

    The same name and labels return the same instrument. Label values must come from small fixed sets, never
    from topic, client or group names.

    Attributes:
        tracing: receives spans; None while tracing is off.
        request: the sampled request whose synchronous part runs now; almost always None. The hot path checks
            only this attribute.
    """

    def __init__(self) -> None:
        self._counters: dict[tuple[str, LabelValues], Counter] = {}
        self._histograms: dict[tuple[str, LabelValues], Histogram] = {}
        self._calculated: dict[tuple[str, LabelValues], Callable[[], float]] = {}
        self._gauges: dict[tuple[str, LabelValues], Callable[[], float]] = {}
        self.tracing: Tracing | None = None
        self.request: Span | None = None

    def counter(self, name: str, **labels: str) -> Counter:
        """Return the counter with this name and these labels.

        Raises:
            TelemetryNameError: not in the registry.
        """
        _, values = _lookup(name, MetricKind.COUNTER, labels)
        return self._counters.setdefault((name, values), Counter())

    def calculated_counter(self, name: str, callback: Callable[[], float], **labels: str) -> None:
        """Register a callback as the value of a counter; it must never decrease.

        A second call replaces the first.

        The callback runs on the exporter's thread and must only read a number.

        Raises:
            TelemetryNameError: not in the registry.
        """
        _, values = _lookup(name, MetricKind.COUNTER, labels)
        self._calculated[(name, values)] = callback

    def histogram(self, name: str, **labels: str) -> Histogram:
        """Return the histogram with this name and these labels.

        Raises:
            TelemetryNameError: not in the registry.
        """
        metric, values = _lookup(name, MetricKind.HISTOGRAM, labels)
        return self._histograms.setdefault((name, values), Histogram(metric.buckets))

    def gauge(self, name: str, callback: Callable[[], float], **labels: str) -> None:
        """Register a callback as the value of a gauge; a second call replaces the first.

        The callback runs on the exporter's thread and must only read a number.

        Raises:
            TelemetryNameError: not in the registry.
        """
        _, values = _lookup(name, MetricKind.GAUGE, labels)
        self._gauges[(name, values)] = callback

    def span(
        self, name: str, attributes: Attributes | None = None, *, kind: SpanKind = SpanKind.INTERNAL
    ) -> AbstractContextManager[Any]:
        """Return a context manager for a child span of the current span.

        Raises:
            TelemetryNameError: tracing is on and the name is not in the registry.
        """
        tracing = self.tracing
        if tracing is None:
            return NO_SPAN
        return tracing.span(name, attributes, kind=kind, parent=tracing.current())

    def step(
        self, name: str, attributes: Attributes | None = None, *, kind: SpanKind = SpanKind.INTERNAL
    ) -> AbstractContextManager[Any]:
        """Like `span`, but only inside a trace: never starts a new trace."""
        tracing = self.tracing
        if tracing is None or (parent := tracing.current()) is None:
            return NO_SPAN
        return tracing.span(name, attributes, kind=kind, parent=parent)

    def continued(
        self, name: str, origins: Sequence[TraceContext], attributes: Attributes | None = None
    ) -> AbstractContextManager[Any]:
        """Return a span for deferred work: it is in the trace of the first origin and linked to all origins.

        Without origins, the span starts a new trace.
        """
        tracing = self.tracing
        if tracing is None:
            return NO_SPAN
        return tracing.span(name, attributes, parent=origins[0] if origins else None, links=origins)

    def counters(self, name: str) -> Iterator[tuple[LabelValues, int]]:
        """Yield label values and value of every incremented counter of a name. Thread-safe."""
        for (known, values), counter in list(self._counters.items()):
            if known == name:
                yield values, counter.value

    def totals(self, name: str) -> Iterator[tuple[LabelValues, float]]:
        """Yield label values and value of every counter of a name, callbacks included. Thread-safe."""
        yield from self.counters(name)
        for (known, values), callback in list(self._calculated.items()):
            if known == name:
                yield values, callback()

    def gauges(self, name: str) -> Iterator[tuple[LabelValues, float]]:
        """Yield label values and current value of every gauge of a name. Thread-safe."""
        for (known, values), callback in list(self._gauges.items()):
            if known == name:
                yield values, callback()

    def histograms(self, name: str) -> Iterator[tuple[LabelValues, Histogram]]:
        """Yield label values and histogram of every histogram of a name. Thread-safe."""
        for (known, values), histogram in list(self._histograms.items()):
            if known == name:
                yield values, histogram


def _lookup(name: str, kind: MetricKind, labels: dict[str, str]) -> tuple[Metric, LabelValues]:
    metric = METRICS.get(name)
    if metric is None or metric.kind is not kind:
        raise TelemetryNameError(
            f"{name!r} is not a {kind.value} in ponor_runtime.telemetry_names.METRICS: add a row"
        )
    if len(labels) != len(metric.labels) or any(label not in labels for label in metric.labels):
        raise TelemetryNameError(f"{name!r} has the labels {metric.labels}, not {tuple(labels)}")
    return metric, tuple(str(labels[label]) for label in metric.labels)
