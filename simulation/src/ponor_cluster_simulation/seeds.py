"""Runs many seeds in worker processes, and reduces the schedules of failing seeds.

The workers are processes of the operating system; no other module of the simulation starts such processes.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import Final

from ponor_cluster_simulation.coverage import Coverage
from ponor_cluster_simulation.faults.fault import Fault
from ponor_cluster_simulation.run.cluster_run import ClusterRun, RunResult
from ponor_cluster_simulation.run.plan import DEFAULT_CLIENTS, OptionalClients, RunPlan, draw_plan

TRIES_MAX: Final = 40
"""Maximum number of runs that reduce one failing schedule."""
SIGNATURE_CHARACTERS: Final = 60


@dataclass(frozen=True, slots=True)
class SeedResult:
    """The outcome of a seed.

    Attributes:
        failure: empty when all invariants held.
        has_members: the members of a consumer group were allowed.
        minimal: a smaller part of the faults with the same failure; None if no smaller part was searched for.
        minimal_failure: the failure of the run with `minimal`.
    """

    seed: int
    trace: str
    coverage: Coverage
    faults: tuple[Fault, ...]
    failure: str = ""
    last_events: tuple[str, ...] = ()
    minimal: tuple[Fault, ...] | None = None
    minimal_failure: str = ""
    has_members: bool = False


def run_plan(plan: RunPlan, only: Sequence[int] | None = None) -> RunResult:
    """Run a plan, optionally with some of its faults.

    Args:
        plan: drawn from a seed.
        only: numbers of the faults to execute; None for all.
    """
    return ClusterRun(plan if only is None else plan.only(only)).run()


def run_seed(
    seed: int,
    *,
    only: Sequence[int] | None = None,
    small: bool = True,
    clients: OptionalClients = DEFAULT_CLIENTS,
) -> SeedResult:
    """Run a seed. If it fails and `small` is true, search for the smallest schedule with the same failure.

    The run has only those optional clients that `clients` allows, even if the seed draws others.
    """
    plan = draw_plan(seed, clients)
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
        clients.group,
    )


def run_seeds(
    seeds: Sequence[int], *, workers: int, clients: OptionalClients = DEFAULT_CLIENTS
) -> Iterator[SeedResult]:
    """Run many seeds in `workers` processes; results are in the order of the seeds."""
    run = partial(run_seed, clients=clients)
    if workers == 1:
        yield from map(run, seeds)
        return
    # Spawned workers share no state of loops and loggers; each imports the code once.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=silence) as pool:
        yield from pool.map(run, seeds)


def silence() -> None:
    """Disable the services' logs, because the trace replaces them, and warnings about coroutines of ended
    processes.
    """
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
    """Return the failure's text without numbers. Failures with equal texts count as the same failure."""
    return re.sub(r"[0-9a-f]*\d[0-9a-f]*", "#", failure)[:SIGNATURE_CHARACTERS]


def minimise(
    numbers: Sequence[int], fails: Callable[[Sequence[int]], bool], *, tries_max: int
) -> tuple[int, ...]:
    """Return a part of `numbers` that fails. Unless the tries ran out, the part is minimal: it no longer
    fails if any one of its numbers is removed.

    This is delta debugging (Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input",
    2002).

    Args:
        numbers: the whole schedule, which fails.
        fails: runs a part and returns whether it fails.
        tries_max: maximum number of calls of `fails`.
    """
    left = tuple(numbers)
    pieces = 2
    tries = 0
    while left and tries < tries_max:
        size = max(len(left) // pieces, 1)
        for begin in range(0, len(left), size):
            rest = left[:begin] + left[begin + size :]
            tries += 1
            if fails(rest):
                left = rest
                pieces = max(pieces - 1, 2)
                break
            if tries >= tries_max:
                break
        else:
            if size == 1:
                break
            pieces = min(pieces * 2, len(left))
    return left
