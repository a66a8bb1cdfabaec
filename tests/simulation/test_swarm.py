"""Whole clusters under a swarm of faults: a few of the seeds that `make simulate` runs by hundreds.

One or three controllers, one to three brokers, a garbage collector and recording clients; the seed
draws the faults. A failing seed prints its schedule of faults, the smallest part of it that still
fails, and the command that runs it again:

    ponor simulate --seed 17 --faults '3,7'
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Final

import pytest
from ponor_cluster_simulation.coverage import Coverage
from ponor_cluster_simulation.report import failure_lines
from ponor_cluster_simulation.run.plan import DEFAULT_CLIENTS, NO_CLIENTS, OptionalClients, RunPlan, draw_plan
from ponor_cluster_simulation.seeds import SeedResult, run_seed

from tests.simulation.coverage_search import below, check_reached

SEEDS = (0, 2, 5, 7, 10, 11, 36)
"""Short seeds, about 25 s of CPU together, that reach all intended states; `make simulate` runs all seeds."""
REPLAYED_SEEDS = (
    range(int(os.environ["PONOR_REPLAYED_SEEDS"])) if "PONOR_REPLAYED_SEEDS" in os.environ else (2, 5, 14)
)
"""By default three short seeds, which together have one and three controllers, two and three brokers,
moves, groups, compactors and transactions.
"""
FURTHER_SEEDS_MAX = 20
"""Seeds that a test runs if the recorded ones do not reach every state."""
STATES: Final = {
    "runs with three controllers": 1,
    "terms in which a controller led": 7,
    "records acknowledged to producers": 501,
    "images replaced by a snapshot": 7,
    "runs with several brokers": 1,
    "logs recovered by another process": 1,
    "moves begun": 1,
    "changes of a partition's leader": 1,
    "offsets committed by groups": 1,
    "compactions: set_objects swapped": 11,
    "compactions: stream_objects swapped": 11,
    "compactions: force_split swapped": 1,
    "parts copied by the store": 11,
    "records read under a lease": 101,
    "runs with reconciliations": 1,
    "broker: cleaner_records_removed": 11,
}
MEMBERS: Final = OptionalClients(transactions=False, group=True)
SHARE_MEMBERS: Final = OptionalClients(transactions=False, share_group=True)
STREAMS_MEMBERS: Final = OptionalClients(transactions=False, streams_group=True)
EFFECTS: Final = {"processes ended by a fault": 6, "files that lost bytes in a power loss": 1}
CHECKED: Final = (1, 3, 4, 6, 10, *range(12, 39))
"""Invariants that the recorded seeds check, without those of transactions."""
ROOT = Path(__file__).parents[2]
PRINT_TRACES = """\
import sys
from ponor_cluster_simulation.seeds import run_seed, silence
silence()
for seed in map(int, sys.argv[1:]):
    print(seed, run_seed(seed, small=False).trace)
