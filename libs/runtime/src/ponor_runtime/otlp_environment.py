"""Interpretation of OpenTelemetry's environment variables: which signals to export, and how many traces.

Pure.

Nothing is exported unless an endpoint is set, so an unconfigured process opens no connection.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ponor_runtime.lifecycle import StartRefusedError

ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
TRACES_ENDPOINT: Final = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
METRICS_ENDPOINT: Final = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"
SAMPLER: Final = "OTEL_TRACES_SAMPLER"
SAMPLER_ARGUMENT: Final = "OTEL_TRACES_SAMPLER_ARG"
RATIO_DEFAULT: Final = 0.01
"""Default share of traced requests without OTEL_TRACES_SAMPLER; tracing every request would dominate a
broker's work."""
_PROTOCOLS: Final = (
    "OTEL_EXPORTER_OTLP_PROTOCOL",
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
    "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL",
)
_PROTOCOL: Final = "http/protobuf"


def is_asked_for(environment: Mapping[str, str]) -> bool:
    """Whether any export is configured. Cheap: callers check it before they import OpenTelemetry."""
    return any(environment.get(name) for name in (ENDPOINT, TRACES_ENDPOINT, METRICS_ENDPOINT)) and (
        environment.get("OTEL_SDK_DISABLED", "").strip().lower() != "true"
    )


def exports(environment: Mapping[str, str]) -> tuple[bool, bool]:
    """Whether to export traces, and whether to export metrics.

    Raises:
        StartRefusedError: unsupported protocol or exporter.
    """
    for name in _PROTOCOLS:
        protocol = environment.get(name, "").strip()
        if protocol not in ("", _PROTOCOL):
            raise StartRefusedError(
                f"{name}={protocol}: only {_PROTOCOL} is supported; collectors accept it on port 4318"
            )
    return (
        _exported(environment, "OTEL_TRACES_EXPORTER", TRACES_ENDPOINT),
        _exported(environment, "OTEL_METRICS_EXPORTER", METRICS_ENDPOINT),
    )


def sampler_argument(environment: Mapping[str, str]) -> float | None:
    """Ponor's default sampling ratio; None if OTEL_TRACES_SAMPLER is set and the SDK decides.

    Raises:
        StartRefusedError: the ratio is not a number from 0 to 1.
    """
    text = environment.get(SAMPLER_ARGUMENT, "").strip()
    if text and "traceidratio" in environment.get(SAMPLER, "traceidratio"):
        try:
            ratio = float(text)
        except ValueError:
            ratio = -1.0
        if not 0.0 <= ratio <= 1.0:
            raise StartRefusedError(
                f"{SAMPLER_ARGUMENT}={text}: expected a share of requests, a number from 0 to 1"
            )
    else:
        ratio = RATIO_DEFAULT
    return None if environment.get(SAMPLER) else ratio


def _exported(environment: Mapping[str, str], exporter_variable: str, endpoint_variable: str) -> bool:
    exporter = environment.get(exporter_variable, "otlp").strip().lower()
    if exporter not in ("", "otlp", "none"):
        raise StartRefusedError(
            f"{exporter_variable}={exporter}: only otlp and none are supported; Prometheus"
            " metrics do not depend on this variable"
        )
    return exporter != "none" and bool(environment.get(ENDPOINT) or environment.get(endpoint_variable))
