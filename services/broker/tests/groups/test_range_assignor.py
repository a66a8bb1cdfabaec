"""The `range` assignor assigns contiguous ranges of each topic."""

from __future__ import annotations

from ponor_broker.groups.assignors.range import RangeAssignor

from services.broker.tests.assignment_kit import assign, counts, subscriber, targets, topic_id

RANGE = RangeAssignor()


def test_a_group_without_members_or_subscriptions_has_no_assignment() -> None:
    assert RANGE.name == "range"
    assert assign(RANGE, {}, counts(x=3)) == {}
    assert assign(RANGE, {"a": subscriber("")}, counts(x=3)) == targets(a="")


def test_unknown_topics_are_ignored() -> None:
    assert assign(RANGE, {"a": subscriber("xz", "z0")}, counts(x=2, y=2)) == targets(a="x01")


def test_first_members_receive_the_remainder_of_each_topic() -> None:
    members = {"b": subscriber("xz"), "a": subscriber("xz")}
    assert assign(RANGE, members, counts(x=3, z=2)) == targets(a="x01 z0", b="x2 z1")


def test_only_subscribers_of_a_topic_count() -> None:
    members = {"a": subscriber("xy"), "b": subscriber("z"), "c": subscriber("yz")}
    assert assign(RANGE, members, counts(x=3, y=3, z=2)) == targets(a="x012 y01", b="z0", c="y2 z1")


def test_the_order_of_the_members_decides_whatever_else_they_subscribe_to() -> None:
    members = {"a": subscriber("xy"), "b": subscriber("x"), "c": subscriber("xy")}
    assert assign(RANGE, members, counts(x=3, y=2)) == targets(a="x0 y0", b="x1", c="x2 y1")


def test_more_members_than_partitions() -> None:
    members = {name: subscriber("xz") for name in "abc"}
    assert assign(RANGE, members, counts(x=3, z=2)) == targets(a="x0 z0", b="x1 z1", c="x2")


def test_topics_with_equal_counts_are_divided_at_the_same_places() -> None:
    members = {f"m{number}": subscriber("xyz") for number in range(4)}
    result = assign(RANGE, members, counts(x=9, y=9, z=5))
    assert all(of[topic_id("x")] == of[topic_id("y")] for of in result.values())
    assert result == targets(m0="x012 y012 z01", m1="x34 y34 z2", m2="x56 y56 z3", m3="x78 y78 z4")


def test_a_static_member_keeps_its_range_under_another_member_id() -> None:
    members = {"a": subscriber("x", "", "i1"), "b": subscriber("x"), "c": subscriber("x", "", "i2")}
    assert assign(RANGE, members, counts(x=5)) == targets(a="x01", c="x23", b="x4")
    members["z"] = members.pop("a")
    assert assign(RANGE, members, counts(x=5)) == targets(z="x01", c="x23", b="x4")


def test_a_new_member_that_is_last_receives_the_last_range() -> None:
    members = {"a": subscriber("xy", "x01 y01"), "b": subscriber("xy", "x2 y2"), "c": subscriber("xy")}
    assert assign(RANGE, members, counts(x=3, y=3)) == targets(a="x0 y0", b="x1 y1", c="x2 y2")
    assert assign(RANGE, members, counts(x=2, y=2)) == targets(a="x0 y0", b="x1 y1", c="")


def test_added_partitions_extend_the_ranges() -> None:
    members = {"a": subscriber("xy", "x01 y01"), "b": subscriber("xy", "x2 y2")}
    assert assign(RANGE, members, counts(x=4, y=4)) == targets(a="x01 y01", b="x23 y23")


def test_a_member_that_left_leaves_its_range_to_the_others() -> None:
    members = {"b": subscriber("xy", "x2 y2")}
    assert assign(RANGE, members, counts(x=3, y=3)) == targets(b="x012 y012")


def test_changed_subscriptions() -> None:
    members = {
        "a": subscriber("x", "x012 y0"),
        "b": subscriber("xyz", "y1"),
        "c": subscriber("y", "y2 z01"),
    }
    assert assign(RANGE, members, counts(x=3, y=3, z=2)) == targets(a="x01", b="x2 y01 z01", c="y2")
