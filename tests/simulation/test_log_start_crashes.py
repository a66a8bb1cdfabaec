"""Retention and DeleteRecords under crashes: an answered log start never goes back, and no record
above it is lost.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache

import pytest
from ponor_metadata.nouns.streams import STREAMS
from ponor_metadata.nouns.topics import TOPICS
from ponor_simulation.simulation import SimulationFailedError

from tests.simulation.cluster_trimmer import TOPIC, Trimmer
from tests.simulation.cluster_world import SETTINGS, ClusterWorld
from tests.simulation.coverage_search import below, check_reached
from tests.simulation.mutants.table import MUTANTS

SEEDS = int(os.environ.get("PONOR_SEEDS", "5"))
BATCH = 5
FURTHER_SEEDS_MAX = 15
"""Seeds that are run if the first batch does not reach every state."""
CAUGHT_WITHIN_SEEDS = (42, 43, 47, 59, *range(42))
"""The recorded seeds first."""
QUICK = replace(SETTINGS, broker=replace(SETTINGS.broker, maintenance_interval_ms=100))


class TrimmedWorld(ClusterWorld):
    """The cluster and its faults, with a trimmer as a client."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, store_in_directory=seed % 2 == 1, settings=QUICK)
        self.trimmer = Trimmer()

    def _start_all(self) -> None:
        super()._start_all()
        self._client("trimmer", self.trimmer.run)

    async def _calm_down(self) -> None:
        self.trimmer.stop = True
        await super()._calm_down()
        await self._wait("the trimmer has read all", lambda: self.trimmer.is_finished)
        await self._wait("deleted records are trimmed", self._is_given_up)

    def _is_given_up(self) -> bool:
        """Whether the stream at the controller starts at the log start, so that older objects are garbage."""
        controller = self.cluster.watch.controller
        assert controller is not None
        topics = {row.topic_id.hex() for row in controller.image[TOPICS] if row.name == TOPIC}
        return any(
            row.tags.get("topic") in topics
            and row.tags["kind"] == "log"
            and row.start_offset >= self.trimmer.start_offset
            for row in controller.image[STREAMS]
        )


@cache
def trimmer_of(seed: int) -> Trimmer:
    """Run a seed once; return the client that knows what happened."""
    return run_world(seed).trimmer


def run_world(seed: int) -> TrimmedWorld:
    world = TrimmedWorld(seed)
    try:
        world.run()
    except SimulationFailedError as failed:
        failed.add_note(f"seed {seed}")
        raise
    return world


@pytest.mark.parametrize("first", range(0, SEEDS, BATCH))
def test_a_log_start_never_goes_back(first: int) -> None:
    for seed in range(first, min(first + BATCH, SEEDS)):
        trimmer_of(seed)


def test_the_workload_reaches_the_intended_states() -> None:
    wanted = {"deletions": 6, "retained": 1, "reads": 11}
    check_reached(
        lambda trimmers: below(
            wanted, {name: sum(getattr(each, name) for each in trimmers) for name in wanted}
        ),
        map(trimmer_of, range(BATCH)),
        map(trimmer_of, range(BATCH, BATCH + FURTHER_SEEDS_MAX)),
    )


@pytest.mark.timeout(1_800)  # if the recorded seeds no longer catch it
def test_a_start_answered_before_it_is_durable_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The start goes back, or the stream is trimmed to a start that the crash undid, and the
    partition cannot open.
    """
    MUTANTS["broker_start_before_durable"].plant(monkeypatch)
    with pytest.raises(SimulationFailedError, match=r"the log start fell|the trimmer has read all"):
        for seed in CAUGHT_WITHIN_SEEDS:
            run_world(seed)
