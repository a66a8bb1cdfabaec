"""Coverage of one or many runs: executed faults, reached states, checked invariants.

A simulation that never reaches a state proves nothing about it. The report therefore prints zeros too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from ponor_runtime.telemetry import Telemetry
from ponor_runtime.telemetry_names import METRICS, MetricKind

PREFIX: Final = "ponor_"
COUNTED_METRICS: Final = tuple(
    name
    for name, metric in METRICS.items()
    if metric.kind is MetricKind.COUNTER
    and name.startswith(
        (
            "ponor_controller_",
            "ponor_raft_",
            "ponor_session_",
            "ponor_subscription_",
            "ponor_gc_",
            "ponor_group_migrations",
            "ponor_group_rebalances",
            "ponor_compactor_tasks",
            "ponor_cleaner_",
            "ponor_snapshot_",
            "ponor_upload_objects",
            "ponor_object_store_errors",
            "ponor_object_store_retries",
            "ponor_log_cache_reads",
            "ponor_block_cache_reads",
        )
    )
    and name not in {"ponor_controller_records_total", "ponor_controller_operations_total"}
)
"""Counters of the services that show which states they reached."""


@dataclass(slots=True)
class Coverage:
    """Counters of a run, or the sums of many.

    Attributes:
        faults: executed faults by kind.
        effects: observed effects of faults.
        states: states that the services reached.
        checks: number of checks by invariant number.
    """

    runs: int = 0
    virtual_s: float = 0.0
    events: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    effects: Counter[str] = field(default_factory=Counter)
    states: Counter[str] = field(default_factory=Counter)
    checks: Counter[int] = field(default_factory=Counter)

    def add(self, other: Coverage) -> None:
        """Add the counters of another run."""
        self.runs += other.runs
        self.virtual_s += other.virtual_s
        self.events += other.events
        self.faults.update(other.faults)
        self.effects.update(other.effects)
        self.states.update(other.states)
        self.checks.update(other.checks)

    def harvest(self, process: str, telemetry: Telemetry) -> None:
        """Add the counters of one life of a process."""
        service = process.partition("-")[0]
        for name in COUNTED_METRICS:
            for labels, value in telemetry.counters(name):
                suffix = "".join(f" {label}" for label in labels)
                self.states[f"{service}: {name.removeprefix(PREFIX).removesuffix('_total')}{suffix}"] += value
        for _, torn_bytes in telemetry.gauges("ponor_journal_torn_bytes"):
            self.states[f"{service}: recoveries that cut a torn tail"] += torn_bytes > 0


def table(title: str, counts: Mapping[str, int], known: Iterable[str] = ()) -> list[str]:
    """Lines of a report; names in `known` are shown even if they were not counted."""
    rows = {name: counts.get(name, 0) for name in [*known, *sorted(counts)]}
    return [f"{title}:", *(f"  {count:>10,}  {name}" for name, count in rows.items())]
