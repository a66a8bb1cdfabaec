"""The sticky task assignor: one active owner per task, balance, stickiness, standby tasks elsewhere."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ponor_broker.groups.streams.assignment import NO_TASKS, TaskId, Tasks
from ponor_broker.groups.streams.task_assignor import (
    AssignedMember,
    StickyTaskAssignor,
    Targets,
    TaskDemand,
)
from ponor_runtime.turns import at_once

from services.broker.tests.streams_kit import tasks


def assign(
    members: dict[str, str], counts: dict[str, int], former: Targets | None = None, *, standby: int = 0
) -> Targets:
    """Assign tasks to members, given by their process; every subtopology except `stateless` has state."""
    known = former or {}
    given_members = {
        member_id: AssignedMember(process_id, known.get(member_id, NO_TASKS))
        for member_id, process_id in members.items()
    }
    demand = TaskDemand(counts, frozenset(counts) - {"stateless"}, standby)
    return at_once(StickyTaskAssignor(given_members, demand).assign())


def active_of(targets: Targets) -> Counter[TaskId]:
    return Counter(task for target in targets.values() for task in target.active)


MEMBERS = st.dictionaries(
    st.sampled_from([f"m{number}" for number in range(8)]),
    st.sampled_from(["p0", "p1", "p2", "p3"]),
    min_size=1,
)
COUNTS = st.dictionaries(st.sampled_from(["0", "1", "2", "stateless"]), st.integers(1, 7), min_size=1)
STANDBY = st.integers(0, 2)


@given(MEMBERS, MEMBERS, COUNTS, COUNTS, STANDBY)
def test_any_change_keeps_the_guarantees(
    before: dict[str, str],
    after: dict[str, str],
    counts_before: dict[str, int],
    counts: dict[str, int],
    standby: int,
) -> None:
    former = assign(before, counts_before, standby=standby)
    targets = assign(after, counts, former, standby=standby)
    assert targets.keys() == after.keys()
    wanted = {TaskId(each, index) for each, count in counts.items() for index in range(count)}
    assert active_of(targets) == Counter(wanted), "every task has exactly one active owner"
    per_process: dict[str, Counter[TaskId]] = {}
    for member_id, target in targets.items():
        held = per_process.setdefault(after[member_id], Counter())
        held.update(target.active)
        held.update(target.standby)
    for held in per_process.values():
        assert not held or max(held.values()) == 1, "a process has a task twice"
    copies = Counter(task for target in targets.values() for task in target.standby)
    processes = len(set(after.values()))
    for task in wanted:
        expected = 0 if task.subtopology_id == "stateless" else min(standby, processes - 1)
        assert copies[task] == expected, "standby tasks are on as many other processes as exist"
    assert assign(after, counts, targets, standby=standby).keys() == targets.keys()


@given(st.integers(1, 8), COUNTS)
def test_members_of_separate_processes_get_equal_numbers(members: int, counts: dict[str, int]) -> None:
    targets = assign({f"m{number}": f"p{number}" for number in range(members)}, counts)
    sizes = [len(target.active) for target in targets.values()]
    assert max(sizes) - min(sizes) <= 1


@given(MEMBERS, COUNTS)
def test_equal_input_without_a_change_keeps_all_active_tasks(
    members: dict[str, str], counts: dict[str, int]
) -> None:
    processes = {member_id: member_id for member_id in members}
    first = assign(processes, counts)
    assert assign(processes, counts, first) == first


def test_a_new_member_takes_only_its_share() -> None:
    first = assign({"a": "a"}, {"0": 4})
    second = assign({"a": "a", "b": "b"}, {"0": 4}, first)
    assert {each: len(target.active) for each, target in second.items()} == {"a": 2, "b": 2}
    third = assign({"a": "a", "b": "b", "c": "c"}, {"0": 4}, second)
    for member_id in ("a", "b"):
        assert third[member_id].active <= second[member_id].active
    assert sum(len(target.active) for target in third.values()) == 4


def test_the_copier_of_a_lost_task_becomes_its_executor() -> None:
    former = {
        "a": Tasks(active=tasks("0", 0, 1)),
        "b": Tasks(active=tasks("0", 2), standby=tasks("0", 0)),
        "c": Tasks(active=tasks("0", 3), standby=tasks("0", 1)),
    }
    del former["a"]
    targets = assign({"b": "b", "c": "c"}, {"0": 4}, former, standby=1)
    assert targets["b"].active == tasks("0", 0, 2)
    assert targets["c"].active == tasks("0", 1, 3)
    assert targets["b"].standby == tasks("0", 1, 3)


def test_processes_are_loaded_in_proportion_to_their_members() -> None:
    targets = assign({"a1": "a", "a2": "a", "a3": "a", "b1": "b"}, {"0": 8})
    assert [len(target.active) for target in targets.values()] == [2, 2, 2, 2]


def test_a_task_without_state_gets_no_standby() -> None:
    targets = assign({"a": "a", "b": "b"}, {"stateless": 2, "1": 2}, standby=1)
    copied = {task for target in targets.values() for task in target.standby}
    assert copied == tasks("1", 0, 1)


@pytest.mark.parametrize("members", [0, 1])
def test_few_members(members: int) -> None:
    targets = assign({f"m{number}": "p" for number in range(members)}, {"0": 3}, standby=2)
    assert sum(active_of(targets).values()) == 3 * members
    assert not any(target.standby for target in targets.values())
