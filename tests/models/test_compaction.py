"""Compaction: each offset is stored once and readers find their objects; each rule is needed."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from ponor_cluster_simulation.protocols.compactions import CompactionRules
from ponor_cluster_simulation.protocols.objects import ObjectRules

from tests.models.checker import Exploration, explore
from tests.models.compaction import AroundRules, CompactionModel

TWO_WORKERS = CompactionModel(time_max=1)
UPLOADS = CompactionModel(uploads=1, uploads_later=1, workers=1, outputs_max=2, time_max=1)
NO_TIME = CompactionModel(time_max=0)
TWO_TASKS = CompactionModel(tasks_max=2, time_max=0)
LEASED = CompactionModel(leases=True, workers=1, outputs_max=1)
IMAGES = CompactionModel(images=True, workers=1, outputs_max=1, delay=1)


def search(model: CompactionModel, *dropped: str) -> Exploration[object]:
    rules = {field.name: field.name not in dropped for field in fields(CompactionRules)}
    around = {field.name: field.name not in dropped for field in fields(AroundRules)}
    of_objects = {field.name: field.name not in dropped for field in fields(ObjectRules)}
    assert set(dropped) <= {*rules, *around, *of_objects}
    return explore(
        replace(
            model,
            rules=CompactionRules(**rules),
            around=AroundRules(**around),
            object_rules=ObjectRules(**of_objects),
        )
    )


@pytest.mark.parametrize(
    ("model", "states_min"),
    [(TWO_WORKERS, 7_000), (UPLOADS, 3_000), (TWO_TASKS, 600), (LEASED, 10_000), (IMAGES, 9_000)],
    ids=["two workers", "uploads beside", "two tasks", "a lease", "an image"],
)
def test_with_all_rules_every_offset_is_held_once_and_found(model: CompactionModel, states_min: int) -> None:
    found = search(model)
    assert found.complete, str(found)
    assert found.states >= states_min
    collected = {"claim", "remove"} if model.time_max > model.delay else set()
    assert {"lease", "put", "commit", "forget", *collected} <= set(found.taken)


HELD_TWICE = "is held 2 times"
NEEDED = [
    ("holds_everything", TWO_WORKERS, 3, "offset 1 is held 0 times"),
    ("holds_nothing_else", UPLOADS, 4, HELD_TWICE),
    ("all_at_once", TWO_WORKERS, 3, HELD_TWICE),
    ("put_before_commit", TWO_WORKERS, 3, "is committed and not in the store"),
    ("lease_keeps", LEASED, 5, "is missed by a reader with a lease"),
    ("claim_after_delay", IMAGES, 4, "is missed by a reader of an image"),
]
SECOND_LAYERS = [
    ("source_of_one_task", TWO_TASKS),
    ("leased_when_vacant", NO_TIME),
    ("token_rises", TWO_WORKERS),
    ("swapped_by_holder", TWO_TASKS),
]


@pytest.mark.parametrize(("dropped", "model", "steps", "violation"), NEEDED)
def test_a_dropped_rule_allows_a_violation(
    dropped: str, model: CompactionModel, steps: int, violation: str
) -> None:
    found = search(model, dropped)
    assert found.counter_example is not None, str(found)
    assert violation in found.counter_example.violation
    assert len(found.counter_example.steps) == steps, str(found.counter_example)


@pytest.mark.parametrize(("dropped", "model"), SECOND_LAYERS)
def test_tasks_and_tokens_save_work_but_protect_no_data(dropped: str, model: CompactionModel) -> None:
    """Any worker may commit; the outputs must contain exactly the remaining data of the sources."""
    found = search(model, dropped)
    assert found.complete, str(found)


def test_every_rule_is_dropped_somewhere() -> None:
    dropped = {case[0] for case in (*NEEDED, *SECOND_LAYERS)}
    assert {field.name for rules in (CompactionRules, AroundRules) for field in fields(rules)} <= dropped
