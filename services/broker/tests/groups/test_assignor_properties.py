"""Properties of all assignors, for any subscriptions and any previous targets."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ponor_broker.groups.assignors.assignment_input import Assignor, Subscriber, Targets
from ponor_broker.groups.assignors.range import RangeAssignor
from ponor_broker.groups.assignors.steps import ITEMS_PER_STEP, StepBudget, sorted_in_steps
from ponor_broker.groups.assignors.uniform import UniformAssignor
from ponor_runtime.turns import at_once

from services.broker.tests.assignment_kit import assign, large_group, partitions_of, topic_id, with_owned

ASSIGNORS: list[Assignor] = [UniformAssignor(), RangeAssignor()]
ROOT = Path(__file__).resolve().parents[4]
TOPICS = [topic_id(name) for name in "pqrstuvw"]
COUNTS = st.dictionaries(st.sampled_from(TOPICS[:-2]), st.integers(0, 9))
PARTITIONS_PER_TOPIC = 11
"""More than a topic has, so that previous targets contain partitions that do not exist."""
SUBSCRIPTIONS = st.integers(0, 2 ** len(TOPICS) - 1)
"""One bit per topic."""
OWNERS = st.binary(min_size=len(TOPICS) * PARTITIONS_PER_TOPIC, max_size=len(TOPICS) * PARTITIONS_PER_TOPIC)
"""One byte per partition, with the numbers of two owners; most numbers belong to no member."""
MEMBER_IDS = [f"m{number}" for number in range(9)]
LINES_PER_STEP_MAX = 20_000
"""Lines of Python between two steps. A line takes at most a quarter of a microsecond on average."""


@st.composite
def groups(draw: st.DrawFn, *, equal: bool | None = None) -> dict[str, Subscriber]:
    """Draw members with equal or different subscriptions. Their previous targets may even overlap."""
    count = draw(st.integers(1, len(MEMBER_IDS)))
    if equal is None:
        equal = draw(st.booleans())
    choices = st.sampled_from([draw(SUBSCRIPTIONS) for _ in range(1 if equal else 4)])
    masks = [draw(choices) for _ in range(count)]
    owned: list[dict[bytes, set[int]]] = [{} for _ in range(count)]
    for place, byte in enumerate(draw(OWNERS)):
        first, second = byte >> 4, byte & 15
        for owner in {first, second} if second < 2 else {first}:
            if owner < count:
                topic = TOPICS[place // PARTITIONS_PER_TOPIC]
                owned[owner].setdefault(topic, set()).add(place % PARTITIONS_PER_TOPIC)
    static = draw(SUBSCRIPTIONS)
    return {
        MEMBER_IDS[number]: Subscriber(
            frozenset(topic for bit, topic in enumerate(TOPICS) if masks[number] >> bit & 1),
            {topic: frozenset(partitions) for topic, partitions in owned[number].items()},
            f"i{count - number}" if static >> number & 1 else None,
        )
        for number in range(count)
    }


def all_partitions(topics: Iterable[bytes], counts: Mapping[bytes, int]) -> set[tuple[bytes, int]]:
    return {(topic, partition) for topic in topics for partition in range(counts.get(topic, 0))}


def sizes_of(result: Targets) -> dict[str, int]:
    return {member_id: len(partitions_of(assignment)) for member_id, assignment in result.items()}


@pytest.mark.parametrize("assignor", ASSIGNORS, ids=lambda assignor: assignor.name)
@given(members=groups(), counts=COUNTS)
def test_each_partition_has_exactly_one_owner_that_subscribes_to_it(
    assignor: Assignor, members: dict[str, Subscriber], counts: dict[bytes, int]
) -> None:
    result = assign(assignor, members, counts)
    assert result.keys() == members.keys()
    assigned = [pair for assignment in result.values() for pair in partitions_of(assignment)]
    assert len(assigned) == len(set(assigned))
    topics = frozenset[bytes]().union(*(member.topics for member in members.values()))
    assert set(assigned) == all_partitions(topics, counts)
    assert all(result[member_id].keys() <= member.topics for member_id, member in members.items())
    assert all(all(assignment.values()) for assignment in result.values())


@pytest.mark.parametrize("assignor", ASSIGNORS, ids=lambda assignor: assignor.name)
@given(members=groups(), counts=COUNTS)
def test_an_unchanged_group_keeps_its_assignment(
    assignor: Assignor, members: dict[str, Subscriber], counts: dict[bytes, int]
) -> None:
    result = assign(assignor, members, counts)
    assert assign(assignor, with_owned(members, result), counts) == result


@pytest.mark.parametrize("assignor", ASSIGNORS, ids=lambda assignor: assignor.name)
@given(members=groups(), counts=COUNTS, seed=st.integers(0, 1_000))
def test_the_order_of_the_arguments_has_no_influence(
    assignor: Assignor, members: dict[str, Subscriber], counts: dict[bytes, int], seed: int
) -> None:
    source = Random(seed)

    def shuffled(items: Mapping[Any, Any]) -> dict[Any, Any]:
        return dict(source.sample(list(items.items()), len(items)))

    others = {
        member_id: Subscriber(member.topics, shuffled(member.owned), member.instance_id)
        for member_id, member in shuffled(members).items()
    }
    assert assign(assignor, others, shuffled(counts)) == assign(assignor, members, counts)


@given(members=groups(equal=True), counts=COUNTS)
def test_uniform_balances_equal_subscriptions_with_the_fewest_movements(
    members: dict[str, Subscriber], counts: dict[bytes, int]
) -> None:
    result = assign(UniformAssignor(), members, counts)
    sizes = sizes_of(result).values()
    minimum, extra = divmod(sum(sizes), len(members))
    assert set(sizes) <= {minimum, minimum + (extra > 0)}
    assignable = all_partitions(next(iter(members.values())).topics, counts)
    stayed, could_stay = 0, []
    for member_id in sorted(members):
        usable = partitions_of(members[member_id].owned) & assignable
        assignable -= usable
        could_stay.append(len(usable))
        stayed += len(usable & partitions_of(result[member_id]))
    above = sum(count > minimum for count in could_stay)
    assert stayed == sum(min(count, minimum) for count in could_stay) + min(extra, above)


@given(members=groups(), counts=COUNTS)
def test_no_single_movement_improves_the_balance_of_uniform(
    members: dict[str, Subscriber], counts: dict[bytes, int]
) -> None:
    result = assign(UniformAssignor(), members, counts)
    sizes = sizes_of(result)
    for owner, assignment in result.items():
        for topic in assignment:
            subscribed = [sizes[other] for other, member in members.items() if topic in member.topics]
            assert sizes[owner] - min(subscribed) <= 1


@given(members=groups(equal=True), counts=COUNTS)
def test_a_leaving_member_moves_only_its_own_partitions_in_uniform(
    members: dict[str, Subscriber], counts: dict[bytes, int]
) -> None:
    """The others are balanced already, so none of them has to give up a partition."""
    before = assign(UniformAssignor(), members, counts)
    remaining = with_owned(members, before)
    del remaining[max(remaining)]
    after = assign(UniformAssignor(), remaining, counts)
    assert all(partitions_of(after[member]) >= partitions_of(before[member]) for member in remaining)


@given(members=groups(equal=True), counts=COUNTS)
def test_a_joining_member_receives_all_partitions_that_move_in_uniform(
    members: dict[str, Subscriber], counts: dict[bytes, int]
) -> None:
    before = assign(UniformAssignor(), members, counts)
    joined = with_owned(members, before)
    joined["joined"] = Subscriber(next(iter(members.values())).topics, {})
    after = assign(UniformAssignor(), joined, counts)
    assert all(partitions_of(after[member]) <= partitions_of(before[member]) for member in members)


@given(members=groups(), counts=COUNTS)
def test_ranges_are_contiguous_in_the_order_of_the_members(
    members: dict[str, Subscriber], counts: dict[bytes, int]
) -> None:
    result = assign(RangeAssignor(), members, counts)
    static = sorted((m.instance_id, member_id) for member_id, m in members.items() if m.instance_id)
    order = [member_id for _, member_id in static]
    order += sorted(members.keys() - set(order))
    for topic, count in counts.items():
        subscribed = [member_id for member_id in order if topic in members[member_id].topics]
        ranges = [sorted(result[member_id].get(topic, ())) for member_id in subscribed]
        lengths = [len(part) for part in ranges]
        assert [partition for part in ranges for partition in part] == list(range(count if subscribed else 0))
        assert lengths == sorted(lengths, reverse=True)
        assert not lengths or lengths[0] - lengths[-1] <= 1


@given(items=st.lists(st.integers(), max_size=20), repeats=st.integers(1, 400))
def test_a_sort_in_steps_is_a_sort(items: list[int], repeats: int) -> None:
    repeated = [item * number for number in range(repeats) for item in items]
    key = abs  # equal keys show whether the sort is stable
    assert at_once(sorted_in_steps(repeated, StepBudget(), key=key)) == sorted(repeated, key=key)


def test_a_step_ends_when_its_budget_is_spent() -> None:
    budget = StepBudget()
    assert not budget.spend(ITEMS_PER_STEP - 1)
    assert budget.spend(1)
    assert not budget.spend(1, light_items=ITEMS_PER_STEP)
    assert budget.spend(0, light_items=8 * ITEMS_PER_STEP)


def lines_per_step(steps: Any) -> list[int]:
    """Return the number of lines that Python runs in each step."""
    lines = [0]

    def traced(_frame: Any, event: str, _: object) -> Any:
        lines[-1] += event == "line"
        return traced

    before = sys.gettrace()
    sys.settrace(traced)
    try:
        for _ in steps:
            lines.append(0)
    finally:
        sys.settrace(before)
    return lines


@pytest.mark.parametrize("equal", [True, False], ids=["equal", "different"])
@pytest.mark.parametrize("assignor", ASSIGNORS, ids=lambda assignor: assignor.name)
def test_the_work_of_a_step_is_bounded(assignor: Assignor, equal: bool) -> None:
    members, counts = large_group(equal=equal)
    lines = lines_per_step(assignor.assign(members, counts, None))
    assert max(lines) <= LINES_PER_STEP_MAX
    assert sum(lines) > LINES_PER_STEP_MAX


@pytest.mark.parametrize("assignor", ASSIGNORS, ids=lambda assignor: assignor.name)
def test_a_topic_with_many_partitions_is_divided_in_steps(assignor: Assignor) -> None:
    topic = topic_id("x")
    members = {f"member-{number}": Subscriber(frozenset({topic}), {}) for number in range(300)}
    lines = lines_per_step(assignor.assign(members, {topic: 100_000}, None))
    assert max(lines) <= LINES_PER_STEP_MAX
    assert len(lines) > 5


PRINT_TARGETS = """
from ponor_broker.groups.assignors.range import RangeAssignor
from ponor_broker.groups.assignors.uniform import UniformAssignor
from services.broker.tests.assignment_kit import assign, large_group
for assignor in (UniformAssignor(), RangeAssignor()):
    for equal in (True, False):
        result = assign(assignor, *large_group(equal=equal))
        print(sorted((m, t, sorted(p)) for m, of in result.items() for t, p in of.items()))
"""


def test_a_process_that_hashes_differently_computes_the_same_targets() -> None:
    """Members of a group may be assigned by one broker, and later by another."""
    outputs = [
        subprocess.run(
            [sys.executable, "-c", PRINT_TARGETS],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for hash_seed in ("0", "4711")
    ]
    assert outputs[0] == outputs[1]
    assert outputs[0].count("\n") == 2 * len(ASSIGNORS)
