"""Tests of topic choices, and of choices with missing topics."""

from __future__ import annotations

import pytest
from ponor_spark.errors import TopicMissingError
from ponor_spark.topics import Assign, IfThere, Subscribe, SubscribePattern, TopicChoice, chosen_partitions

THERE = {"a": 2, "ab": 1, "__consumer_offsets": 3}


@pytest.mark.parametrize(
    ("choice", "partitions"),
    [
        (Subscribe(("ab", "a")), [("a", 0), ("a", 1), ("ab", 0)]),
        (Assign({"a": (1,)}), [("a", 1)]),
        (SubscribePattern(".*"), [("a", 0), ("a", 1), ("ab", 0)]),
        (SubscribePattern("b"), []),
    ],
)
def test_choice_returns_the_named_partitions(choice: TopicChoice, partitions: list[tuple[str, int]]) -> None:
    assert chosen_partitions(choice, THERE) == partitions
    assert chosen_partitions(IfThere(choice), THERE) == partitions


@pytest.mark.parametrize(
    ("choice", "left", "complaint"),
    [
        (Subscribe(("gone", "ab")), [("ab", 0)], "subscribe: there is no topic gone"),
        (Assign({"gone": (0,), "ab": (0,)}), [("ab", 0)], "assign: there is no topic gone"),
        (Assign({"a": (1, 2)}), [("a", 1)], "assign: topic a has no partition 2; it has 0 to 1"),
        (Subscribe(("gone",)), [], "subscribe: there is no topic gone"),
    ],
)
def test_missing_topics_are_an_error_or_skipped(
    choice: TopicChoice, left: list[tuple[str, int]], complaint: str
) -> None:
    with pytest.raises(TopicMissingError, match=complaint):
        chosen_partitions(choice, THERE)
    assert chosen_partitions(IfThere(choice), THERE) == left
