"""All planted bugs: a simulation that does not catch them proves nothing.

The recorded seeds were found by `python -m tests.simulation.catching_seeds NAME`.
"""

from __future__ import annotations

from typing import Final

from tests.simulation.mutants.broker import BROKER_MUTANTS
from tests.simulation.mutants.compaction import COMPACTION_MUTANTS
from tests.simulation.mutants.controller import CONTROLLER_MUTANTS
from tests.simulation.mutants.garbage import GARBAGE_MUTANTS
from tests.simulation.mutants.mutant import Suite
from tests.simulation.mutants.raft import RAFT_MUTANTS
from tests.simulation.mutants.storage import JOURNAL_AND_STORAGE_MUTANTS
from tests.simulation.mutants.transactions import TRANSACTION_MUTANTS

MUTANTS: Final = {
    each.name: each
    for each in (
        *RAFT_MUTANTS,
        *JOURNAL_AND_STORAGE_MUTANTS,
        *BROKER_MUTANTS,
        *TRANSACTION_MUTANTS,
        *COMPACTION_MUTANTS,
        *CONTROLLER_MUTANTS,
        *GARBAGE_MUTANTS,
    )
}


def has_transactions(name: str) -> bool | None:
    """Whether the swarm's seeds of a mutant have transactions: False, or as drawn."""
    # The seeds of other bugs are cheaper without, and do not change with the clients of transactions.
    return None if name.startswith("transaction_") else False


def caught_by(suite: Suite) -> list[tuple[str, int, str]]:
    """Name, recorded seed and pattern of every mutant that a suite catches; parameters for pytest."""
    return [
        (each.name, catch.seed, catch.message)
        for each in MUTANTS.values()
        for catch in each.catches
        if catch.suite is suite
    ]
