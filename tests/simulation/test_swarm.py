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
from functools import cache
from pathlib import Path

import pytest
from ponor_cluster_simulation.coverage import Coverage
from ponor_cluster_simulation.report import failure_lines
from ponor_cluster_simulation.seeds import SeedResult, run_seed

SEEDS = (0, 2, 5, 7, 10, 11, 36)
"""Short seeds, about 25 s of CPU together, that reach all intended states; `make simulate` runs all seeds."""
REPLAYED_SEEDS = (
    range(int(os.environ["PONOR_REPLAYED_SEEDS"])) if "PONOR_REPLAYED_SEEDS" in os.environ else (2, 5, 14)
)
"""By default three short seeds, which together have one and three controllers, two and three brokers,
moves, groups, compactors and transactions.
"""
ROOT = Path(__file__).parents[2]
PRINT_TRACES = """\
import sys
from ponor_cluster_simulation.seeds import run_seed, silence
silence()
for seed in map(int, sys.argv[1:]):
    print(seed, run_seed(seed, small=False).trace)
"""


@cache
def run(seed: int, *, has_transactions: bool | None = None) -> SeedResult:
    """Run a seed once; a failure is reported in full."""
    result = run_seed(seed, has_transactions=has_transactions)
    assert not result.failure, "\n".join(failure_lines(result, commit=""))
    return result


@pytest.mark.parametrize("seed", SEEDS)
def test_a_cluster_keeps_all_invariants_and_becomes_quiescent(seed: int) -> None:
    run(seed)


def test_the_swarm_reaches_the_intended_states() -> None:
    coverage = Coverage()
    for seed in SEEDS:
        coverage.add(run(seed).coverage)
    assert coverage.states["runs with three controllers"] > 0
    assert coverage.states["terms in which a controller led"] > 6
    assert coverage.states["records acknowledged to producers"] > 500
    assert coverage.states["images replaced by a snapshot"] > 6
    assert coverage.states["runs with several brokers"] > 0
    assert coverage.states["logs recovered by another process"] > 0
    assert coverage.states["moves begun"] > 0
    assert coverage.states["changes of a partition's leader"] > 0
    assert coverage.states["offsets committed by groups"] > 0
    assert coverage.states["compactions: set_objects swapped"] > 10
    assert coverage.states["compactions: stream_objects swapped"] > 10
    assert coverage.states["compactions: force_split swapped"] > 0
    assert coverage.states["parts copied by the store"] > 10
    assert coverage.states["records read under a lease"] > 100
    assert coverage.states["runs with reconciliations"] > 0
    assert coverage.states["broker: cleaner_records_removed"] > 10
    assert coverage.effects["processes ended by a fault"] > 5
    assert coverage.effects["files that lost bytes in a power loss"] > 0
    for kind in (
        "stream_opened",
        "stream_closed",
        "objects_prepared",
        "stream_set_object_committed",
        "operation_completed",
        "node_registered",
    ):
        assert coverage.states[f"protocol steps: {kind}"] > 10
    for number in (
        1,
        3,
        4,
        6,
        10,
        12,
        13,
        14,
        15,
        16,
        17,
        18,
        19,
        20,
        21,
        22,
        23,
        24,
        25,
        26,
        27,
        28,
        29,
        *range(30, 39),
    ):
        assert coverage.checks[number] > 0, f"invariant {number} was never checked"


def test_the_swarm_has_transactions() -> None:
    coverage = Coverage()
    for seed in SEEDS:
        coverage.add(run(seed).coverage)
    assert coverage.states["runs with transactions"] == 2
    assert coverage.states["transactions: committed"] > 20
    assert coverage.states["transactions: aborted"] > 5
    assert coverage.states["transactions: producers that disappeared"] > 0
    assert coverage.states["transactions: requests of producers sent again"] > 10
    assert coverage.states["transactions: committed records read"] > 100
    for number in range(48, 56):
        assert coverage.checks[number] > 0, f"invariant {number} was never checked"


def test_other_seeds_have_wrong_plans_small_memory_and_settled_tasks() -> None:
    coverage = Coverage()
    for seed in (22, 33, 39):
        coverage.add(run(seed, has_transactions=False).coverage)
    assert coverage.states["wrong commits of compactions: stale_plan"] > 0
    assert coverage.states["compactor: compactor_tasks unfit"] > 0
    assert coverage.states["compactor: compactor_tasks settled"] > 0
    assert coverage.states["linearizable reads at one controller"] > 20


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
