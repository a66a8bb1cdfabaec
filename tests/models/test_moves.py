"""Moves and failovers: with all rules no acknowledged record is lost, one process serves, and moves
end; each rule is needed.
"""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from tests.models.checker import Exploration, explore
from tests.models.moves import MoveModel, MoveRules

ONE_LIFE = MoveModel(processes_max=0)
RESTARTS = MoveModel(processes_max=1)
STUCK = MoveModel(processes_max=0, sticks=True)
TWO_RECORDS = MoveModel(processes_max=0, records_max=2, moves_max=2)
THREE_BROKERS = MoveModel(nodes=3, processes_max=0)


def search(model: MoveModel, *dropped: str) -> Exploration[object]:
    rules = {field.name: field.name not in dropped for field in fields(MoveRules)}
    assert set(dropped) <= set(rules)
    return explore(replace(model, rules=MoveRules(**rules)))


@pytest.mark.parametrize(
    ("model", "states_min"),
    [(ONE_LIFE, 500), (RESTARTS, 40_000), (STUCK, 1_900), (TWO_RECORDS, 3_000), (THREE_BROKERS, 10_000)],
    ids=["two brokers", "restarts", "one is stuck", "two records, two moves", "three brokers"],
)
def test_with_all_rules_nothing_is_lost_and_every_move_ends(model: MoveModel, states_min: int) -> None:
    found = search(model)
    assert found.complete, str(found)
    assert found.states >= states_min
    # Other actions reach the states of `recover` and `heal` too; the tests below show that both are needed.
    expected = {"begin", "seal", "send", "close", "elect", "cancel", "timeout,", "failover,"}
    expected |= {"suspect", "assign", "fence", "release", "open", "append", "land", "upload"}
    assert expected <= set(found.taken)


LOST = "record 0, acknowledged at 0 under epoch 0, is lost"
UNSERVED = "no process serves the partition"
NEEDED = [
    ("stream_closed_before_open", ONE_LIFE, 5, LOST),
    ("closed_before_election", ONE_LIFE, 2, UNSERVED),
    ("seal_before_close", ONE_LIFE, 6, LOST),
    ("await_pending", ONE_LIFE, 6, LOST),
    ("stuck_is_fenced", ONE_LIFE, 4, LOST),
    ("fence_before_recovery", ONE_LIFE, 5, LOST),
    ("commit_before_close", ONE_LIFE, 6, LOST),
    ("late_elections_die", ONE_LIFE, 8, UNSERVED),
    ("timeout_is_replicated", STUCK, 3, "a move never ends"),
    ("cancelled_close_is_healed", ONE_LIFE, 5, UNSERVED),
]


@pytest.mark.parametrize(("dropped", "model", "steps", "violation"), NEEDED)
def test_a_dropped_rule_allows_a_violation(
    dropped: str, model: MoveModel, steps: int, violation: str
) -> None:
    found = search(model, dropped)
    assert found.counter_example is not None, str(found)
    assert violation in found.counter_example.violation
    assert len(found.counter_example.steps) == steps, str(found.counter_example)


def test_a_close_at_the_committed_end_loses_what_is_in_the_log() -> None:
    """AutoMQ's treatment of a silent source: the controller closes the streams at the end that it has."""
    way = search(ONE_LIFE, "stuck_is_fenced").counter_example
    assert way is not None
    assert way.actions == ["append", "land", "begin", "timeout,"]


def test_every_rule_is_dropped_somewhere() -> None:
    assert sorted(case[0] for case in NEEDED) == sorted(field.name for field in fields(MoveRules))
