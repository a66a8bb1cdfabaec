"""Generate the reference pages from code: settings, metrics, budgets, Kafka APIs.

tests/tidy/test_reference.py fails when a page differs from the code, so a change of a metric name
or a default appears in the diff of the documentation.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ponor_broker.budgets import BUDGETS, MEMORY, memory_bytes
from ponor_broker.settings import BrokerSettings
from ponor_cli.local.settings_routing import SETTINGS_OF_ROLE
from ponor_runtime.settings import SettingRow, describe
from ponor_runtime.telemetry_names import METRICS, SPANS

from tools.compatibility import apis_page, configs_page

ROOT = Path(__file__).resolve().parents[1]
GENERATED = "<!-- Written by `python -m tools.reference`; change the code and run it. -->\n"


def settings_page() -> str:
    """Return docs/operations/settings.md."""
    lines = [
        "# Settings",
        "",
        GENERATED,
        (
            "Set a value with `ponor up --set NAME=VALUE` (sizes may end in KiB, MiB, GiB), or in the `settings`"  # noqa: E501
            " of a process's"
        ),
        "configuration file. A process refuses to start with an unknown name or a value outside its bounds.",
        "",
    ]
    for role, settings in SETTINGS_OF_ROLE.items():
        lines += [f"## {role}", "", "| setting | default | bounds | meaning |", "|---|---|---|---|"]
        lines += [setting_row(row) for row in describe(settings)]
        lines.append("")
    return "\n".join(lines)


def setting_row(row: SettingRow) -> str:
    """Return one setting as a table row."""
    low = "" if row.minimum is None else f"{row.minimum:,}"
    high = "" if row.maximum is None else f"{row.maximum:,}"
    bounds = f"{low} – {high}" if low or high else ""
    return f"| `{row.name}` | {amount(row.default, row.unit)} | {bounds} | {row.doc} |"


def amount(value: Any, unit: str) -> str:
    """Format a default with its unit."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        if unit == "bytes" and value and value % (1 << 20) == 0:
            return f"{value >> 20:,} MiB"
        if unit == "bytes" and value and value % (1 << 10) == 0:
            return f"{value >> 10:,} KiB"
        return f"{value:,} {unit}".strip()
    return f"{value} {unit}".strip()


def metrics_page() -> str:
    """Return docs/operations/metrics.md."""
    lines = [
        "# Metrics and spans",
        "",
        GENERATED,
        (
            "Every process serves Prometheus metrics at `/metrics` of its metrics port: 9404 in containers; with"  # noqa: E501
            " `ponor up` the ports derive from `--kafka-port`"
        ),
        (
            "([ports](README.md#ports-of-ponor-up)), 9132 (controller 0), 9142 (broker 0), 9158 (gc 0) and 9174"  # noqa: E501
            " (compactor 0) by default. `ponor cluster info` lists them."
        ),
        "",
        "| metric | kind | unit | labels | meaning |",
        "|---|---|---|---|---|",
    ]
    for name, metric in METRICS.items():
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        lines.append(f"| `{name}` | {metric.kind.value} | {metric.unit} | {labels} | {metric.doc} |")
    lines += ["", "| span | meaning |", "|---|---|"]
    lines += [f"| `{name}` | {doc} |" for name, doc in SPANS.items()]
    lines.append("")
    return "\n".join(lines)


def budgets_page() -> str:
    """Return docs/operations/budgets.md."""
    rows = {row.name: row for row in describe(SETTINGS_OF_ROLE["broker"])}
    lines = [
        "# Budgets of a broker",
        "",
        GENERATED,
        (
            "Every resource that can grow has a bound. Reaching a bound causes backpressure or a retriable"
            " error, never a lost record. Each limit is"
        ),
        "also a metric, `ponor_budget_limit{budget=SETTING}`: alert on the ratio of the use to the limit.",
        "",
        "| resource | setting | default | metric | at the bound |",
        "|---|---|---|---|---|",
    ]
    for budget in BUDGETS:
        row = rows[budget.setting]
        default = amount(row.default, row.unit)
        lines.append(
            f"| {budget.what} | `{budget.setting}` | {default} | `{budget.used}` | {budget.at_the_bound} |"
        )
    names = ", ".join(f"`{name}`" for name in MEMORY)
    lines += [
        "",
        (
            f"The memory bounds add up to {amount(memory_bytes(BrokerSettings()), 'bytes')} by default: {names}."  # noqa: E501
            " The process itself and its metadata image"
        ),
        "need a few hundred MiB more: set a container's memory limit above the sum.",
        "",
    ]
    return "\n".join(lines)


def pages() -> dict[Path, str]:
    """Return every generated page by path."""
    operations = ROOT / "docs" / "operations"
    return {
        operations / "settings.md": settings_page(),
        operations / "metrics.md": metrics_page(),
        operations / "budgets.md": budgets_page(),
        ROOT / "docs" / "compatibility-apis.md": apis_page(GENERATED),
        ROOT / "docs" / "compatibility-configs.md": configs_page(GENERATED),
    }


def main() -> None:
    """Write every page."""
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
