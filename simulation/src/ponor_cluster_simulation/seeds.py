"""Many seeds: runs them in worker processes, makes failing schedules small, and adds up what was covered.

What lives here: from a seed to a result that can be printed, in one process or in several. Worker processes are real ones: this is the only module of the simulation that is not in it.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Final

from ponor_cluster_simulation.coverage import Coverage
from ponor_cluster_simulation.faults.fault import Fault
from ponor_cluster_simulation.faults.minimise import minimise
from ponor_cluster_simulation.run.cluster_run import ClusterRun, RunResult
from ponor_cluster_simulation.run.plan import RunPlan, draw_plan

TRIES_MAX: Final = 40
"""Runs that making one failing schedule small may cost."""
SIGNATURE_CHARACTERS: Final = 60


@dataclass(frozen=True, slots=True)
class SeedResult:
    """What became of a seed.

    Attributes:
        failure: empty when all held.
        minimal: of a failure, the faults that are needed for it; None when nobody looked.
        minimal_failure: what the run of `minimal` said.
    """

    seed: int
    trace: str
    coverage: Coverage
    faults: tuple[Fault, ...]
    failure: str = ""
    last_events: tuple[str, ...] = ()
    minimal: tuple[Fault, ...] | None = None
    minimal_failure: str = ""


def run_plan(plan: RunPlan, only: Sequence[int] | None = None) -> RunResult:
    """One run of a plan, with some of its faults if `only` names them.

    Args:
        plan: drawn from a seed.
        only: numbers of the faults that happen; None: all.
    """
    return ClusterRun(plan if only is None else plan.only(only)).run()


def run_seed(seed: int, *, only: Sequence[int] | None = None, small: bool = True) -> SeedResult:
    """Run a seed; when it fails and `small` is wanted, look for the smallest schedule that fails alike."""
    plan = draw_plan(seed)
    result = run_plan(plan, only)
    faults = (plan if only is None else plan.only(only)).schedule.faults
    minimal, minimal_failure = None, ""
    if result.failure and small:
        minimal, minimal_failure = _smallest(plan, faults, result.failure)
    return SeedResult(
        seed,
        result.trace,
        result.coverage,
        faults,
        result.failure,
        result.last_events,
        minimal,
        minimal_failure,
    )


def run_seeds(seeds: Sequence[int], *, workers: int) -> Iterator[SeedResult]:
    """Run many, in so many processes at a time; results come in the order of the seeds."""
    if workers == 1:
        yield from map(run_seed, seeds)
        return
    # Forked workers would share the loop's and the loggers' state; spawned ones import everything once and keep it.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=silence) as pool:
        yield from pool.map(run_seed, seeds)


def silence() -> None:
    """Services log what is done to them, thousands of lines; the trace has it. What a dead program never awaited is nobody's mistake."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore", RuntimeWarning)


def _smallest(plan: RunPlan, faults: Sequence[Fault], failure: str) -> tuple[tuple[Fault, ...], str]:
    signature, said = _signature(failure), failure

    def fails(numbers: Sequence[int]) -> bool:
        nonlocal said
        found = run_plan(plan, numbers).failure
        alike = bool(found) and _signature(found) == signature
        said = found if alike else said
        return alike

    numbers = minimise([fault.number for fault in faults], fails, tries_max=TRIES_MAX)
    return plan.only(numbers).schedule.faults, said


def _signature(failure: str) -> str:
    """What two failures have in common when they are one: the words, not the numbers."""
    return re.sub(r"[0-9a-f]*\d[0-9a-f]*", "#", failure)[:SIGNATURE_CHARACTERS]
