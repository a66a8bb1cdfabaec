"""Search a seed that catches a planted bug: `python -m tests.simulation.catching_seeds NAME…`.

The table of mutants records the seeds. A change that affects the random draws moves them; then search again.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from ponor_cluster_simulation.seeds import run_seed, silence

from tests.simulation.mutants.table import MUTANTS, clients_of

SEEDS_MAX = 200


def catching_seed(mutant: str, seeds: Iterable[int] = range(SEEDS_MAX)) -> tuple[int, str] | None:
    """Return the first seed that fails with the bug, and its failure."""
    for seed in seeds:
        with MUTANTS[mutant].planted():
            failure = run_seed(seed, small=False, clients=clients_of(mutant)).failure
        if failure:
            return seed, failure
    return None


if __name__ == "__main__":
    silence()
    for name in sys.argv[1:]:
        print(name, catching_seed(name), flush=True)
