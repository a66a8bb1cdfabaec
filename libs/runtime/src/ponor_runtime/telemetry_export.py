"""How measurements leave the process: OpenTelemetry instruments and a Prometheus endpoint.

What lives here: everything that imports OpenTelemetry or prometheus_client; loaded only by a process that serves metrics or spans.
Counters and gauges become observable instruments, whose callbacks read our numbers when somebody scrapes. OpenTelemetry has no
observable histogram, so histograms join the collected data as ready-made points of the same data model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, Final
from wsgiref.simple_server import WSGIServer

from opentelemetry.exporter.prometheus import PrometheusMetricReader
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
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server

from ponor_runtime.telemetry import Telemetry
from ponor_runtime.telemetry_names import METRICS, Metric, MetricKind

SCOPE: Final = "ponor"


class PrometheusEndpoint:
    """A running HTTP server on a thread of its own; `port` is the one really bound."""

    def __init__(self, server: WSGIServer, provider: MeterProvider, host: str) -> None:
        self._server = server
        self._provider = provider
        self.port: int = server.server_port
        self.url = f"http://{host}:{self.port}/metrics"

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._provider.shutdown()


def serve_prometheus(telemetry: Telemetry, host: str, port: int) -> PrometheusEndpoint:
    """Serve every metric of the registry on `http://host:port/metrics`; port 0 takes any free one.

    Raises:
        OSError: the address cannot be bound.
    """
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    reader = _HistogramReader(telemetry, registry)
    provider = MeterProvider(
        metric_readers=[reader], resource=Resource.create({"service.name": SCOPE}), shutdown_on_exit=False
    )
    meter = provider.get_meter(SCOPE)
    for name, metric in METRICS.items():
        # The unit is not handed on: the Prometheus reader would append it to a name that has it already.
        if metric.kind is MetricKind.COUNTER:
            meter.create_observable_counter(
                name, [_observe(metric, telemetry.counters, name)], description=metric.doc
            )
        elif metric.kind is MetricKind.GAUGE:
            meter.create_observable_gauge(
                name, [_observe(metric, telemetry.gauges, name)], description=metric.doc
            )
    try:
        server, _ = start_http_server(port, host, registry)
    except OSError as error:
        provider.shutdown()
        raise OSError(error.errno, f"metrics cannot be served on {host}:{port}: {error.strerror}") from error
    return PrometheusEndpoint(server, provider, host)


def start_prometheus(telemetry: Telemetry, host: str, port: int) -> int:
    """`serve_prometheus` for as long as the process lives; the bound port."""
    return serve_prometheus(telemetry, host, port).port


def export_spans(telemetry: Telemetry, exporter: SpanExporter, service: str) -> Callable[[], None]:
    """Send spans to an exporter from now on; call the result to flush and stop."""
    provider = TracerProvider(resource=Resource.create({"service.name": service}), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    telemetry.enable_spans(provider.get_tracer(SCOPE))

    def stop() -> None:
        telemetry.enable_spans(None)
        provider.shutdown()

    return stop


def _observe(
    metric: Metric, read: Callable[[str], Iterable[tuple[tuple[str, ...], float]]], name: str
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def observe(_: CallbackOptions) -> Iterable[Observation]:
        for values, value in read(name):
            yield Observation(value, dict(zip(metric.labels, values, strict=True)))

    return observe


class _HistogramReader(PrometheusMetricReader):
    """The Prometheus reader, with our histograms added to what OpenTelemetry collected."""

    def __init__(self, telemetry: Telemetry, registry: CollectorRegistry) -> None:
        self._telemetry = telemetry
        super().__init__(disable_target_info=True, scope_info_enabled=False, registry=registry)

    def _receive_metrics(
        self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any
    ) -> None:
        scope = ScopeMetrics(scope=InstrumentationScope(SCOPE), metrics=self._histogram_data(), schema_url="")
        ours = ResourceMetrics(resource=Resource.get_empty(), scope_metrics=[scope], schema_url="")
        collected = [] if metrics_data is None else list(metrics_data.resource_metrics)
        super()._receive_metrics(MetricsData(resource_metrics=[*collected, ours]), timeout_millis, **kwargs)

    def _histogram_data(self) -> list[MetricData]:
        now = time.time_ns()
        collected = []
        for name, metric in METRICS.items():
            if metric.kind is not MetricKind.HISTOGRAM:
                continue
            points = []
            for values, histogram in self._telemetry.histograms(name):
                counts = list(histogram.counts)
                points.append(
                    HistogramDataPoint(
                        attributes=dict(zip(metric.labels, values, strict=True)),
                        start_time_unix_nano=0,
                        time_unix_nano=now,
                        count=sum(counts),
                        sum=histogram.total,
                        bucket_counts=counts,
                        explicit_bounds=histogram.bounds,
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
