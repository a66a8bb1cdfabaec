"""Conversion of Ponor's metrics to OpenTelemetry's metric data, for every metric reader.

Counters and gauges become observable instruments, whose callbacks read the values at collection.
OpenTelemetry has no observable histogram, so histograms join the collected data as finished points.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final

from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    HistogramDataPoint,
    MetricsData,
    ResourceMetrics,
    ScopeMetrics,
)
from opentelemetry.sdk.metrics.export import Histogram as HistogramData
from opentelemetry.sdk.metrics.export import Metric as MetricData
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from ponor_runtime.telemetry import Telemetry
from ponor_runtime.telemetry_names import METRICS, Metric, MetricKind

SCOPE: Final = "ponor"


def create_instruments(provider: MeterProvider, telemetry: Telemetry) -> None:
    """Register every counter and gauge of the registry.

    Instruments get no unit, because the Prometheus reader would append it to names that already end with it.
    """
    meter = provider.get_meter(SCOPE)
    for name, metric in METRICS.items():
        if metric.kind is MetricKind.COUNTER:
            observe = _observe(metric, telemetry.totals, name)
            meter.create_observable_counter(name, [observe], description=metric.doc)
        elif metric.kind is MetricKind.GAUGE:
            observe = _observe(metric, telemetry.gauges, name)
            meter.create_observable_gauge(name, [observe], description=metric.doc)


def with_histograms(
    collected: MetricsData | None, telemetry: Telemetry, resource: Resource, *, since_wall_ns: int
) -> MetricsData:
    """Add Ponor's histograms, counted since `since_wall_ns`, to the metrics that OpenTelemetry collected.

    All metrics share one scope of one resource: of several equal scopes OTLP's encoder keeps only the last.
    """
    metrics = (
        []
        if collected is None
        else [
            metric
            for each in collected.resource_metrics
            for scope in each.scope_metrics
            for metric in scope.metrics
        ]
    )
    metrics += _histograms(telemetry, since_wall_ns)
    scope = ScopeMetrics(scope=InstrumentationScope(SCOPE), metrics=metrics, schema_url="")
    return MetricsData(
        resource_metrics=[ResourceMetrics(resource=resource, scope_metrics=[scope], schema_url="")]
    )


def _observe(
    metric: Metric, read: Callable[[str], Iterable[tuple[tuple[str, ...], float]]], name: str
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def observe(_: CallbackOptions) -> Iterable[Observation]:
        for values, value in read(name):
            yield Observation(metric.shown(value), dict(zip(metric.labels, values, strict=True)))

    return observe


def _histograms(telemetry: Telemetry, since_wall_ns: int) -> list[MetricData]:
    now = time.time_ns()
    collected = []
    for name, metric in METRICS.items():
        if metric.kind is not MetricKind.HISTOGRAM:
            continue
        points = []
        for values, histogram in telemetry.histograms(name):
            counts = list(histogram.counts)
            points.append(
                HistogramDataPoint(
                    attributes=dict(zip(metric.labels, values, strict=True)),
                    start_time_unix_nano=since_wall_ns,
                    time_unix_nano=now,
                    count=sum(counts),
                    sum=metric.shown(histogram.total),
                    bucket_counts=counts,
                    explicit_bounds=[metric.shown(bound) for bound in histogram.bounds],
                    min=0,
                    max=0,
                )
            )
        if points:
            data = HistogramData(
                data_points=points, aggregation_temporality=AggregationTemporality.CUMULATIVE
            )
            collected.append(MetricData(name=name, description=metric.doc, unit="", data=data))
    return collected
