"""The checker on models with known results."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from tests.models.checker import explore


@dataclass(frozen=True)
class Counters:
    """Two counters that rise to a bound by one; a pair may be forbidden."""

    bound: int
    forbidden: tuple[int, int] | None = None
    symmetric: bool = False

    def initial(self) -> Iterable[tuple[int, int]]:
        return [(0, 0)]

    def steps(self, state: tuple[int, int]) -> Iterable[tuple[str, tuple[int, int]]]:
        left, right = state
        if left < self.bound:
            yield "left rises", (left + 1, right)
        if right < self.bound:
            yield "right rises", (left, right + 1)

    def violation(self, state: tuple[int, int]) -> str | None:
        return f"{state} was reached" if state == self.forbidden else None

    def canonical(self, state: tuple[int, int]) -> Hashable:
        return tuple(sorted(state)) if self.symmetric else state

    def show(self, state: tuple[int, int]) -> str:
        return f"left={state[0]} right={state[1]}"


@dataclass(frozen=True)
class Jugs:
    """Jugs of three and five litres: four litres need at least six steps."""

    def initial(self) -> Iterable[tuple[int, int]]:
        return [(0, 0)]

    def steps(self, state: tuple[int, int]) -> Iterable[tuple[str, tuple[int, int]]]:
        small, big = state
        yield "fill the small", (3, big)
        yield "fill the big", (small, 5)
        yield "empty the small", (0, big)
        yield "empty the big", (small, 0)
        poured = min(small, 5 - big)
        yield "pour small into big", (small - poured, big + poured)
        poured = min(big, 3 - small)
        yield "pour big into small", (small + poured, big - poured)

    def violation(self, state: tuple[int, int]) -> str | None:
        return "four litres" if state[1] == 4 else None

    def canonical(self, state: tuple[int, int]) -> Hashable:
        return state

    def show(self, state: tuple[int, int]) -> str:
        return f"{state[0]} of 3, {state[1]} of 5"


@given(bound=st.integers(1, 8))
def test_it_finds_every_state_once(bound: int) -> None:
    found = explore(Counters(bound))
    assert found.complete
    assert found.states == (bound + 1) ** 2
    assert found.transitions == 2 * bound * (bound + 1)
    assert found.depth == 2 * bound


@given(bound=st.integers(1, 8))
def test_symmetric_states_count_once(bound: int) -> None:
    found = explore(Counters(bound, symmetric=True))
    assert found.complete
    assert found.states == (bound + 1) * (bound + 2) // 2


@given(forbidden=st.tuples(st.integers(1, 5), st.integers(0, 5)), symmetric=st.booleans())
def test_a_counter_example_is_a_shortest_valid_path(forbidden: tuple[int, int], symmetric: bool) -> None:
    model = Counters(5, forbidden if not symmetric else (forbidden[0], forbidden[0]), symmetric)
    assert model.forbidden is not None
    found = explore(model)
    assert not found.complete
    way = found.counter_example
    assert way is not None
    assert len(way.steps) == sum(model.forbidden)
    state = (0, 0)
    for label, shown in way.steps:
        state = dict(model.steps(state))[label]
        assert shown == model.show(state)
    assert state == model.forbidden


def test_a_counter_example_prints_every_step() -> None:
    way = explore(Jugs()).counter_example
    assert way is not None
    assert str(way).splitlines() == [
        "violated after 6 steps: four litres",
        "   0.                      0 of 3, 0 of 5",
        "   1. fill the big         0 of 3, 5 of 5",
        "   2. pour big into small  3 of 3, 2 of 5",
        "   3. empty the small      0 of 3, 2 of 5",
        "   4. pour big into small  2 of 3, 0 of 5",
        "   5. fill the big         2 of 3, 5 of 5",
        "   6. pour big into small  3 of 3, 4 of 5",
    ]
    assert way.actions == ["fill", "pour", "empty", "pour", "fill", "pour"]


def test_an_incomplete_search_is_reported() -> None:
    found = explore(Counters(100), states_max=50)
    assert not found.complete
    assert found.counter_example is None
    assert found.states == 50
    assert "the first 50 states" in str(found)


def test_a_violation_in_the_initial_state_is_found() -> None:
    found = explore(Counters(3, forbidden=(0, 0)))
    assert found.counter_example is not None
    assert found.counter_example.steps == ()
    assert found.states == 1


def test_it_counts_what_was_done() -> None:
    found = explore(Counters(3))
    assert found.taken["left"] + found.taken["right"] == found.states - 1
    assert found.taken["left"] > 0
    assert found.taken["right"] > 0
