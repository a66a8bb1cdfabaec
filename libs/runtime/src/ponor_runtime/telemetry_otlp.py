"""OTLP export of traces and metrics, configured by OpenTelemetry's environment variables.

Loaded only if a variable sets an endpoint. The SDK reads the other variables: OTEL_EXPORTER_OTLP_* (endpoint,
headers, timeout, certificate, compression), OTEL_BSP_* (batches), OTEL_METRIC_EXPORT_INTERVAL,
OTEL_RESOURCE_ATTRIBUTES, OTEL_SERVICE_NAME, OTEL_TRACES_SAMPLER and OTEL_TRACES_SAMPLER_ARG. Source:
OpenTelemetry specification, "Environment Variable Specification" and "OpenTelemetry Protocol Exporter".
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricsData, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio, Sampler

from ponor_runtime.metric_data import SCOPE, create_instruments, with_histograms
from ponor_runtime.otlp_environment import exports, sampler_argument
from ponor_runtime.telemetry import Telemetry
from ponor_runtime.trace_recording import RecordedTracing

FLUSH_SECONDS_MAX: Final = 0.25
"""Time for the last flush of a stopping process: an unreachable collector must not delay the exit."""
_EXPORTER_LOGGER: Final = "opentelemetry.exporter.otlp"


def export_from_environment(
    telemetry: Telemetry, service: str, environment: Mapping[str, str]
) -> Callable[[], None]:
    """Start the configured exports; call the returned function to flush and stop.

    Raises:
        StartRefusedError: a variable has an unsupported value; the message names it.
    """
    traces, metrics = exports(environment)
    resource = _resource(service, environment)
    stops: list[Callable[[], None]] = []
    if metrics:
        stops.append(_export_metrics(telemetry, resource))
    if traces:
        ratio = sampler_argument(environment)
        sampler = None if ratio is None else ParentBasedTraceIdRatio(ratio)
        stops.append(export_spans(telemetry, OTLPSpanExporter(), resource, sampler))

    # The exporter logs every retry as a warning; the error after the last retry is enough.
    logging.getLogger(_EXPORTER_LOGGER).setLevel(logging.ERROR)
    return lambda: _in_time(*stops)


def export_spans(
    telemetry: Telemetry, exporter: SpanExporter, resource: Resource, sampler: Sampler | None = None
) -> Callable[[], None]:
    """Export spans; call the returned function to flush and stop.

    If `sampler` is None, OTEL_TRACES_SAMPLER selects the sampler.
    """
    provider = TracerProvider(sampler=sampler, resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    telemetry.tracing = RecordedTracing(provider.get_tracer(SCOPE))

    def stop() -> None:
        telemetry.tracing = None
        provider.shutdown()

    return stop


def _export_metrics(telemetry: Telemetry, resource: Resource) -> Callable[[], None]:
    reader = _OtlpReader(telemetry, resource)
    provider = MeterProvider(metric_readers=[reader], resource=resource, shutdown_on_exit=False)
    create_instruments(provider, telemetry)
    return provider.shutdown


class _OtlpReader(PeriodicExportingMetricReader):
    """Periodic reader that adds Ponor's histograms to what OpenTelemetry collected."""

    def __init__(self, telemetry: Telemetry, resource: Resource) -> None:
        self._telemetry = telemetry
        self._resource = resource
        self._since_wall_ns = time.time_ns()
        super().__init__(OTLPMetricExporter())

    def _receive_metrics(
        self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any
    ) -> None:
        everything = with_histograms(
            metrics_data, self._telemetry, self._resource, since_wall_ns=self._since_wall_ns
        )
        super()._receive_metrics(everything, timeout_millis, **kwargs)


def _resource(service: str, environment: Mapping[str, str]) -> Resource:
    """Build the resource; the environment's service name overrides `service`."""
    named = "OTEL_SERVICE_NAME" in environment or "service.name=" in environment.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    return Resource.create({} if named else {"service.name": service.replace("_", "-")})


def _in_time(*shutdowns: Callable[[], None]) -> None:
    """Run the shutdowns concurrently within one deadline."""
    threads = [threading.Thread(target=each, name="otlp-shutdown", daemon=True) for each in shutdowns]
    deadline = time.monotonic() + FLUSH_SECONDS_MAX
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
