"""The text of reports: everything needed to analyse a failing seed, and the coverage of many seeds."""

from __future__ import annotations

from collections.abc import Sequence

from ponor_cluster_simulation.coverage import Coverage, table
from ponor_cluster_simulation.faults.fault import Fault, FaultKind
from ponor_cluster_simulation.invariants.registry import report
from ponor_cluster_simulation.seeds import SeedResult

KNOWN_STATES = (
    "controller: lives",
    "broker: lives",
    "gc: lives",
    "controller: recoveries that cut a torn tail",
    "broker: recoveries that cut a torn tail",
    "images replaced by a snapshot",
)


def failure_lines(result: SeedResult, commit: str) -> list[str]:
    """The report of a failing seed."""
    lines = [
        f"seed {result.seed} FAILED: {result.failure}",
        f"commit {commit or 'unknown'}  trace={result.trace}",
        f"the last {len(result.last_events)} events:",
        *(f"  {line}" for line in result.last_events),
        f"its schedule of {len(result.faults)} faults:",
        *_schedule(result.faults),
    ]
    if result.minimal is not None:
        lines += [
            f"the smallest part of this schedule with the same failure ({result.minimal_failure}):",
            *(_schedule(result.minimal) or ["  no faults"]),
            f"run these faults only: {replay_command(result, result.minimal)}",
        ]
    lines.append(f"run it again: {replay_command(result, None)}")
    return lines


def replay_command(result: SeedResult, faults: Sequence[Fault] | None) -> str:
    """The command that runs a seed again."""
    command = f"ponor simulate --seed {result.seed}" + (" --groups" if result.has_members else "")
    if faults is None:
        return command
    numbers = ",".join(str(fault.number) for fault in faults)
    return f"{command} --faults '{numbers}'"


def coverage_lines(coverage: Coverage) -> list[str]:
    """The report of coverage."""
    return [
        f"{coverage.runs} runs, {coverage.virtual_s:,.0f} virtual seconds, {coverage.events:,} events",
        *table("executed faults", coverage.faults, [kind.value for kind in FaultKind]),
        *table("effects of faults", coverage.effects),
        *table("states reached", coverage.states, KNOWN_STATES),
        *report(coverage.checks),
    ]


def _schedule(faults: Sequence[Fault]) -> list[str]:
    return [f"  {fault}" for fault in faults]
