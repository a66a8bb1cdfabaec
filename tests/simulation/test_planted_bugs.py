"""Bugs that are planted, one at a time, and the seed of the swarm that catches each: a simulation that catches none proves nothing.

The bugs stand in `mutants`; the seeds were found by `python -m tests.simulation.catching_seeds`. When the dice change their meaning, the seeds move and are looked for again.
"""

from __future__ import annotations

import re

import pytest
from ponor_simulation.seeds import run_seed

from tests.simulation.catching_seeds import planted


@pytest.mark.parametrize(
    ("mutant", "seed", "caught_by"),
    [
        ("upload_commit_without_epoch", 2, r"its end cannot advance"),
        ("upload_commit_without_prepared", 2, r"invariant 21"),
        ("gc_ignores_retention", 0, r"invariant 24"),
        ("operations_known_by_id_only", 0, r"invariant 27"),
        ("subscription_goes_back", 0, r"invariant 28"),
        ("journal_truncates_corrupt_middle", 103, r"two histories"),
        ("snapshot_without_digest", 27, r"invariant (10|28)"),
    ],
)
def test_a_planted_bug_is_caught(mutant: str, seed: int, caught_by: str) -> None:
    with planted(mutant):
        failure = run_seed(seed, small=False).failure
    assert re.search(caught_by, failure), failure or "nobody noticed"
