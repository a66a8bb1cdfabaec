"""A storage node whose machine crashes and loses power at random moments: nothing acknowledged is lost, doubled or reordered."""

from __future__ import annotations

import importlib
import os

import pytest
from ponor_simulation.simulation import SimulationFailedError

from tests.simulation.storage_world import World

SEEDS = int(os.environ.get("PONOR_SEEDS", "200"))
BATCH = 20


def run_storage(seed: int) -> World:
    """One world from beginning to end."""
    world = World(seed)
    world.simulation.run(world.scenario())
    return world


@pytest.mark.parametrize("first", range(0, SEEDS, BATCH))
def test_every_acknowledged_append_is_there_once_in_order(first: int) -> None:
    for seed in range(first, min(first + BATCH, SEEDS)):
        run_storage(seed)


def test_the_workload_reaches_what_it_is_for() -> None:
    worlds = [run_storage(seed) for seed in range(30)]
    assert sum(len(history.acknowledged) for world in worlds for history in world.histories.values()) > 3_000
    assert sum(world.recovered_records for world in worlds) > 300
    commits = [commit for world in worlds for commit in world.cluster.commits]
    assert sum(bool(commit.stream_objects) and commit.stream_set_object is None for commit in commits) > 10, (
        "rests were carried"
    )
    assert (
        sum(bool(commit.stream_objects) and commit.stream_set_object is not None for commit in commits) > 10
    )
    assert any(world.store.bucket.calls["put"] > world.store.bucket.applied["put"] for world in worlds)


def test_a_seed_is_a_trace() -> None:
    assert run_storage(3).simulation.trace.digest == run_storage(3).simulation.trace.digest
    assert run_storage(3).simulation.trace.digest != run_storage(4).simulation.trace.digest


@pytest.mark.parametrize(
    ("mutant", "seed", "caught_by"),
    [
        ("storage_ack_before_durable", 8, "lost"),
        ("storage_trim_forgets_carried", 5, "lost"),
        ("storage_commits_out_of_order", 0, "does not continue"),
        ("storage_recovery_drops_tail", 0, "lost"),
    ],
)
def test_a_planted_bug_is_caught(
    mutant: str, seed: int, caught_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    importlib.import_module(f"tests.simulation.mutants.{mutant}").plant(monkeypatch)
    with pytest.raises(SimulationFailedError, match=caught_by):
        run_storage(seed)
