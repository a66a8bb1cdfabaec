"""Trace validation: what controllers commit in simulated clusters under faults are steps that the models allow, and a planted bug is none."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from ponor.metadata.v1.records_pb2 import RecordBatch
from ponor_cluster_simulation.protocols.committed_steps import CommittedSteps
from ponor_cluster_simulation.run.cluster_run import ClusterRun
from ponor_cluster_simulation.run.plan import RunPlan, draw_plan
from ponor_controller.domains.objects import operations as objects
from ponor_controller.domains.objects import uploads
from ponor_controller.kernel.decisions import Situation
from ponor_metadata.nouns.objects import OBJECTS, OBJECTS_WAITING, ObjectRow, ObjectState

SEEDS = (2, 5)
CATCHING_SEEDS = (5, *range(1, 40))
"""The recorded one first."""


def steps_of(plan: RunPlan) -> tuple[CommittedSteps, str]:
    """One run, with its batches held against the models, and whatever else failed in it."""
    run = ClusterRun(plan)
    steps = CommittedSteps(plan.settings.controller.destroy_delay_ms)
    others = run.world.cluster.watch.on_batch

    def take(batch: RecordBatch) -> None:
        steps.take(batch)
        others(batch)

    run.world.cluster.watch.on_batch = take
    return steps, run.run().failure


def first_forbidden(expected: Callable[[str], bool]) -> str | None:
    """What the first of some seeds tells that tells this; None: none does."""
    for seed in CATCHING_SEEDS:
        for each in steps_of(draw_plan(seed))[0].forbidden:
            if expected(str(each)):
                return str(each)
    return None


def test_clusters_under_faults_take_allowed_steps_only() -> None:
    taken: dict[str, int] = {}
    for seed in SEEDS:
        steps, _ = steps_of(draw_plan(seed))
        assert not steps.forbidden, f"seed {seed}: {steps.forbidden[0]}"
        for kind, count in steps.taken.items():
            taken[kind] = taken.get(kind, 0) + count
    reached = ("stream_opened", "stream_closed", "objects_prepared", "operation_completed", "node_registered")
    assert all(taken.get(kind, 0) >= 10 for kind in reached), taken
    assert taken.get("stream_set_object_committed", 0) + taken.get("stream_object_committed", 0) >= 10, taken


def test_a_collector_that_does_not_wait_is_seen_in_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    def impatient(situation: Situation) -> Iterator[ObjectRow]:
        yield from situation.view[OBJECTS].find(OBJECTS_WAITING, ObjectState.DESTROYED)

    monkeypatch.setattr(objects, "_due_objects", impatient)
    assert first_forbidden(lambda told: "of what was destroyed at" in told or "holds until" in told)


def test_commits_whose_owner_is_not_checked_are_seen_in_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    def anybody(_: object, stream_epoch: int, situation: Situation) -> None:
        return None

    monkeypatch.setattr(uploads, "require_owner", anybody)
    assert first_forbidden(lambda told: "commits [" in told)
