"""Names of metrics follow Prometheus' conventions (prometheus.io/docs/practices/naming): they end
with the base unit in full, and only counters end with `_total`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ponor_runtime.telemetry_names import METRICS, MetricKind

ABBREVIATED = {
    *("ns", "us", "ms", "s", "sec", "secs", "min", "mins", "h", "hr", "hrs"),
    *("b", "kb", "mb", "gb", "kib", "mib", "gib", "pct", "cnt", "num", "avg"),
}
NOT_BASE = {
    "milliseconds",
    "microseconds",
    "nanoseconds",
    "minutes",
    "hours",
    "kilobytes",
    "megabytes",
    "percent",
}
IN_NAME = ("seconds", "bytes", "usd")
"""Units that a name must state. Other units, such as requests, are the thing that the name counts."""


def test_metric_names_follow_the_conventions() -> None:
    broken = [f"{name}: {complaint}" for name in METRICS for complaint in _complaints(name)]
    assert not broken, "\n" + "\n".join(broken)


def _complaints(name: str) -> Iterator[str]:
    metric = METRICS[name]
    if not re.fullmatch(r"ponor(_[a-z0-9]+)+", name):
        yield "write ponor_, and words of small letters and digits between underscores"
    if name.endswith("_total") != (metric.kind is MetricKind.COUNTER):
        yield "_total ends counters"
    words = {*name.split("_"), *re.split(r"\W+", metric.unit)}
    if words & ABBREVIATED:
        yield "write units in full"
    if words & NOT_BASE:
        yield "show base units: seconds, bytes, a ratio from 0 to 1"
    unit = metric.unit.replace(" ", "_")
    if unit.startswith(IN_NAME) and not name.removesuffix("_total").endswith(f"_{unit}"):
        yield "the unit is at the end"


def test_recorded_values_have_the_unit_of_the_name() -> None:
    for name, metric in METRICS.items():
        is_time_histogram = metric.kind is MetricKind.HISTOGRAM and metric.unit == "seconds"
        assert not is_time_histogram or metric.recorded_per_unit == 1_000_000, name
