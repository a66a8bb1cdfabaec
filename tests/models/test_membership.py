"""Membership changes: all rules together are safe within the bounds, and each rule is needed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.models.checker import explore
from tests.models.membership import MembershipModel, MembershipRules


@pytest.mark.parametrize(
    ("replicas", "first_voters", "states_min"),
    [(3, 3, 2_000), (4, 4, 20_000), (4, 3, 50_000)],
    ids=["three voters", "four voters", "three voters and a blank one"],
)
def test_with_all_rules_nothing_committed_is_lost(replicas: int, first_voters: int, states_min: int) -> None:
    found = explore(MembershipModel(replicas, first_voters))
    assert found.complete, str(found)
    assert found.states >= states_min
    assert set(found.taken) == {"elect", "change", "replicate"}


def test_the_search_reaches_two_committed_changes_and_three_leaders() -> None:
    """The search is meaningful only if it reaches the interesting states."""

    class Reaching(MembershipModel):
        def violation(self, state):  # type: ignore[no-untyped-def]
            changes = sum(1 for entry in state.committed if entry.voters)
            terms = {entry.term for entry in state.committed}
            return "reached" if changes == 2 and terms == {1, 2, 3} else None

    found = explore(Reaching(4, 3))
    assert found.counter_example is not None


LEAVES_NO_QUORUM_IN_COMMON = ["elect", "replicate", "change", "change", "elect"]
"""A leader shrinks the group to itself in two changes; the others elect another leader."""
ONGARO_2015 = ["elect", "change", "elect", "elect", "change", "elect"]
"""Two leaders each with a change that the other has not received: their majorities need not overlap
(raft-dev, July 2015).
"""
GOES_BY_A_CONFIGURATION_OF_THE_PAST = [
    *("elect", "replicate", "change", "replicate", "change", "replicate"),
    *("elect", "elect"),
]
"""A voter with an old commit index campaigns in an old configuration (etcd-io/etcd #12359)."""
FIGURE_8 = ["elect", "elect", "elect", "replicate", "elect"]
"""A counted old entry is replaced by a leader with a newer last entry (Figure 8 of the Raft paper)."""


NEEDED = [
    ("one_at_a_time", MembershipModel(3, 3), LEAVES_NO_QUORUM_IN_COMMON),
    ("own_term_first", MembershipModel(4, 4), ONGARO_2015),
    ("in_force_on_append", MembershipModel(3, 3), GOES_BY_A_CONFIGURATION_OF_THE_PAST),
    ("one_voter", MembershipModel(3, 3), ["elect", "replicate", "change", "elect"]),
    ("own_term_commits", MembershipModel(3, 3, changes_max=0, terms_max=4), FIGURE_8),
    ("longer_log_wins", MembershipModel(3, 3), ["elect", "replicate", "elect"]),
]


@pytest.mark.parametrize(("dropped", "model", "actions"), NEEDED)
def test_each_rule_is_needed(dropped: str, model: MembershipModel, actions: list[str]) -> None:
    found = explore(replace(model, rules=replace(MembershipRules(), **{dropped: False})))
    assert found.counter_example is not None, str(found)
    assert found.counter_example.actions == actions, str(found.counter_example)


def test_every_rule_is_dropped_above() -> None:
    assert [case[0] for case in NEEDED] == MembershipRules.names()


def test_ongaros_counter_example_is_printed() -> None:
    found = explore(MembershipModel(4, 4, rules=MembershipRules(own_term_first=False)))
    assert str(found.counter_example).splitlines()[:4] == [
        "violated after 6 steps: A and B both lead term 3",
        "   0.                           A 0:[]  B 0:[]  C 0:[]  D 0:[]  committed []",
        "   1. elect A in term 1 by ABC  A*1:[1]  B 1:[]  C 1:[]  D 0:[]  committed []",
        "   2. change by A to ABC        A*1:[1 1=ABC]  B 1:[]  C 1:[]  D 0:[]  committed []",
    ]
