"""Prometheus endpoint: every metric of the registry on `http://HOST:PORT/metrics`, and the probes of the
process.

Only processes that serve metrics load this module, because it imports prometheus_client.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricsData
from opentelemetry.sdk.resources import Resource
from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app

from ponor_runtime.health import Verdict
from ponor_runtime.metric_data import SCOPE, create_instruments, with_histograms
from ponor_runtime.probe_endpoint import ProbeServer, route, serve_probes
from ponor_runtime.telemetry import Telemetry


class PrometheusEndpoint:
    """A running HTTP server on its own thread; `port` is the bound port."""

    def __init__(self, server: ProbeServer, provider: MeterProvider, host: str) -> None:
        self._server = server
        self._provider = provider
        self.port: int = server.server_port
        name = f"[{host}]" if ":" in host else host
        self.url = f"http://{name}:{self.port}/metrics"

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._provider.shutdown()


def serve_prometheus(
    telemetry: Telemetry,
    host: str,
    port: int,
    *,
    probes: Mapping[str, Callable[[], Verdict]] | None = None,
) -> PrometheusEndpoint:
    """Serve all metrics on `http://host:port/metrics`, and each probe under its path. Port 0: any free port.

    Raises:
        OSError: the address cannot be bound.
    """
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    reader = _PrometheusReader(telemetry, registry)
    provider = MeterProvider(
        metric_readers=[reader], resource=Resource.create({"service.name": SCOPE}), shutdown_on_exit=False
    )
    create_instruments(provider, telemetry)
    try:
        server = serve_probes(route(make_wsgi_app(registry), probes or {}), host, port)
    except OSError as error:
        provider.shutdown()
        raise OSError(error.errno, f"metrics cannot be served on {host}:{port}: {error.strerror}") from error
    return PrometheusEndpoint(server, provider, host)


class _PrometheusReader(PrometheusMetricReader):
    """Prometheus reader that adds Ponor's histograms to what OpenTelemetry collected."""

    def __init__(self, telemetry: Telemetry, registry: CollectorRegistry) -> None:
        self._telemetry = telemetry
        super().__init__(disable_target_info=True, scope_info_enabled=False, registry=registry)

    def _receive_metrics(
        self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any
    ) -> None:
        everything = with_histograms(metrics_data, self._telemetry, Resource.get_empty(), since_wall_ns=0)
        super()._receive_metrics(everything, timeout_millis, **kwargs)
