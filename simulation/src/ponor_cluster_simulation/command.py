"""`ponor simulate`: run one seed again, or many seeds.

The `ponor` command loads this module by the entry point group "ponor.commands" and does not import the
package.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Annotated

import typer

from ponor_cluster_simulation.coverage import Coverage
from ponor_cluster_simulation.report import coverage_lines, failure_lines
from ponor_cluster_simulation.run.plan import OptionalClients
from ponor_cluster_simulation.seeds import SeedResult, run_seed, run_seeds, silence

HELP = """Run a whole cluster in virtual time, under faults drawn from a seed, and check the invariants.

\b
Examples:
  ponor simulate --seed 17                 the same seed, the same trace
  ponor simulate --seed 17 --faults '3,7'  only these of its faults
  ponor simulate --seeds 200 --workers 2   seeds 0 to 199
  ponor simulate --seed 17 --groups        with the members of its groups, if the seed draws them
"""

simulate_app = typer.Typer(name="simulate", add_completion=False, pretty_exceptions_enable=False)


@simulate_app.command(help=HELP)
def simulate(
    seed: Annotated[int | None, typer.Option(help="Run this seed only.")] = None,
    faults: Annotated[
        str | None,
        typer.Option(metavar="N,N…", help="With --seed: only the faults with these numbers; '' for none."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds, starting at --first.")] = 60,
    first: Annotated[int, typer.Option(min=0, help="First seed; not with --seed.")] = 0,
    workers: Annotated[int, typer.Option(min=1, help="Number of processes.")] = 2,
    groups: Annotated[
        bool,
        typer.Option(help="Add members of groups of three types, to 40 % of the seeds each."),
    ] = False,
    log: Annotated[bool, typer.Option(help="Show the services' logs.")] = False,
) -> None:
    """Run seeds and print a report; see HELP."""
    if not log:
        silence()
    clients = OptionalClients(group=groups, share_group=groups, streams_group=groups)
    if seed is not None:
        only = None if faults is None else [int(number) for number in faults.split(",") if number.strip()]
        results = [run_seed(seed, only=only, small=only is None, clients=clients)]
        _print(f"trace={results[0].trace}")
    else:
        results = _run_many(range(first, first + seeds), workers, clients)
    coverage = Coverage()
    for result in results:
        coverage.add(result.coverage)
    failed = [result for result in results if result.failure]
    for line in coverage_lines(coverage):
        _print(line)
    for result in failed:
        for line in failure_lines(result, _commit()):
            _print(line)
    if failed:
        _print(
            f"{len(failed)} of {len(results)} seeds failed: {', '.join(str(each.seed) for each in failed)}"
        )
        raise typer.Exit(1)
    _print(f"{len(results)} seeds, no violation")


def _run_many(numbers: range, workers: int, clients: OptionalClients) -> list[SeedResult]:
    results = []
    for result in run_seeds(numbers, workers=workers, clients=clients):
        results.append(result)
        if result.failure:
            _print(f"seed {result.seed} failed: {result.failure.splitlines()[0]}")
    return results


def _commit() -> str:
    """The commit of the code, if it is in a repository."""
    try:
        result = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40"],  # noqa: S607 - the git of the PATH
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return ""
    return result.stdout.strip()


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
