"""The controller's log on a disk that loses unsynced data: acknowledged operations survive exactly once.

Snapshot and tail together are the log.
"""

from __future__ import annotations

import os
from functools import cache

import pytest
from ponor_simulation.simulation import SimulationFailedError

from tests.simulation.controller_workload import run_controller
from tests.simulation.mutants.mutant import Suite
from tests.simulation.mutants.table import MUTANTS, caught_by

SEEDS = int(os.environ.get("PONOR_SEEDS", "30"))
BATCH = 20

once = cache(run_controller)
"""Run a seed once; tests share the result."""


@pytest.mark.parametrize("first", range(0, SEEDS, BATCH))
def test_acknowledged_operations_survive_every_crash_exactly_once(first: int) -> None:
    for seed in range(first, min(first + BATCH, SEEDS)):
        once(seed)


def test_the_workload_reaches_the_intended_states() -> None:
    histories = [once(seed)[0] for seed in range(12)]
    assert sum(history.crashes for history in histories) > 30
    assert sum(history.fail_stops for history in histories) > 3
    assert all(history.snapshots > 0 for history in histories)
    assert all(history.trimmed > 0 for history in histories)
    assert all(len(history.keys) == 150 for history in histories)


def test_a_seed_gives_one_trace() -> None:
    assert run_controller(5)[1] == once(5)[1]
    assert once(5)[1] != once(6)[1]


@pytest.mark.parametrize(("mutant", "seed", "message"), caught_by(Suite.CONTROLLER_LOG))
def test_a_planted_bug_is_caught(
    mutant: str, seed: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of a few seeds catches it; a change of timing changes which one."""
    MUTANTS[mutant].plant(monkeypatch)
    with pytest.raises(SimulationFailedError, match=message):
        for seed in range(20):
            run_controller(seed)
