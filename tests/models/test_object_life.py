"""Object life: objects in use are not deleted, deleted ones do not return, and none is left; each
rule is needed.
"""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from ponor_cluster_simulation.protocols.objects import ObjectRules

from tests.models.checker import Exploration, explore
from tests.models.object_life import ObjectModel, SurroundingRules

ONE_OBJECT = ObjectModel(objects_max=1, writers_max=1, time_max=4)
LONG_LEASE = ObjectModel(objects_max=1, writers_max=1, time_max=4, lease=3)
TWO_WRITERS = ObjectModel(objects_max=2, writers_max=2, time_max=2, lease=0)


def search(model: ObjectModel, *dropped: str) -> Exploration[object]:
    rules = {field.name: field.name not in dropped for field in fields(ObjectRules)}
    around = {field.name: field.name not in dropped for field in fields(SurroundingRules)}
    assert set(dropped) <= {*rules, *around}
    return explore(replace(model, rules=ObjectRules(**rules), surroundings=SurroundingRules(**around)))


@pytest.mark.parametrize(
    ("model", "states_min"),
    [(ONE_OBJECT, 10_000), (LONG_LEASE, 10_000), (TWO_WRITERS, 100_000)],
    ids=["one object", "a lease longer than the delay", "two writers"],
)
def test_with_all_rules_nothing_is_lost_and_nothing_stays(model: ObjectModel, states_min: int) -> None:
    found = search(model)
    assert found.complete, str(found)
    assert found.states >= states_min
    assert {
        "tick",
        "stall",
        "deliver",
        "put",
        "drop",
        "repeat",
        "trim",
        "claim",
        "delete",
        "forget",
        "read",
    } <= set(found.taken)


MISSED = "is missed by a reader whose image is 0 old"
ORPHAN = "object 0 is forgotten and still in the store"
RESURRECTED = "object 0 is committed and not in the store"


NEEDED = [
    ("ids_once", TWO_WRITERS, 15, RESURRECTED),
    ("commit_needs_prepared", LONG_LEASE, 13, RESURRECTED),
    ("claim_after_lease", ONE_OBJECT, 7, ORPHAN),
    ("claim_after_delay", ONE_OBJECT, 10, MISSED),
    ("remove_needs_claim", ONE_OBJECT, 8, ORPHAN),
    ("results_kept", ONE_OBJECT, 3, "a request had two answers"),
    ("results_by_process_and_body", TWO_WRITERS, 12, ORPHAN),
    ("puts_end_with_lease", ONE_OBJECT, 10, ORPHAN),
    ("put_before_commit", ONE_OBJECT, 5, RESURRECTED),
    ("delete_before_confirm", ONE_OBJECT, 9, ORPHAN),
    ("clock_never_leaps", ONE_OBJECT, 9, ORPHAN),
]
SECOND_LAYERS = [("commit_in_lease", LONG_LEASE), ("commit_by_preparer", ObjectModel(time_max=1))]


@pytest.mark.parametrize(("dropped", "model", "steps", "violation"), NEEDED)
def test_a_dropped_rule_allows_a_violation(
    dropped: str, model: ObjectModel, steps: int, violation: str
) -> None:
    found = search(model, dropped)
    assert found.counter_example is not None, str(found)
    assert violation in found.counter_example.violation
    assert len(found.counter_example.steps) == steps, str(found.counter_example)


def test_a_commit_that_comes_late_resurrects_what_was_collected() -> None:
    """Without the checks of lease and state; either one refuses the commit."""
    way = search(ONE_OBJECT, "commit_needs_prepared", "commit_in_lease").counter_example
    assert way is not None
    assert way.violation == RESURRECTED
    assert way.actions[-3:] == ["claim", "deliver", "delete"]


def test_a_result_given_to_another_process_loses_its_data() -> None:
    """The new process gets the old one's object, commits it as its own and drops its only copy."""
    way = search(TWO_WRITERS, "results_by_process_and_body", "commit_by_preparer").counter_example
    assert way is not None
    assert way.violation == "writer 1 dropped its copy, and object 0 does not hold it"
    assert way.actions[-1] == "drop"


@pytest.mark.parametrize(("layer", "model"), SECOND_LAYERS)
def test_a_second_layer_is_not_needed_while_the_first_holds(layer: str, model: ObjectModel) -> None:
    found = search(model, layer)
    assert found.complete, str(found)


def test_every_rule_is_dropped_somewhere() -> None:
    dropped = [*(case[0] for case in NEEDED), *(layer for layer, _ in SECOND_LAYERS)]
    names = [field.name for kind in (ObjectRules, SurroundingRules) for field in fields(kind)]
    assert sorted(dropped) == sorted(names)
