"""Telemetry instruments and the output of a real scrape."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from collections.abc import Sequence

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from ponor_runtime.telemetry import Telemetry, TelemetryNameError
from ponor_runtime.telemetry_export import serve_prometheus
from ponor_runtime.telemetry_names import METRICS, MetricKind
from ponor_runtime.telemetry_otlp import export_spans


async def scrape(url: str) -> list[str]:
    def read() -> str:
        with urllib.request.urlopen(url, timeout=90) as response:
            return str(response.read(), "utf-8")

    return (await asyncio.to_thread(read)).splitlines()


async def test_scrape_shows_every_kind_under_its_exact_name() -> None:
    telemetry = Telemetry()
    puts = telemetry.counter("ponor_object_store_requests_total", **{"op": "put", "class": "put"})
    puts.add()
    puts.add(2)
    telemetry.counter("ponor_object_store_bytes_total", direction="up").add(1 << 33)
    telemetry.gauge("ponor_log_cache_bytes", lambda: 77)
    latency = telemetry.histogram("ponor_object_store_request_seconds", op="put")
    for value in (1, 50, 51, 10**9):
        latency.record(value)
    endpoint = serve_prometheus(telemetry, "127.0.0.1", 0)
    try:
        assert str(endpoint.port) in endpoint.url
        for _ in range(2):
            lines = await scrape(endpoint.url)
            assert 'ponor_object_store_requests_total{class="put",op="put"} 3.0' in lines
            assert 'ponor_object_store_bytes_total{direction="up"} 8.589934592e+09' in lines
            assert "ponor_log_cache_bytes 77.0" in lines
            assert 'ponor_object_store_request_seconds_bucket{le="5e-05",op="put"} 2.0' in lines
            assert 'ponor_object_store_request_seconds_bucket{le="0.0001",op="put"} 3.0' in lines
            assert 'ponor_object_store_request_seconds_bucket{le="+Inf",op="put"} 4.0' in lines
            assert 'ponor_object_store_request_seconds_count{op="put"} 4.0' in lines
            assert 'ponor_object_store_request_seconds_sum{op="put"} 1000.000102' in lines
            assert any(line.startswith("process_cpu_seconds_total ") for line in lines)
        puts.add()
        assert 'ponor_object_store_requests_total{class="put",op="put"} 4.0' in await scrape(endpoint.url)
    finally:
        endpoint.close()


async def test_scrape_shows_every_name_of_the_registry_unchanged() -> None:
    telemetry = Telemetry()
    for name, metric in METRICS.items():
        labels = dict.fromkeys(metric.labels, "x")
        if metric.kind is MetricKind.COUNTER:
            telemetry.counter(name, **labels).add(1)
        elif metric.kind is MetricKind.GAUGE:
            telemetry.gauge(name, lambda: 1, **labels)
        else:
            telemetry.histogram(name, **labels).record(1)
    endpoint = serve_prometheus(telemetry, "127.0.0.1", 0)
    try:
        lines = await scrape(endpoint.url)
    finally:
        endpoint.close()
    shown = {re.split(r"[ {]", line)[0] for line in lines if not line.startswith("#")}
    for name, metric in METRICS.items():
        assert (f"{name}_count" if metric.kind is MetricKind.HISTOGRAM else name) in shown


def test_registry_follows_its_naming_rules() -> None:
    for name, metric in METRICS.items():
        assert re.fullmatch(r"ponor(_[a-z0-9]+)+", name)
        assert name.endswith("_total") == (metric.kind is MetricKind.COUNTER), name
        assert bool(metric.buckets) == (metric.kind is MetricKind.HISTOGRAM), name
        assert list(metric.buckets) == sorted(set(metric.buckets))
        assert metric.doc
        assert metric.unit


def test_unknown_names_and_labels_are_refused() -> None:
    telemetry = Telemetry()
    with pytest.raises(TelemetryNameError, match="not a counter"):
        telemetry.counter("ponor_unheard_of_total")
    with pytest.raises(TelemetryNameError, match="not a gauge"):
        telemetry.gauge("ponor_object_store_bytes_total", lambda: 1, direction="up")
    with pytest.raises(TelemetryNameError, match="direction"):
        telemetry.counter("ponor_object_store_bytes_total", way="up")
    one = telemetry.counter("ponor_object_store_bytes_total", direction="up")
    assert telemetry.counter("ponor_object_store_bytes_total", direction="up") is one


async def test_taken_port_is_named_in_the_error() -> None:
    endpoint = serve_prometheus(Telemetry(), "127.0.0.1", 0)
    try:
        with pytest.raises(OSError, match=f"metrics cannot be served on 127.0.0.1:{endpoint.port}"):
            serve_prometheus(Telemetry(), "127.0.0.1", endpoint.port)
    finally:
        endpoint.close()


class Collected(SpanExporter):
    def __init__(self) -> None:
        self.names: list[str] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.names += [span.name for span in spans]
        return SpanExportResult.SUCCESS


def test_spans_are_no_ops_without_tracing() -> None:
    telemetry = Telemetry()
    with telemetry.span("ponor.upload", {"ponor.upload.objects": 1}) as span:
        assert span is None
    exporter = Collected()
    stop = export_spans(telemetry, exporter, Resource.create({"service.name": "broker"}))
    with telemetry.span("ponor.upload", {"ponor.upload.objects": 1}):
        pass
    with pytest.raises(TelemetryNameError, match="SPANS"), telemetry.span("ponor.unheard.of"):
        pass
    stop()
    assert exporter.names == ["ponor.upload"]
