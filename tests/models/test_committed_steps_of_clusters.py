"""Trace validation of simulated clusters: the protocol rules alone detect planted bugs in committed records.

The ledger applies the same rules to every batch of every seed of the swarm, so correct clusters are checked
there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from ponor.metadata.v1.records_pb2 import RecordBatch
from ponor_cluster_simulation.protocols.committed_steps import CommittedSteps
from ponor_cluster_simulation.run.cluster_run import ClusterRun
from ponor_cluster_simulation.run.plan import NO_CLIENTS, RunPlan, draw_plan
from ponor_controller.domains.objects import operations as objects
from ponor_controller.domains.objects import uploads
from ponor_controller.kernel.decisions import Situation
from ponor_metadata.nouns.objects import OBJECTS, OBJECTS_WAITING, ObjectRow, ObjectState

SEEDS_MAX = 40


def steps_of(plan: RunPlan) -> CommittedSteps:
    """Run a plan, and check its batches by the protocol rules before the ledger does."""
    run = ClusterRun(plan)
    steps = CommittedSteps(plan.settings.controller.destroy_delay_ms)
    watch = run.world.cluster.watch
    check_ledger = watch.on_batch

    def take(batch: RecordBatch) -> None:
        steps.take(batch)
        check_ledger(batch)

    watch.on_batch = take
    run.run()
    return steps


def first_forbidden(recorded_seed: int, expected: Callable[[str], bool]) -> str | None:
    """The first forbidden step that is expected; the recorded seed shows it, or one of the first ones."""
    for seed in (recorded_seed, *range(SEEDS_MAX)):
        for each in steps_of(draw_plan(seed, NO_CLIENTS)).forbidden:
            if expected(str(each)):
                return str(each)
    return None


def test_a_collector_that_does_not_wait_is_seen_in_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    def impatient(situation: Situation) -> Iterator[ObjectRow]:
        yield from situation.view[OBJECTS].find(OBJECTS_WAITING, ObjectState.DESTROYED)

    monkeypatch.setattr(objects, "_due_objects", impatient)
    assert first_forbidden(4, lambda told: "it was destroyed at" in told or "holds a claim until" in told)


def test_commits_whose_owner_is_not_checked_are_seen_in_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    def allow_all(_: object, stream_epoch: int, situation: Situation) -> None:
        return None

    monkeypatch.setattr(uploads, "require_owner", allow_all)
    assert first_forbidden(8, lambda told: "commits [" in told)
