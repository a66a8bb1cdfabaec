"""A whole cluster under power loss, resets, cut links and a store in trouble: nothing acknowledged is lost, doubled or reordered, and all comes to rest.

The controller, the broker and the garbage collector are the shipped services; producers and consumers speak Kafka's protocol to them. What is done to them, and
what must hold, stands in `cluster_world`; half of the seeds keep objects in a bucket, the others in a directory on the broker's simulated disk.

A seed that fails prints itself and the last events. One seed again, alone and exactly as it was:

    PONOR_SEED=17 .venv/bin/pytest tests/simulation/test_cluster_crashes.py -k every
"""

from __future__ import annotations

import asyncio
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ponor_simulation.simulation import SimulationFailedError

from tests.simulation.cluster_world import STOP_S_MAX, ClusterWorld

SEEDS = int(os.environ.get("PONOR_SEEDS", "25"))
SEED = os.environ.get("PONOR_SEED")
BATCH = 5
ROOT = Path(__file__).parents[2]
PRINT_DIGEST = """\
import sys
from tests.simulation.test_cluster_crashes import run_cluster
print(run_cluster(int(sys.argv[1])).simulation.trace.digest)
"""


def run_cluster(seed: int) -> ClusterWorld:
    """One world from beginning to end."""
    world = ClusterWorld(seed, store_in_directory=seed % 2 == 1)
    try:
        world.run()
    except SimulationFailedError as failed:
        failed.add_note(f"again: PONOR_SEED={seed} pytest tests/simulation/test_cluster_crashes.py -k every")
        raise
    return world


@pytest.mark.parametrize("first", range(0, SEEDS, BATCH) if SEED is None else [int(SEED)])
def test_every_acknowledged_record_is_there_once_in_order(first: int) -> None:
    for seed in range(first, min(first + BATCH, SEEDS) if SEED is None else first + 1):
        run_cluster(seed)


def test_the_workload_reaches_what_it_is_for() -> None:
    worlds = [run_cluster(seed) for seed in range(0, 12, 2)]
    buckets = [world.cluster.store.bucket for world in worlds if world.cluster.store is not None]
    assert sum(len(world.history.acknowledged) for world in worlds) > 1_000
    assert sum(world.crashes for world in worlds) > 30
    assert sum(producer.repeats for world in worlds for producer in world.producers) > 50
    assert sum(bucket.applied["put"] for bucket in buckets) > 200
    deleted = [bucket.applied["put"] - len(bucket.objects) for bucket in buckets]
    assert sum(deleted) > 10, "garbage was collected"
    assert any(bucket.calls["put"] > bucket.applied["put"] for bucket in buckets), "puts failed"
    assert sum(bucket.applied["get"] for bucket in buckets) > 50, "old data was read from objects"
    assert sum(world.cluster.watch.resets for world in worlds) > len(worlds), "controllers sent snapshots"
    assert max(len(world.cluster.watch.digests) for world in worlds) > 100


@pytest.mark.parametrize("seed", [9, 16])
def test_a_seed_is_a_trace_however_python_hashes(seed: int) -> None:
    digest = run_cluster(seed).simulation.trace.digest
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
def test_a_broker_stops_in_time_whatever_else_is_down(down: str) -> None:
    """With the store down, appends wait for room in memory that nobody makes; with the controller down, nobody closes streams."""
    world = ClusterWorld(1)
    broker = world.cluster.processes["broker"]

    async def scenario() -> None:
        await world.start()
        if down == "controller":
            await asyncio.sleep(3.0)
            for producer in world.producers:
                producer.stop = True
            await asyncio.sleep(3.0)  # all is uploaded
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


@pytest.mark.parametrize(
    ("mutant", "seed", "caught_by"),
    [
        ("storage_ack_before_durable", 0, "OUT_OF_ORDER_SEQUENCE_NUMBER"),
        ("storage_trims_before_commit", 2, "neither in the write-ahead log nor uploaded"),
        ("broker_duplicate_before_durable", 0, "OUT_OF_ORDER_SEQUENCE_NUMBER"),
        ("broker_forgets_producers", 1, "was acknowledged at"),
        ("broker_snapshot_forgets_confirmed", 3, "was acknowledged at"),
        ("gc_confirms_undeleted", 0, "never deleted"),
    ],
)
def test_a_planted_bug_is_caught(
    mutant: str, seed: int, caught_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    importlib.import_module(f"tests.simulation.mutants.{mutant}").plant(monkeypatch)
    with pytest.raises(SimulationFailedError, match=caught_by):
        run_cluster(seed)
