"""Random faults lose no committed entry, and the group works again when they stop."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ponor_raft.membership import ReplicaId

from libs.raft.tests.raft_world import World

STEP = st.integers(0, 2**20 - 1)
STEPS_A_DAY = 1500


class CountingWorld(World):
    """Counts events, so that a test can detect a world without faults."""

    def __init__(self, seed: int, voters: int, spare: int) -> None:
        self.events: Counter[str] = Counter()
        super().__init__(seed, voters, spare)

    def note(self, own: ReplicaId, text: str) -> None:
        self.events[" ".join(text.split()[:2])] += 1


def bad_days(seed: int, days: int) -> CountingWorld:
    chance = random.Random(seed)
    world = CountingWorld(seed, voters=(1, 2, 3, 3, 5)[seed % 5], spare=2)
    for day in range(days):
        for _ in range(STEPS_A_DAY):
            world.act(chance.randrange(2**20))
        world.check()
        if day % 2:
            world.recover()
    world.recover()
    return world


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 2**16),
    voters=st.sampled_from([1, 2, 3, 5]),
    spare=st.integers(0, 2),
    steps=st.lists(STEP, min_size=50, max_size=800),
)
def test_any_steps(seed: int, voters: int, spare: int, steps: list[int]) -> None:
    world = World(seed, voters, spare)
    for step in steps:
        world.act(step)
    world.check()
    world.recover()


@pytest.mark.parametrize("seed", range(100, 110))
def test_many_faults_of_all_kinds(seed: int) -> None:
    world = bad_days(seed, days=3)
    assert world.oracle.commit_index > 0


def test_the_faults_occur_often_enough() -> None:
    """Every kind of event of the other tests occurs; otherwise they would prove nothing."""
    events: Counter[str] = Counter()
    changes = 0
    for seed in range(20):
        world = bad_days(seed, days=2)
        events += world.events
        changes += sum(entry.membership is not None for entry in world.oracle.committed)
        events["answered reads"] += world.oracle.reads_answered
    assert events["is leader"] > 50
    assert events["is candidate"] > events["is leader"]
    assert events["begins behind"] > 3
    assert events["answered reads"] > 20
    assert changes > 20
