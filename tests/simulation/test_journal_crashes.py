"""The journal on a disk that loses unsynced data: many seeds, equal traces for equal seeds, and planted
bugs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from ponor_simulation.simulation import SimulationFailedError

from tests.simulation.journal_workload import run_journal
from tests.simulation.mutants.mutant import Suite
from tests.simulation.mutants.table import MUTANTS, caught_by

SEEDS = int(os.environ.get("PONOR_SEEDS", "30"))
BATCH = 20
ROOT = Path(__file__).parents[2]

once = cache(run_journal)
"""Run a seed once; tests share the result."""


@pytest.mark.parametrize("first", range(0, SEEDS, BATCH))
def test_acknowledged_entries_survive_every_crash(first: int) -> None:
    for seed in range(first, min(first + BATCH, SEEDS)):
        once(seed)


@pytest.mark.parametrize("first", range(0, max(SEEDS // 2, BATCH), BATCH))
def test_a_repeatedly_full_disk_loses_no_entry_and_ends_no_process(first: int) -> None:
    histories = [run_journal(seed, no_space=True)[0] for seed in range(first, min(first + BATCH, SEEDS))]
    assert sum(history.full for history in histories) > len(histories) // 2


def test_the_workload_reaches_the_intended_states() -> None:
    histories = [once(seed)[0] for seed in range(80)]
    assert sum(history.opens for history in histories) > 250
    assert sum(history.torn for history in histories) >= 5
    assert sum(history.recycled for history in histories) > 200


def test_a_seed_gives_one_trace_however_python_hashes() -> None:
    program = (
        "from tests.simulation.journal_workload import run_journal; print(*[run_journal(s)[1] for s in"
        " (3, 4)])"
    )
    traces = [
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout.split()
        for hash_seed in ("0", "1")
    ]
    assert traces[0] == traces[1] == [once(3)[1], once(4)[1]]
    assert traces[0][0] != traces[0][1]


@pytest.mark.parametrize(("mutant", "seed", "message"), caught_by(Suite.JOURNAL))
def test_a_planted_bug_is_caught(
    mutant: str, seed: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    MUTANTS[mutant].plant(monkeypatch)
    with pytest.raises(SimulationFailedError, match=message):
        run_journal(seed)
