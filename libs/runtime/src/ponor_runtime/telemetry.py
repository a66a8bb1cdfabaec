"""Telemetry: cheap instruments under the names of one registry.

What lives here: the instruments that services hold. They are plain Python numbers that the hot path adds to; whoever wants to see them
(`telemetry_export`) reads them by callback, so that telemetry costs nothing when nobody asks. Names come from `telemetry_names` alone.
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
    """A name or a label is not in the registry, or is used as another kind."""


class Counter:
    """A number that only grows."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def add(self, amount: int = 1) -> None:
        """Count."""
        self.value += amount


class Histogram:
    """Counts by bucket; `bounds` are inclusive upper bounds, the last bucket is everything above."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[int, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0

    def record(self, value: int) -> None:
        """Count one value, in the unit that the registry states."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Telemetry:
    """The instruments of one process.

    The same name and labels give the same instrument. Label values must come from small fixed sets: never topic, client or group names.

    Attributes:
        tracing: where spans go; None while tracing is off, which is all that is asked then.
        request: the sampled request whose synchronous part runs now; None almost always. The hot path asks this and nothing else.
    """

    def __init__(self) -> None:
        self._counters: dict[tuple[str, LabelValues], Counter] = {}
        self._histograms: dict[tuple[str, LabelValues], Histogram] = {}
        self._calculated: dict[tuple[str, LabelValues], Callable[[], float]] = {}
        self._gauges: dict[tuple[str, LabelValues], Callable[[], float]] = {}
        self.tracing: Tracing | None = None
        self.request: Span | None = None

    def counter(self, name: str, **labels: str) -> Counter:
        """The counter of this name and these labels.

        Raises:
            TelemetryNameError: not in the registry.
        """
        _, values = _lookup(name, MetricKind.COUNTER, labels)
        return self._counters.setdefault((name, values), Counter())

    def calculated_counter(self, name: str, callback: Callable[[], float], **labels: str) -> None:
        """Say where the value of a counter that nobody adds to comes from; it must never shrink. A second call replaces the first.

        The callback runs on the exporter's thread: it may read a number, and nothing else.

        Raises:
            TelemetryNameError: not in the registry.
        """
        _, values = _lookup(name, MetricKind.COUNTER, labels)
        self._calculated[(name, values)] = callback

    def histogram(self, name: str, **labels: str) -> Histogram:
        """The histogram of this name and these labels.

        Raises:
            TelemetryNameError: not in the registry.
        """
        metric, values = _lookup(name, MetricKind.HISTOGRAM, labels)
        return self._histograms.setdefault((name, values), Histogram(metric.buckets))

    def gauge(self, name: str, callback: Callable[[], float], **labels: str) -> None:
        """Say where a gauge's value comes from; a second call replaces the first.

        The callback runs on the exporter's thread: it may read a number, and nothing else.

        Raises:
            TelemetryNameError: not in the registry.
        """
        _, values = _lookup(name, MetricKind.GAUGE, labels)
        self._gauges[(name, values)] = callback

    def span(
        self, name: str, attributes: Attributes | None = None, *, kind: SpanKind = SpanKind.INTERNAL
    ) -> AbstractContextManager[Any]:
        """A context manager around one piece of work, below the current span.

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
        """As `span`, but only as a part of a trace that has begun: never the root of one."""
        tracing = self.tracing
        if tracing is None or (parent := tracing.current()) is None:
            return NO_SPAN
        return tracing.span(name, attributes, kind=kind, parent=parent)

    def continued(
        self, name: str, origins: Sequence[TraceContext], attributes: Attributes | None = None
    ) -> AbstractContextManager[Any]:
        """A span of work that others left behind: in the trace of the first of them, linked to all; a trace of its own if there is none."""
        tracing = self.tracing
        if tracing is None:
            return NO_SPAN
        return tracing.span(name, attributes, parent=origins[0] if origins else None, links=origins)

    def counters(self, name: str) -> Iterator[tuple[LabelValues, int]]:
        """Every counter of a name that is added to: label values and value, as recorded. Safe on another thread."""
        for (known, values), counter in list(self._counters.items()):
            if known == name:
                yield values, counter.value

    def totals(self, name: str) -> Iterator[tuple[LabelValues, float]]:
        """Every counter of a name, calculated ones too: label values and value, as recorded. Safe on another thread."""
        yield from self.counters(name)
        for (known, values), callback in list(self._calculated.items()):
            if known == name:
                yield values, callback()

    def gauges(self, name: str) -> Iterator[tuple[LabelValues, float]]:
        """Every gauge of a name: label values and value, read now. Safe on another thread."""
        for (known, values), callback in list(self._gauges.items()):
            if known == name:
                yield values, callback()

    def histograms(self, name: str) -> Iterator[tuple[LabelValues, Histogram]]:
        """Every histogram of a name. Safe on another thread."""
        for (known, values), histogram in list(self._histograms.items()):
            if known == name:
                yield values, histogram


def _lookup(name: str, kind: MetricKind, labels: dict[str, str]) -> tuple[Metric, LabelValues]:
    metric = METRICS.get(name)
    if metric is None or metric.kind is not kind:
        raise TelemetryNameError(
            f"{name!r} is no {kind.value} in ponor_runtime.telemetry_names.METRICS: add a row"
        )
    if len(labels) != len(metric.labels) or any(label not in labels for label in metric.labels):
        raise TelemetryNameError(f"{name!r} has the labels {metric.labels}, not {tuple(labels)}")
    return metric, tuple(str(labels[label]) for label in metric.labels)
