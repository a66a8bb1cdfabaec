"""A storage node that crashes and loses power at random times: no acknowledged record is lost,
doubled or reordered.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache

import pytest
from ponor_simulation.simulation import SimulationFailedError

from tests.simulation.mutants.mutant import Suite
from tests.simulation.mutants.table import MUTANTS, caught_by
from tests.simulation.storage_world import World

SEEDS = int(os.environ.get("PONOR_SEEDS", "30"))
BATCH = 20


def run_storage(seed: int) -> World:
    """Run one seed."""
    world = World(seed)
    world.simulation.run(world.scenario())
    return world


@dataclass(frozen=True, slots=True)
class Outcome:
    """The kept results of a run, so that tests share it."""

    digest: str
    acknowledged: int
    recovered: int
    carried_alone: int
    carried_beside: int
    has_failed_puts: bool
    losses: int


@cache
def outcome(seed: int) -> Outcome:
    """Run a seed once and return its outcome."""
    world = run_storage(seed)
    carried = [commit for commit in world.cluster.commits if commit.stream_objects]
    alone = sum(commit.stream_set_object is None for commit in carried)
    return Outcome(
        digest=world.simulation.trace.digest,
        acknowledged=sum(len(history.acknowledged) for history in world.histories.values()),
        recovered=world.recovered_records,
        carried_alone=alone,
        carried_beside=len(carried) - alone,
        has_failed_puts=world.store.bucket.calls["put"] > world.store.bucket.applied["put"],
        losses=world.losses,
    )


@pytest.mark.parametrize("first", range(0, SEEDS, BATCH))
def test_every_acknowledged_append_is_there_once_in_order(first: int) -> None:
    for seed in range(first, min(first + BATCH, SEEDS)):
        outcome(seed)


def test_the_workload_reaches_the_intended_states() -> None:
    outcomes = [outcome(seed) for seed in range(30)]
    assert sum(each.acknowledged for each in outcomes) > 3_000
    assert sum(each.recovered for each in outcomes) > 300
    assert sum(each.carried_alone for each in outcomes) > 10, "rests were carried"
    assert sum(each.carried_beside for each in outcomes) > 10
    assert any(each.has_failed_puts for each in outcomes)
    assert sum(each.losses for each in outcomes) > 20, "the loss of a log's contents was accepted"


def test_a_seed_gives_one_trace() -> None:
    assert run_storage(3).simulation.trace.digest == outcome(3).digest
    assert outcome(3).digest != outcome(4).digest


@pytest.mark.parametrize(("mutant", "seed", "message"), caught_by(Suite.STORAGE))
def test_a_planted_bug_is_caught(
    mutant: str, seed: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    MUTANTS[mutant].plant(monkeypatch)
    with pytest.raises(SimulationFailedError, match=message):
        run_storage(seed)
