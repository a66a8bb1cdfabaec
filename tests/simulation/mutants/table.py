"""All planted bugs: a simulation that does not catch them proves nothing.

The recorded seeds were found by `python -m tests.simulation.catching_seeds NAME`.
"""

from __future__ import annotations

from typing import Final

from ponor_cluster_simulation.run.plan import OptionalClients

from tests.simulation.mutants.broker import BROKER_MUTANTS
from tests.simulation.mutants.compaction import COMPACTION_MUTANTS
from tests.simulation.mutants.controller import CONTROLLER_MUTANTS
from tests.simulation.mutants.garbage import GARBAGE_MUTANTS
from tests.simulation.mutants.groups import GROUP_MUTANTS
from tests.simulation.mutants.mutant import Suite
from tests.simulation.mutants.raft import RAFT_MUTANTS
from tests.simulation.mutants.share_groups import SHARE_MUTANTS
from tests.simulation.mutants.storage import JOURNAL_AND_STORAGE_MUTANTS
from tests.simulation.mutants.streams_groups import STREAMS_MUTANTS
from tests.simulation.mutants.transactions import TRANSACTION_MUTANTS

MUTANTS: Final = {
    each.name: each
    for each in (
        *RAFT_MUTANTS,
        *JOURNAL_AND_STORAGE_MUTANTS,
        *BROKER_MUTANTS,
        *TRANSACTION_MUTANTS,
        *GROUP_MUTANTS,
        *SHARE_MUTANTS,
        *STREAMS_MUTANTS,
        *COMPACTION_MUTANTS,
        *CONTROLLER_MUTANTS,
        *GARBAGE_MUTANTS,
    )
}


def clients_of(name: str) -> OptionalClients:
    """Which optional clients the swarm's seeds of a mutant have: those that show the bug."""
    # Seeds are cheaper without the others, and do not change with them.
    return OptionalClients(
        transactions=name.startswith("transaction_"),
        group=name.startswith("group_"),
        share_group=name.startswith("share_"),
        streams_group=name.startswith("streams_"),
    )


def caught_by(suite: Suite) -> list[tuple[str, int, str]]:
    """Name, recorded seed and pattern of every mutant that a suite catches; parameters for pytest."""
    return [
        (each.name, catch.seed, catch.message)
        for each in MUTANTS.values()
        for catch in each.catches
        if catch.suite is suite
    ]
