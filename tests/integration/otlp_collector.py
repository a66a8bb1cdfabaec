"""An OTLP collector for tests: receives OTLP over HTTP on a loopback port and decodes it with the
protocol's real messages.
"""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage


@dataclass(frozen=True)
class CollectedSpan:
    """One received span, with the process that sent it."""

    service: str
    instance: str
    name: str
    kind: str
    trace_id: bytes
    span_id: bytes
    parent_id: bytes
    links: tuple[tuple[bytes, bytes], ...]
    started_ns: int
    ended_ns: int
    attributes: dict[str, Any]

    def is_child_of(self, other: CollectedSpan) -> bool:
        return self.trace_id == other.trace_id and self.parent_id == other.span_id


class OtlpCollector:
    """Collects from its construction to `close`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spans: list[CollectedSpan] = []
        self._metrics: dict[str, list[tuple[dict[str, Any], float]]] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def endpoint(self) -> str:
        """The URL for OTEL_EXPORTER_OTLP_ENDPOINT."""
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def spans(self) -> list[CollectedSpan]:
        with self._lock:
            return list(self._spans)

    def named(self, name: str) -> list[CollectedSpan]:
        return [span for span in self.spans if span.name == name]

    def metric(self, name: str) -> list[tuple[dict[str, Any], float]]:
        """The newest points of a metric: attributes, and the value (of a histogram: its count)."""
        with self._lock:
            return list(self._metrics.get(name, []))

    def wait_for(self, what: str, condition: Callable[[], bool], timeout_s: float = 240.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                shown = "\n".join(f"  {span.service} {span.name} {span.attributes}" for span in self.spans)
                raise AssertionError(f"{what} did not arrive in {timeout_s:g} s; these did:\n{shown}")
            time.sleep(0.05)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                assert self.headers["Content-Type"] == "application/x-protobuf"
                if self.path == "/v1/traces":
                    collector._take_traces(ExportTraceServiceRequest.FromString(body))
                elif self.path == "/v1/metrics":
                    collector._take_metrics(ExportMetricsServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        return Handler

    def _take_traces(self, request: ExportTraceServiceRequest) -> None:
        taken: list[CollectedSpan] = []
        for resource in request.resource_spans:
            process = attributes_of(resource.resource.attributes)
            for scope in resource.scope_spans:
                taken.extend(_collected(process, span) for span in scope.spans)
        with self._lock:
            self._spans.extend(taken)

    def _take_metrics(self, request: ExportMetricsServiceRequest) -> None:
        with self._lock:
            for resource in request.resource_metrics:
                process = attributes_of(resource.resource.attributes)
                for scope in resource.scope_metrics:
                    for metric in scope.metrics:
                        data = getattr(metric, metric.WhichOneof("data") or "gauge")
                        self._metrics[metric.name] = [
                            ({**process, **attributes_of(point.attributes)}, _value(point))
                            for point in data.data_points
                        ]


def attributes_of(pairs: Any) -> dict[str, Any]:
    """Attributes as a dictionary of plain values."""
    return {pair.key: _plain(pair.value) for pair in pairs if isinstance(pair, KeyValue)}


def _plain(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_plain(each) for each in value.array_value.values]
    return getattr(value, kind) if kind else None


def _value(point: Any) -> float:
    if hasattr(point, "bucket_counts"):
        return float(point.count)
    return float(getattr(point, point.WhichOneof("value")))


def _collected(process: dict[str, Any], span: SpanMessage) -> CollectedSpan:
    return CollectedSpan(
        service=str(process.get("service.name", "")),
        instance=str(process.get("service.instance.id", "")),
        name=span.name,
        kind=SpanMessage.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
        trace_id=span.trace_id,
        span_id=span.span_id,
        parent_id=span.parent_span_id,
        links=tuple((link.trace_id, link.span_id) for link in span.links),
        started_ns=span.start_time_unix_nano,
        ended_ns=span.end_time_unix_nano,
        attributes=attributes_of(span.attributes),
    )
