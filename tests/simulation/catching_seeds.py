"""Which seed catches which planted bug: `python -m tests.simulation.catching_seeds NAME…` looks through the first 200.

What lives here: the search. The seeds that it found stand in `test_planted_bugs`, and each is replayed there; after a change of what the dice mean they move, and are looked for again.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pytest
from ponor_cluster_simulation.seeds import run_seed, silence

SEEDS_MAX = 200


@contextmanager
def planted(mutant: str) -> Iterator[None]:
    """The bug is there within the block."""
    patch = pytest.MonkeyPatch()
    importlib.import_module(f"tests.simulation.mutants.{mutant}").plant(patch)
    try:
        yield
    finally:
        patch.undo()


def catching_seed(mutant: str, seeds: Iterable[int] = range(SEEDS_MAX)) -> tuple[int, str] | None:
    """The first seed that fails with the bug, and what it says."""
    with planted(mutant):
        for seed in seeds:
            failure = run_seed(seed, small=False).failure
            if failure:
                return seed, failure
    return None


if __name__ == "__main__":
    silence()
    for name in sys.argv[1:]:
        print(name, catching_seed(name), flush=True)
