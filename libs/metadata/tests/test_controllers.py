"""The choice of the next controller."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from ponor_metadata.client.controllers import (
    HINTS_IN_A_ROW_MAX,
    LEARNED_MAX,
    ControllerChoice,
    KnownControllers,
)

ABC = ("a:1", "b:1", "c:1")


def test_addresses_are_tried_in_order_after_failures() -> None:
    choice = ControllerChoice(KnownControllers(ABC))
    tried = []
    for _ in range(7):
        tried.append(choice.address())
        choice.failed()
    assert tried == ["a:1", "b:1", "c:1", "a:1", "b:1", "c:1", "a:1"]


def test_an_address_that_serves_is_kept() -> None:
    choice = ControllerChoice(KnownControllers(ABC), first=1)
    choice.served()
    assert choice.address() == choice.address() == "b:1"


def test_a_hint_is_followed_at_once_and_dropped_after_it_fails() -> None:
    choice = ControllerChoice(KnownControllers(ABC))
    assert choice.redirected("z:9")
    assert choice.address() == "z:9"
    choice.failed()
    assert choice.address() == "b:1"


def test_a_hinted_leader_is_tried_until_it_fails() -> None:
    choice = ControllerChoice(KnownControllers(ABC))
    choice.redirected("c:1")
    choice.served()
    assert choice.address() == "c:1"


def test_a_hint_to_the_same_address_or_an_empty_one_is_ignored() -> None:
    choice = ControllerChoice(KnownControllers(ABC))
    assert not choice.redirected("a:1")
    assert not choice.redirected("")
    assert choice.address() == "c:1"


def test_circular_hints_end_in_a_delay() -> None:
    choice = ControllerChoice(KnownControllers(ABC))
    at_once, tried = [], []
    for number in range(2 * HINTS_IN_A_ROW_MAX + 2):
        at_once.append(choice.redirected(f"x:{number}"))
        tried.append(choice.address())
    assert at_once == ([True] * HINTS_IN_A_ROW_MAX + [False]) * 2
    assert tried == ["x:0", "x:1", "b:1", "x:3", "x:4", "c:1"], "after a pause, the next address is tried"


def test_learned_addresses_follow_the_configured_ones() -> None:
    known = KnownControllers(["a:1", "b:1", "a:1"])
    known.learn(["b:1", "x:1", "", "y:1", "x:1"])
    assert known.all == ("a:1", "b:1", "x:1", "y:1")
    known.learn(["y:1", "z:1"])
    assert known.all == ("a:1", "b:1", "y:1", "z:1")
    known.learn([])
    assert known.all == ("a:1", "b:1", "y:1", "z:1"), "a controller without a quorum returns none"
    known.learn(f"h:{number}" for number in range(2 * LEARNED_MAX))
    assert len(known.all) == 2 + LEARNED_MAX


@given(
    st.lists(st.sampled_from(["failed", "served", "learn", *(f"hint {each}" for each in (*ABC, "z:9"))])),
    st.integers(0, 5),
)
def test_every_address_is_tried_eventually(events: list[str], first: int) -> None:
    known = KnownControllers(ABC)
    choice = ControllerChoice(known, first)
    for event in events:
        match event.split():
            case ["failed"]:
                choice.failed()
            case ["served"]:
                choice.served()
            case ["learn"]:
                known.learn(["n:1"])
            case [_, address]:
                choice.redirected(address)
    tried = set()
    for _ in range(2 * len(known.all) + 1):
        tried.add(choice.address())
        choice.failed()
    assert tried >= set(known.all)
