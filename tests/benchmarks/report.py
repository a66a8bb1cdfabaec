"""Results of a run: a table with ratios, and JSON.

It asserts nothing.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.benchmarks.cases import Case
from tests.benchmarks.rounds import Summary

OURS: Final = "ponor"
THEIRS: Final = "kafka"
BASELINE: Final = "base"
"""Another checkout of Ponor that the run compares with."""
GENERATOR_LIMIT: Final = 0.95


@dataclass(slots=True)
class Report:
    """Results so far."""

    cases: dict[str, dict[str, Summary]] = field(default_factory=dict)
    verdicts: dict[str, dict[str, Any]] = field(default_factory=dict)
    extras: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    def add(self, case: Case, summaries: dict[str, Summary]) -> None:
        """Add a case's results, and check its promise if both systems were measured."""
        self.cases[case.name] = summaries
        if case.promise is None or not {OURS, THEIRS} <= summaries.keys():
            return
        ours = getattr(summaries[OURS].median, case.promise.figure)
        theirs = getattr(summaries[THEIRS].median, case.promise.figure)
        self.verdicts[case.name] = {
            "promise": str(case.promise),
            "value": case.promise.value(ours, theirs),
            "holds": case.promise.holds(ours, theirs),
        }

    def keep(self, directory: Path) -> Path:
        """Write JSON; return its path."""
        directory.mkdir(parents=True, exist_ok=True)
        target = directory / f"bench-{time.strftime('%Y%m%d-%H%M%S')}.json"
        content = {
            "environment": environment(),
            "cases": {
                name: {subject: asdict(summary) for subject, summary in summaries.items()}
                for name, summaries in self.cases.items()
            },
            "verdicts": self.verdicts,
            "extras": self.extras,
        }
        target.write_text(json.dumps(content, indent=2) + "\n")
        return target


def environment() -> dict[str, Any]:
    """Properties of the machine."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return {
        "commit": commit,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cores": os.cpu_count(),
        "load_average_before": os.getloadavg()[0],
    }


def print_cases(report: Report, subjects: Sequence[str]) -> None:
    """Medians per case and system, the spread of CPU or rate, and the promised ratio."""
    print(
        f"{'load':42} {'':6} {'req/s':>9} {'MB/s':>8} {'CPU s/GB':>9} {'us/req':>8} {'p50 ms':>8}"
        f" {'p99 ms':>8}  us/req least-greatest"
    )
    for name, summaries in report.cases.items():
        for subject in subjects:
            print(_row(name if subject == subjects[0] else "", subject, summaries[subject]))
        verdict = report.verdicts.get(name)
        if verdict is not None:
            mark = "kept" if verdict["holds"] else "NOT KEPT"
            print(f"{'':42} {'':6} {verdict['promise']}: {verdict['value']:.2f}, {mark}")
        if BASELINE in summaries:
            print(f"{'':42} {'':6} {_baseline_ratios(summaries[OURS], summaries[BASELINE])}")
    limited = [
        name
        for name, summaries in report.cases.items()
        if any(summary.median.generator_busy > GENERATOR_LIMIT for summary in summaries.values())
    ]
    if limited:
        print("the generator's core was full, rates are lower bounds:", "; ".join(limited))


def _baseline_ratios(ours: Summary, baseline: Summary) -> str:
    """Ratios of the medians, and the spread of the per-round ratios of CPU per request."""
    by_round = [
        one.cpu_us_per_request / other.cpu_us_per_request
        for one, other in zip(ours.rounds, baseline.rounds, strict=True)
    ]
    ratios = ", ".join(
        f"{label} {getattr(ours.median, figure) / getattr(baseline.median, figure):.2f}x"
        for label, figure in (
            ("req/s", "requests_per_s"),
            ("us/req", "cpu_us_per_request"),
            ("p50", "p50_ms"),
            ("p99", "p99_ms"),
        )
    )
    return f"{OURS} / {BASELINE}: {ratios}; us/req by round {min(by_round):.2f}-{max(by_round):.2f}x"


def _row(name: str, subject: str, summary: Summary) -> str:
    row = summary.median
    per_gb = f"{row.cpu_s_per_gb:.2f}" if row.cpu_s_per_gb else "-"
    low, high = summary.spread("cpu_us_per_request")
    return (
        f"{name:42} {subject:6} {row.requests_per_s:9,.0f} {row.mb_per_s:8.1f} {per_gb:>9}"
        f" {row.cpu_us_per_request:8.1f} {row.p50_ms:8.2f} {row.p99_ms:8.2f}  {low:.1f}-{high:.1f}"
    )
