"""The `simple` assignor: every partition has a member, loads are balanced, and few partitions move."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st
from ponor_broker.groups.assignors.assignment_input import Subscriber, Targets
from ponor_broker.groups.assignors.simple import SimpleAssignor
from ponor_runtime.turns import at_once

from services.broker.tests.assignment_kit import (
    owned,
    partitions_of,
    subscriber,
    targets,
    topic_id,
    with_owned,
)

TOPICS = [topic_id(name) for name in "xyz"]


def assign(members: Mapping[str, Subscriber], assignable: Mapping[bytes, frozenset[int]]) -> Targets:
    counts = {topic: max(partitions, default=-1) + 1 for topic, partitions in assignable.items()}
    return at_once(SimpleAssignor(lambda: assignable).assign(members, counts, None))


@st.composite
def groups(draw: st.DrawFn) -> tuple[dict[str, Subscriber], dict[bytes, frozenset[int]]]:
    assignable = {
        topic: draw(st.frozensets(st.integers(0, 6), min_size=1))
        for topic in draw(st.sets(st.sampled_from(TOPICS)))
    }
    choices = [draw(st.frozensets(st.sampled_from(TOPICS))) for _ in range(draw(st.integers(1, 2)))]
    members = {
        f"m{number}": Subscriber(
            draw(st.sampled_from(choices)),
            draw(st.dictionaries(st.sampled_from(TOPICS), st.frozensets(st.integers(0, 8), min_size=1))),
        )
        for number in range(draw(st.integers(1, 9)))
    }
    return members, assignable


@given(groups())
def test_each_partition_has_the_same_number_of_subscribers(
    group: tuple[dict[str, Subscriber], dict[bytes, frozenset[int]]],
) -> None:
    members, assignable = group
    result = assign(members, assignable)
    assert result.keys() == members.keys()
    holders = Counter(each for target in result.values() for each in partitions_of(target))
    alike: dict[tuple[str, ...], list[bytes]] = {}
    for topic in assignable:
        readers = tuple(sorted(name for name, member in members.items() if topic in member.topics))
        alike.setdefault(readers, []).append(topic)
    alike.pop((), None)
    for readers, topics in alike.items():
        partitions = [(topic, index) for topic in topics for index in assignable[topic]]
        assert {holders.pop(each) for each in partitions} == {-(-len(readers) // len(partitions))}
        loads = [sum(len(result[reader].get(topic, ())) for topic in topics) for reader in readers]
        if len(readers) <= len(partitions):
            assert max(loads) - min(loads) <= 1
        assert min(loads) >= 1 or len(partitions) < len(readers)
    assert not holders, "a member got a partition to which it does not subscribe, or that may not be assigned"


@given(groups())
def test_a_computed_target_is_kept(group: tuple[dict[str, Subscriber], dict[bytes, frozenset[int]]]) -> None:
    members, assignable = group
    result = assign(members, assignable)
    assert assign(with_owned(members, result), assignable) == result


def test_a_new_member_gets_its_share_and_the_others_keep_the_rest() -> None:
    members = {"a": subscriber("x", "x012"), "b": subscriber("x", "x345"), "c": subscriber("x")}
    assert assign(members, owned("x012345")) == targets(a="x01", b="x34", c="x25")


def test_members_share_partitions_when_there_are_more_members() -> None:
    members = {name: subscriber("x") for name in "abc"}
    assert assign(members, owned("x01")) == targets(a="x01", b="x0", c="x1")


def test_a_partition_without_a_state_is_not_assigned() -> None:
    assert assign({"a": subscriber("xy")}, owned("x13")) == targets(a="x13")
