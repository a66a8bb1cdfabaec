"""The `uniform` assignor balances the members and moves few partitions."""

from __future__ import annotations

from ponor_broker.groups.assignors.uniform import UniformAssignor

from services.broker.tests.assignment_kit import assign, counts, subscriber, targets

UNIFORM = UniformAssignor()


def test_a_group_without_members_or_subscriptions_has_no_assignment() -> None:
    assert UNIFORM.name == "uniform"
    assert assign(UNIFORM, {}, counts(x=3)) == {}
    assert assign(UNIFORM, {"a": subscriber(""), "b": subscriber("")}, counts(x=3)) == targets(a="", b="")


def test_unknown_topics_are_ignored() -> None:
    members = {"a": subscriber("xz", "z01"), "b": subscriber("x")}
    assert assign(UNIFORM, members, counts(x=2)) == targets(a="x0", b="x1")
    assert assign(UNIFORM, members, {}) == targets(a="", b="")


def test_first_members_receive_the_remainder() -> None:
    members = {"b": subscriber("xy"), "a": subscriber("xy")}
    assert assign(UNIFORM, members, counts(x=3, y=2)) == targets(a="x012", b="y01")


def test_more_members_than_partitions() -> None:
    members = {name: subscriber("x") for name in "abc"}
    assert assign(UNIFORM, members, counts(x=2)) == targets(a="x0", b="x1", c="")


def test_an_unbalanced_previous_target_is_balanced() -> None:
    members = {"a": subscriber("xy", "x01 y01"), "b": subscriber("xy", "x2 y2")}
    assert assign(UNIFORM, members, counts(x=3, y=3)) == targets(a="x01 y0", b="x2 y12")


def test_added_partitions_move_no_others() -> None:
    members = {"a": subscriber("xy", "x02 y0"), "b": subscriber("xy", "x1 y12")}
    assert assign(UNIFORM, members, counts(x=6, y=5)) == targets(a="x02345 y0", b="x1 y1234")


def test_a_new_member_receives_only_what_balance_requires() -> None:
    members = {"a": subscriber("xy", "x02 y0"), "b": subscriber("xy", "x1 y12"), "c": subscriber("xy")}
    assert assign(UNIFORM, members, counts(x=3, y=3)) == targets(a="x02", b="x1 y1", c="y02")


def test_partitions_of_a_member_that_left_are_distributed() -> None:
    members = {"a": subscriber("xy", "x0 y0"), "b": subscriber("xy", "x1 y1")}
    assert assign(UNIFORM, members, counts(x=3, y=3)) == targets(a="x02 y0", b="x1 y12")


def test_a_removed_subscription_removes_its_partitions() -> None:
    members = {"a": subscriber("y", "x0 y0"), "b": subscriber("y", "x1 y1")}
    assert assign(UNIFORM, members, counts(x=2, y=2)) == targets(a="y0", b="y1")


def test_the_remainder_stays_with_the_member_that_has_it() -> None:
    """Kafka gives the remainder to the first members, which would move x1 here without need."""
    members = {"a": subscriber("x", "x0"), "b": subscriber("x", "x12")}
    assert assign(UNIFORM, members, counts(x=3)) == targets(a="x0", b="x12")


def test_a_partition_of_two_owners_stays_with_the_first() -> None:
    members = {"a": subscriber("x", "x01"), "b": subscriber("x", "x12")}
    assert assign(UNIFORM, members, counts(x=4)) == targets(a="x01", b="x23")


def test_partitions_that_do_not_exist_are_not_kept() -> None:
    members = {"a": subscriber("x", "x07"), "b": subscriber("xy", "x1 y9")}
    assert assign(UNIFORM, members, counts(x=2, y=1)) == targets(a="x0", b="x1 y0")


def test_different_subscriptions_begin_with_the_most_constrained_topic() -> None:
    members = {"a": subscriber("xz"), "b": subscriber("z")}
    assert assign(UNIFORM, members, counts(x=3, z=6)) == targets(a="x012 z4", b="z01235")


def test_different_subscriptions_with_more_members_than_partitions() -> None:
    members = {"a": subscriber("z"), "b": subscriber("z"), "c": subscriber("x")}
    assert assign(UNIFORM, members, counts(z=1, x=2)) == targets(a="z0", b="", c="x01")


def test_a_member_without_subscriptions_receives_nothing() -> None:
    members = {"a": subscriber("x"), "b": subscriber("")}
    assert assign(UNIFORM, members, counts(x=3)) == targets(a="x012", b="")


def test_different_subscriptions_with_an_unbalanced_previous_target() -> None:
    members = {
        "a": subscriber("x", "x012"),
        "b": subscriber("xy", "x3 y0"),
        "c": subscriber("xyz", "x45 y123 z0123"),
    }
    assert assign(UNIFORM, members, counts(x=6, y=4, z=4)) == targets(a="x0125", b="x3 y0123", c="x4 z0123")


def test_different_subscriptions_when_partitions_are_added() -> None:
    members = {"a": subscriber("xz", "x0123 z01"), "b": subscriber("xyzw", "y012 w012")}
    assert assign(UNIFORM, members, counts(x=6, y=5, z=3, w=3)) == targets(a="x012345 z012", b="y01234 w012")


def test_different_subscriptions_when_a_member_and_partitions_are_added() -> None:
    members = {"a": subscriber("x", "x02 y0"), "b": subscriber("xy", "x1 y12"), "c": subscriber("xy")}
    assert assign(UNIFORM, members, counts(x=6, y=7)) == targets(a="x02345", b="x1 y126", c="y0345")


def test_different_subscriptions_when_a_member_left() -> None:
    members = {"a": subscriber("xz", "x012 z01"), "b": subscriber("y", "y3456")}
    assert assign(UNIFORM, members, counts(x=3, y=8, z=3)) == targets(a="x012 z012", b="y01234567")


def test_different_subscriptions_when_a_subscription_is_removed() -> None:
    members = {"a": subscriber("x", "x02 y13"), "b": subscriber("xy", "x1 y024")}
    assert assign(UNIFORM, members, counts(x=3, y=5)) == targets(a="x012", b="y01234")


def test_movements_continue_with_the_next_topic_when_one_has_no_partitions_left() -> None:
    members = {"a": subscriber("xyz", "x01 y01 z01"), "b": subscriber("xyz"), "c": subscriber("")}
    assert assign(UNIFORM, members, counts(x=2, y=2, z=2)) == targets(a="y0 z01", b="x01 y1", c="")


def test_a_member_gives_up_what_it_did_not_own() -> None:
    """Member b receives x2, x4 and x6, then y. It gives x6 to a and keeps x8, which it owned."""
    members = {"a": subscriber("x"), "b": subscriber("xy", "x8")}
    assert assign(UNIFORM, members, counts(x=9, y=4)) == targets(a="x013567", b="x248 y0123")


def test_partitions_move_through_a_member_that_shares_topics_with_two_others() -> None:
    """The movements of x make room at b for partitions of y, which takes several rounds."""
    members = {"a": subscriber("x"), "b": subscriber("xy", "x012345"), "c": subscriber("y", "y0123456")}
    assert assign(UNIFORM, members, counts(x=6, y=7)) == targets(a="x2345", b="x01 y56", c="y01234")
