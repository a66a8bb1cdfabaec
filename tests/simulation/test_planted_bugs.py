"""Planted bugs of whole clusters: the swarm or a scenario catches each.

The recorded seed of the table is tried first. A change of the services changes what a seed means; then the
test searches the first seeds that can show the bug. Record the new seed: searching costs most of the time
here.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

import pytest
from ponor_cluster_simulation.run.plan import draw_plan
from ponor_cluster_simulation.seeds import run_seed
from ponor_metadata.nouns.nodes import WalKind
from ponor_simulation.simulation import SimulationFailedError

from libs.s3stream.tests.interruptions import Kind
from libs.s3stream.tests.test_nothing_left_behind import (
    test_an_interrupted_compaction_leaves_no_upload_and_no_memory as interrupted_compaction,
)
from services.controller.tests.domains.objects.test_reclaiming import (
    test_orphans_are_found_and_deleted as orphans,
)
from services.controller.tests.kernel.test_refusals_are_confirmed import (
    test_a_deposed_leader_does_not_refuse_a_node_that_registered_with_the_new_one as deposed_leader,
)
from services.controller.tests.ledger import Ledger
from services.controller.tests.startup.test_restored_copy import (
    test_a_node_of_another_cluster_is_no_evidence_about_this_log as stranger,
)
from tests.scenarios import test_fenced_brokers as fenced_brokers
from tests.scenarios.test_absent_observers import (
    test_a_paused_controller_does_not_fence_the_source_of_a_move as move_under_pause,
)
from tests.scenarios.test_connections_are_closed import (
    test_clients_close_connections_to_a_silent_controller as silent_controller,
)
from tests.scenarios.test_partition_moves import (
    test_repeated_moves_under_load_lose_duplicate_and_reorder_nothing as moves_under_load,
)
from tests.simulation.mutants.mutant import Suite
from tests.simulation.mutants.table import MUTANTS, caught_by, clients_of

LOOKED_THROUGH = 60


def could_show(mutant: str, seed: int) -> bool:
    """Whether the faults and clients of a seed can show the bug. Drawing a plan is cheap; running
    it takes seconds.
    """
    plan = draw_plan(seed, clients_of(mutant))
    if mutant.startswith("move_"):
        return plan.mover_pause_s_max is not None
    if mutant.startswith("permission_"):
        return plan.broker_readers > 0 and plan.wal is WalKind.OBJECT
    if mutant.startswith("wal_"):
        return plan.wal is WalKind.OBJECT
    if mutant.startswith("transaction_"):
        return bool(plan.transactions.clients)
    if mutant.startswith("group_"):
        return bool(plan.group.clients)
    if mutant.startswith("share_"):
        return bool(plan.share_group.clients)
    if mutant.startswith("streams_"):
        return bool(plan.streams_group.clients)
    return True


@pytest.mark.timeout(1_800)  # if the recorded seeds no longer catch them
@pytest.mark.parametrize(("mutant", "seed", "message"), caught_by(Suite.SWARM))
def test_a_planted_bug_is_caught(mutant: str, seed: int, message: str) -> None:
    failures: list[str] = []
    others = (each for each in range(LOOKED_THROUGH) if each != seed and could_show(mutant, each))
    for each in (seed, *others):
        with MUTANTS[mutant].planted():
            failures.append(run_seed(each, small=False, clients=clients_of(mutant)).failure)
        if re.search(message, failures[-1]):
            return
    pytest.fail("\n".join(filter(None, failures)) or "no check failed")


def reclaim_orphans() -> None:
    """Reclaim orphaned streams and keys on one ledger."""
    ledger = Ledger()
    orphans(ledger, ledger.register(0))


STORIES: dict[str, Callable[[], object]] = {
    "move_appends_after_close": lambda: moves_under_load(WalKind.OBJECT),
    "compaction_keeps_uploads_open": lambda: asyncio.run(interrupted_compaction(Kind.NOT_APPLIED)),
    "controller_believes_other_clusters": stranger,
    "permission_not_asked_by_groups": lambda: (
        fenced_brokers.test_an_isolated_and_replaced_broker_answers_no_reader_and_no_group(14)
    ),
    "purge_forgets_keys": reclaim_orphans,
    "session_keeps_refused_connections": silent_controller,
    "silence_counts_own_absence": lambda: move_under_pause(1),
    "refused_hello_not_confirmed": lambda: deposed_leader(7, isolated=False),
}
"""Bugs that the swarm shows too rarely. Each needs a special event.

Examples: a group coordinator that only the controllers cannot reach, a sole controller that is
paused at a certain time, a node that contacts the wrong or a silent controller or one of another
cluster, a store that fails during a multipart upload, a key left at the deletion of its topic, a
batch that arrives while a moving partition closes.
"""


@pytest.mark.parametrize("mutant", STORIES)
def test_a_planted_bug_is_caught_by_a_scenario(mutant: str) -> None:
    with MUTANTS[mutant].planted(), pytest.raises((AssertionError, SimulationFailedError)):
        STORIES[mutant]()
