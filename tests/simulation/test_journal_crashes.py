"""The journal on a disk that forgets: many seeds, the same trace for the same seed, and planted bugs that must be caught."""

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
"""Each seed runs once, however many tests ask."""


@pytest.mark.parametrize("first", range(0, SEEDS, BATCH))
def test_acknowledged_entries_survive_every_crash(first: int) -> None:
    for seed in range(first, min(first + BATCH, SEEDS)):
        once(seed)


@pytest.mark.parametrize("first", range(0, max(SEEDS // 2, BATCH), BATCH))
def test_a_disk_that_is_full_now_and_then_costs_no_entry_and_no_life(first: int) -> None:
    histories = [run_journal(seed, no_space=True)[0] for seed in range(first, min(first + BATCH, SEEDS))]
    assert sum(history.full for history in histories) > len(histories) // 2


def test_the_workload_reaches_what_it_is_for() -> None:
    histories = [once(seed)[0] for seed in range(80)]
    assert sum(history.opens for history in histories) > 250
    assert sum(history.torn for history in histories) >= 5
    assert sum(history.recycled for history in histories) > 200


def test_a_seed_is_a_trace_whatever_python_hashes() -> None:
    program = "from tests.simulation.journal_workload import run_journal; print(*[run_journal(s)[1] for s in (3, 4)])"
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
