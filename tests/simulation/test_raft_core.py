"""The Raft core in groups of one to six, under crashes, faulty networks and disks, pauses and operators.

`ponor_cluster_simulation.raft_cluster.invariants` has the invariants. The clients' histories must
be linearizable, and every group recovers after the faults. A failing seed prints itself, its
parameters and the last events. To run one seed again:

    .venv/bin/python -c 'from ponor_cluster_simulation.raft_cluster.cluster import run_raft;
    run_raft(17)'
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from ponor_cluster_simulation.raft_cluster.cluster import run_raft
from ponor_simulation.simulation import SimulationFailedError

from tests.simulation.mutants.mutant import Suite
from tests.simulation.mutants.table import MUTANTS, caught_by

SEEDS = int(os.environ.get("PONOR_SEEDS", "30"))
BATCH = 20
MUTANT_SEEDS_MAX = 200
ROOT = Path(__file__).parents[2]
PRINT_DIGESTS = """\
from ponor_cluster_simulation.raft_cluster.cluster import run_raft
print(*[run_raft(seed).trace.digest for seed in (3, 4)])
"""


@cache
def coverage_of(seed: int) -> Counter[str]:
    """Run a seed once; tests share the result."""
    return Counter(run_raft(seed).coverage)


@pytest.mark.parametrize("first", range(0, SEEDS, BATCH))
def test_every_invariant_holds_and_every_group_recovers(first: int) -> None:
    for seed in range(first, min(first + BATCH, SEEDS)):
        coverage_of(seed)


def test_the_seeds_reach_the_intended_states() -> None:
    coverage: Counter[str] = Counter()
    for seed in range(40):
        coverage.update(coverage_of(seed))
    least = {
        "elected": 200,
        "crash": 200,
        "pause": 200,
        "partition": 200,
        "blackout": 100,
        "seclusion": 100,
        "slow disk": 100,
        "full disk": 100,
        "older copy": 100,
        "lost committed entries": 10,
        "transfer": 200,
        "membership committed": 30,
        "retired": 5,
        "MembershipChangeError": 10,
        "leader crash": 10,
        "log cut": 5,
        "snapshot stored": 300,
        "snapshot installed": 15,
        "overwritten": 3,
        "message lost": 2_000,
        "message repeated": 2_000,
        "message stray": 1_000,
        "written": 2_000,
        "read at the leader": 1_000,
        "read at a follower": 1_000,
        "given up": 50,
    }
    missing = {what: (coverage[what], count) for what, count in least.items() if coverage[what] < count}
    assert not missing, f"(reached, wanted): {missing}"


def test_a_seed_gives_one_trace_however_python_hashes() -> None:
    traces = [
        subprocess.run(
            [sys.executable, "-c", PRINT_DIGESTS],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout.split()
        for hash_seed in ("0", "4711")
    ]
    assert traces[0] == traces[1]
    assert traces[0][0] != traces[0][1]


@pytest.mark.parametrize(("mutant", "seed", "message"), caught_by(Suite.RAFT))
def test_a_planted_bug_is_caught(
    mutant: str, seed: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recorded seed catches it. After a change of the core, one of the first two hundred does."""
    MUTANTS[mutant].plant(monkeypatch)
    with pytest.raises(SimulationFailedError, match=message):
        for each in (seed, *range(MUTANT_SEEDS_MAX)):
            run_raft(each)
