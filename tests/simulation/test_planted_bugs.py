"""Bugs that are planted, one at a time, and the seed of the swarm that catches each: a simulation that catches none proves nothing.

The bugs stand in `mutants`; the seeds were found by `python -m tests.simulation.catching_seeds`. They are tried first. A change of the services changes what a seed means, so that another one may catch the
bug instead: then the first ones are looked through, those that have what it takes. A seed that is over soon is worth looking for: most of what these tests cost was seeds that had moved.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

import pytest
from ponor_cluster_simulation.run.plan import draw_plan
from ponor_cluster_simulation.seeds import run_seed
from ponor_metadata.rows import WalKind
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
    test_a_node_of_another_cluster_says_nothing_about_this_log as stranger,
)
from tests.scenarios import test_fenced_brokers as fenced_brokers
from tests.scenarios.test_absent_observers import (
    test_a_controller_that_was_paused_does_not_take_the_source_of_a_move_for_stuck as move_under_pause,
)
from tests.scenarios.test_connections_are_closed import (
    test_nobody_leaves_a_connection_to_a_silent_controller_open as silent_controller,
)
from tests.scenarios.test_partition_moves import (
    test_back_and_forth_under_load_nothing_is_lost_doubled_or_out_of_order as moves_under_load,
)
from tests.simulation.catching_seeds import planted

LOOKED_THROUGH = 60


def could_show(mutant: str, seed: int) -> bool:
    """Whether anything of the kind happens in a seed at all: drawing its plan costs nothing, running it seconds."""
    plan = draw_plan(seed)
    if mutant.startswith("move_"):
        return plan.mover_pause_s_max is not None
    if mutant.startswith("permission_"):
        return plan.broker_readers > 0 and plan.wal is WalKind.OBJECT
    if mutant.startswith("wal_"):
        return plan.wal is WalKind.OBJECT
    return True


@pytest.mark.timeout(1_800)  # should the recorded seeds move
@pytest.mark.parametrize(
    ("mutant", "seed", "caught_by"),
    [
        ("upload_commit_without_epoch", 4, r"invariant 14|its end cannot advance"),
        ("upload_commit_without_prepared", 4, r"invariant 21"),
        ("gc_ignores_retention", 1, r"invariant 24"),
        ("operations_known_by_id_only", 0, r"invariant 27"),
        ("subscription_goes_back", 0, r"invariant 28"),
        ("journal_truncates_corrupt_middle", 49, r"two histories"),
        ("snapshot_without_digest", 8, r"invariant (10|28)"),
        ("wal_fence_trimmed", 2, r"the fence .* is deleted"),
        ("wal_ack_before_durable", 5, r"invariant 32"),
        ("wal_trimmed_before_commit", 8, r"invariant 32"),
        ("recovery_closes_at_committed_end", 2, r"invariant 32"),
        ("move_watermark_of_before", 36, r"the high watermark of \d+ fell"),
        ("failover_forgets_open_streams", 15, r"is open at epoch"),
        ("compaction_without_coverage", 0, r"invariant 26"),
        ("compaction_ignores_retention", 0, r"invariant 24"),
        ("snapshot_lease_ignored", 2, r"invariant 36"),
        ("compaction_plans_from_stale_metadata", 0, r"invariant 26"),
        ("compaction_committed_twice", 15, r"invariant 35"),
        ("snapshot_lease_ends_early", 2, r"invariant 36"),
        ("compaction_misdates_blocks", 0, r"invariant 26"),
        ("raft_reads_without_heartbeats", 1, r"invariant 11"),
        ("reclaim_forgets_set_objects", 1, r"holds nothing live"),
        ("reclaim_destroys_what_other_streams_need", 0, r"invariant 24"),
        ("open_for_absent_topics", 21, r"invariant 39"),
        ("gc_claim_never_over", 99, r"invariant 25"),
        ("compaction_never_given_back", 11, r"invariant 38"),
        ("permission_never_withdrawn", 276, r"invariant 40"),
        ("permission_not_asked_by_sessions", 438, r"invariant 40"),
    ],
)
def test_a_planted_bug_is_caught(mutant: str, seed: int, caught_by: str) -> None:
    failures: list[str] = []
    others = (each for each in range(LOOKED_THROUGH) if each != seed and could_show(mutant, each))
    for each in (seed, *others):
        with planted(mutant):
            failures.append(run_seed(each, small=False).failure)
        if re.search(caught_by, failures[-1]):
            return
    pytest.fail("\n".join(filter(None, failures)) or "nobody noticed")


def reclaim_orphans() -> None:
    """Orphaned streams and keys on one ledger."""
    ledger = Ledger()
    orphans(ledger, ledger.register(0))


STORIES: dict[str, Callable[[], object]] = {
    "move_appends_after_close": lambda: moves_under_load(WalKind.OBJECT),
    "compaction_keeps_uploads_open": lambda: asyncio.run(interrupted_compaction(Kind.NOT_APPLIED)),
    "controller_believes_other_clusters": stranger,
    "permission_not_asked_by_groups": lambda: (
        fenced_brokers.test_a_broker_that_is_cut_off_and_replaced_answers_no_reader_and_no_group(14)
    ),
    "purge_forgets_keys": reclaim_orphans,
    "session_keeps_refused_connections": silent_controller,
    "silence_counts_own_absence": lambda: move_under_pause(1),
    "refused_hello_not_confirmed": lambda: deposed_leader(7, isolated=False),
}
"""Bugs that the swarm meets too rarely: they need a group whose coordinator is cut off from the controllers alone, a sole controller that is paused at the right moment, a node that asks the wrong controller, a silent one or one of another cluster, a store that fails for good while parts are uploaded, a key that its broker left behind when the topic was deleted, or a batch that arrives just while the streams of a moving partition are closed."""


@pytest.mark.parametrize("mutant", STORIES)
def test_a_planted_bug_is_caught_by_a_story(mutant: str) -> None:
    with planted(mutant), pytest.raises((AssertionError, SimulationFailedError)):
        STORIES[mutant]()