"""


@cache
def run(seed: int, clients: OptionalClients = DEFAULT_CLIENTS) -> SeedResult:
    """Run a seed once; a failure is reported in full."""
    result = run_seed(seed, clients=clients)
    assert not result.failure, "\n".join(failure_lines(result, commit=""))
    return result


@pytest.mark.parametrize("seed", SEEDS)
def test_a_cluster_keeps_all_invariants_and_becomes_quiescent(seed: int) -> None:
    run(seed)


def missing(
    results: Sequence[SeedResult],
    states: Mapping[str, int],
    checked: Iterable[int] = (),
    effects: Mapping[str, int] | None = None,
) -> list[str]:
    """Return what the runs have reached less often than wanted; the values are minimums."""
    coverage = Coverage()
    for result in results:
        coverage.add(result.coverage)
    unchecked = [f"invariant {number} was never checked" for number in checked if not coverage.checks[number]]
    return [*below(states, coverage.states), *below(effects or {}, coverage.effects), *unchecked]


def further(
    clients: OptionalClients = DEFAULT_CLIENTS, fits: Callable[[RunPlan], object] = lambda _: True
) -> Iterator[SeedResult]:
    """Run seeds that are not recorded and whose plans fit."""
    wanted = (seed for seed in range(1_000) if seed not in SEEDS and fits(draw_plan(seed, clients)))
    for seed in islice(wanted, FURTHER_SEEDS_MAX):
        yield run(seed, clients)


@pytest.mark.timeout(1_800)  # if the recorded seeds no longer reach them
def test_the_swarm_reaches_the_intended_states() -> None:
    kinds = (
        "stream_opened",
        "stream_closed",
        "objects_prepared",
        "stream_set_object_committed",
        "operation_completed",
        "node_registered",
    )
    states = STATES | {f"protocol steps: {kind}": 11 for kind in kinds}
    check_reached(lambda results: missing(results, states, CHECKED, EFFECTS), map(run, SEEDS), further())


@pytest.mark.timeout(1_800)
def test_the_swarm_has_transactions() -> None:
    states = {
        "runs with transactions": 2,
        "transactions: committed": 21,
        "transactions: aborted": 6,
        "transactions: producers that disappeared": 1,
        "transactions: requests of producers sent again": 11,
        "transactions: committed records read": 101,
    }
    check_reached(
        lambda results: missing(results, states, range(48, 56)),
        map(run, SEEDS),
        further(fits=lambda plan: plan.transactions.clients),
    )


@pytest.mark.timeout(1_800)
def test_the_swarm_has_members_of_groups() -> None:
    states = {
        "runs with members of a group": 3,
        "groups: joins with heartbeats": 5,
        "groups: joins with JoinGroup": 5,
        "groups: partitions revoked": 1,
        "groups: members that disappeared": 1,
        "groups: silent members": 1,
        "groups: members fenced": 1,
        "groups: commits acknowledged": 11,
        "broker: group_migrations consumer": 1,
        "broker: group_migrations classic": 1,
    }
    check_reached(
        lambda results: missing(results, states, range(56, 62)),
        (run(seed, MEMBERS) for seed in (19, 31, 34)),
        further(MEMBERS, fits=lambda plan: plan.group.clients),
    )


@pytest.mark.timeout(1_800)
def test_the_swarm_has_members_of_share_groups() -> None:
    states = {
        "runs with members of a share group": 2,
        "share groups: joins": 5,
        "share groups: records acquired": 101,
        "share groups: records: accept": 51,
        "share groups: records: release": 6,
        "share groups: records: reject": 2,
        "share groups: records: renew": 2,
        "share groups: acknowledgements refused": 1,
        "share groups: members that disappeared": 1,
        "share groups: silent members": 1,
        "share groups: sessions that the broker had ended": 1,
    }
    check_reached(
        lambda results: missing(results, states, range(62, 66)),
        (run(seed, SHARE_MEMBERS) for seed in (8, 28, 54)),
        further(SHARE_MEMBERS, fits=lambda plan: plan.share_group.clients),
    )


@pytest.mark.timeout(1_800)
def test_the_swarm_has_members_of_streams_groups() -> None:
    states = {
        "runs with members of a streams group": 2,
        "streams groups: joins": 5,
        "streams groups: tasks assigned": 5,
        "streams groups: tasks revoked": 1,
        "streams groups: members that disappeared": 1,
    }
    check_reached(
        lambda results: missing(results, states, (66, 67)),
        (run(seed, STREAMS_MEMBERS) for seed in (23, 51)),
        further(STREAMS_MEMBERS, fits=lambda plan: plan.streams_group.clients),
    )


@pytest.mark.timeout(1_800)
def test_other_seeds_have_wrong_plans_small_memory_and_settled_tasks() -> None:
    states = {
        "wrong commits of compactions: stale_plan": 1,
        "compactor: compactor_tasks unfit": 1,
        "compactor: compactor_tasks settled": 1,
        "linearizable reads at one controller": 21,
    }
    check_reached(
        lambda results: missing(results, states),
        (run(seed, NO_CLIENTS) for seed in (22, 33, 39)),
        further(NO_CLIENTS),
    )


def test_a_seed_gives_one_trace_however_python_hashes() -> None:
    """`make simulate-replay` does the same with twenty seeds."""
    traces = [_traces_elsewhere(hash_seed) for hash_seed in ("0", "4711")]
    assert traces[0] == traces[1]
    assert len(traces[0].splitlines()) == len(REPLAYED_SEEDS)


def test_a_part_of_a_schedule_gives_one_trace() -> None:
    """The reduction of schedules relies on this."""
    one, other = (run_seed(11, only=[0, 1]) for _ in range(2))
    assert one.trace == other.trace
    assert len(one.faults) == 2


def _traces_elsewhere(hash_seed: str) -> str:
    elsewhere = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PRINT_TRACES, *map(str, REPLAYED_SEEDS)],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return elsewhere.stdout
