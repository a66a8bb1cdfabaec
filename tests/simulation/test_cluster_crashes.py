"""A cluster under power loss, resets, cut links and store faults: no acknowledged record is lost,
doubled or reordered.

Controller, broker and garbage collector are the shipped services; producers and consumers use
Kafka's protocol. `cluster_world` has the faults and checks. Half of the seeds store objects in a
bucket, the others in a directory on the broker's simulated disk.

A failing seed prints itself and the last events. To run one seed again:

    PONOR_SEED=17 .venv/bin/pytest tests/simulation/test_cluster_crashes.py -k every
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from ponor_simulation.simulation import SimulationFailedError

from tests.simulation.cluster_world import STOP_S_MAX, ClusterWorld
from tests.simulation.mutants.mutant import Suite
from tests.simulation.mutants.table import MUTANTS, caught_by

SEEDS = int(os.environ.get("PONOR_SEEDS", "10"))
SEED = os.environ.get("PONOR_SEED")
BATCH = 5
LOOKED_THROUGH = 12
ROOT = Path(__file__).parents[2]
PRINT_DIGEST = """\
import sys
from tests.simulation.test_cluster_crashes import run_cluster
print(run_cluster(int(sys.argv[1])).simulation.trace.digest)
"""


def run_cluster(seed: int) -> ClusterWorld:
    """Run one seed."""
    world = ClusterWorld(seed, store_in_directory=seed % 2 == 1)
    try:
        world.run()
    except SimulationFailedError as failed:
        failed.add_note(f"again: PONOR_SEED={seed} pytest tests/simulation/test_cluster_crashes.py -k every")
        raise
    return world


@dataclass(frozen=True, slots=True)
class Outcome:
    """The kept results of a run, so that tests share it. The store's numbers are 0 with a directory."""

    digest: str
    acknowledged: int
    crashes: int
    repeats: int
    puts: int
    puts_failed: int
    objects_deleted: int
    gets: int
    snapshots_sent: int
    batches: int


@cache
def outcome(seed: int) -> Outcome:
    """Run a seed once and return its outcome."""
    world = run_cluster(seed)
    bucket = world.cluster.store.bucket if world.cluster.store is not None else None
    return Outcome(
        digest=world.simulation.trace.digest,
        acknowledged=len(world.history.acknowledged),
        crashes=world.crashes,
        repeats=sum(producer.repeats for producer in world.producers),
        puts=bucket.applied["put"] if bucket else 0,
        puts_failed=bucket.calls["put"] - bucket.applied["put"] if bucket else 0,
        objects_deleted=bucket.applied["put"] - len(bucket.objects) if bucket else 0,
        gets=bucket.applied["get"] if bucket else 0,
        snapshots_sent=world.cluster.watch.resets,
        batches=len(world.cluster.watch.digests),
    )


@pytest.mark.parametrize("first", range(0, SEEDS, BATCH) if SEED is None else [int(SEED)])
def test_every_acknowledged_record_is_present_once_in_order(first: int) -> None:
    for seed in range(first, min(first + BATCH, SEEDS) if SEED is None else first + 1):
        outcome(seed)


def test_the_workload_reaches_the_intended_states() -> None:
    outcomes = [outcome(seed) for seed in range(0, 12, 2)]
    assert sum(each.acknowledged for each in outcomes) > 1_000
    assert sum(each.crashes for each in outcomes) > 30
    assert sum(each.repeats for each in outcomes) > 50
    assert sum(each.puts for each in outcomes) > 200
    assert sum(each.objects_deleted for each in outcomes) > 10, "garbage was collected"
    assert any(each.puts_failed > 0 for each in outcomes), "puts failed"
    assert sum(each.gets for each in outcomes) > 50, "old data was read from objects"
    assert sum(each.snapshots_sent for each in outcomes) > len(outcomes), "controllers sent snapshots"
    assert max(each.batches for each in outcomes) > 100


@pytest.mark.parametrize("seed", [9, 16])
def test_a_seed_gives_one_trace_however_python_hashes(seed: int) -> None:
    digest = outcome(seed).digest
    assert run_cluster(seed).simulation.trace.digest == digest
    elsewhere = subprocess.run(
        [sys.executable, "-c", PRINT_DIGEST, str(seed)],
        env={**os.environ, "PYTHONHASHSEED": "4711"},
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    assert elsewhere.stdout.strip() == digest


@pytest.mark.parametrize("down", ["store", "controller"])
def test_a_broker_stops_in_time_during_other_failures(down: str) -> None:
    """With the store down no memory is freed for appends; with the controller down no stream is closed."""
    world = ClusterWorld(1)
    broker = world.cluster.processes["broker"]

    async def scenario() -> None:
        await world.start()
        if down == "controller":
            await asyncio.sleep(3.0)
            for producer in world.producers:
                producer.stop = True
            await asyncio.sleep(3.0)  # everything is uploaded
            world.cluster.processes["controller"].crash()
        else:
            assert world.cluster.store is not None
            world.cluster.store.faults.down = True
            await asyncio.sleep(20.0)
        world.cluster.stop("broker")
        await asyncio.sleep(STOP_S_MAX)
        assert broker.finished, f"{broker.failure!r}"
        if down == "controller":
            world.cluster.start("controller")
        world.cluster.start("broker")
        await world.judge()

    with world.cluster.watch.on():
        world.simulation.run(scenario())


@pytest.mark.parametrize(("mutant", "seed", "message"), caught_by(Suite.CLUSTER))
def test_a_planted_bug_is_caught(
    mutant: str, seed: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recorded seed catches it. After a change of timing, one of the first seeds does."""
    MUTANTS[mutant].plant(monkeypatch)
    with pytest.raises(SimulationFailedError, match=message):
        for each in dict.fromkeys((seed, *range(LOOKED_THROUGH))):
            run_cluster(each)
