"""The checker: searches every reachable state of a model, breadth first, and reports the shortest
way to a violation.

A model is finite by its own bounds. `states_max` protects the machine from a mistake in them;
reaching it is reported, because an incomplete search proves nothing.

The checker is Python instead of TLA+, because TLC and Apalache are not in the registries that a
build may use (docs/design/simulation-and-models.md#models).
"""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeVar

State = TypeVar("State", bound=Hashable)
STATES_MAX: Final = 2_000_000


class Model(Protocol[State]):
    """What the checker needs from a model. States are immutable and compare by value."""

    def initial(self) -> Iterable[State]:
        """The first state."""

    def steps(self, state: State) -> Iterable[tuple[str, State]]:
        """All possible steps, each with a description whose first word is the action's name."""

    def violation(self, state: State) -> str | None:
        """The violated property of a state; None if there is none."""

    def canonical(self, state: State) -> Hashable:
        """A value that is equal for symmetric states; the state itself if there is no symmetry."""

    def show(self, state: State) -> str:
        """The state as one line of a counter-example."""


@dataclass(frozen=True, slots=True)
class CounterExample(Generic[State]):
    """The shortest way to a violation: each step with the state after it."""

    violation: str
    first: str
    steps: tuple[tuple[str, str], ...]

    @property
    def actions(self) -> list[str]:
        """The names of the steps."""
        return [label.split()[0] for label, _ in self.steps]

    def __str__(self) -> str:
        width = max((len(label) for label, _ in self.steps), default=0)
        lines = [
            f"violated after {len(self.steps)} steps: {self.violation}",
            f"   0. {'':{width}}  {self.first}",
        ]
        lines += [
            f"{number:4}. {label:{width}}  {shown}" for number, (label, shown) in enumerate(self.steps, 1)
        ]
        return "\n".join(lines)


@dataclass(slots=True)
class Exploration(Generic[State]):
    """The result of a search.

    Attributes:
        states: distinct states, up to symmetry.
        transitions: examined steps.
        depth: of the deepest state.
        complete: every reachable state was examined.
        taken: number of steps by action that led to a new state. An action with none makes a model say less
            than it seems to.
        cpu_s: processor time of the search.
    """

    states: int = 0
    transitions: int = 0
    depth: int = 0
    complete: bool = False
    counter_example: CounterExample[State] | None = None
    taken: Counter[str] = field(default_factory=Counter)
    cpu_s: float = 0.0

    def __str__(self) -> str:
        extent = "all" if self.complete else "the first"
        found = "no violation" if self.counter_example is None else f"\n{self.counter_example}"
        return (
            f"{extent} {self.states} states, {self.transitions} steps, depth {self.depth},"
            f" {self.cpu_s:.1f} s: {found}"
        )


class _Search(Generic[State]):
    """One breadth-first search: visited states and their predecessors."""

    def __init__(self, model: Model[State], states_max: int) -> None:
        self._model = model
        self._states_max = states_max
        self._origin: dict[Hashable, tuple[State, Hashable, str]] = {}
        self._result: Exploration[State] = Exploration()

    def run(self) -> Exploration[State]:
        result = self._result
        began_s = time.process_time()
        frontier = [key for key in map(self._add_first, self._model.initial()) if key is not None]
        while frontier and result.counter_example is None and result.states < self._states_max:
            reached: list[Hashable] = []
            for key in self._expanded(frontier):
                reached.append(key)
                if result.counter_example is not None or result.states >= self._states_max:
                    break
            if reached:
                result.depth += 1
            frontier = reached
        result.complete = not frontier and result.counter_example is None
        result.cpu_s = time.process_time() - began_s
        return result

    def _expanded(self, frontier: list[Hashable]) -> Iterator[Hashable]:
        model, origin, result = self._model, self._origin, self._result
        canonical, steps = model.canonical, model.steps
        for key in frontier:
            state = origin[key][0]
            for label, after in steps(state):
                result.transitions += 1
                after_key = canonical(after)
                if after_key not in origin:
                    origin[after_key] = (after, key, label)
                    result.taken[label.split(maxsplit=1)[0]] += 1
                    self._count(after, after_key)
                    yield after_key

    def _add_first(self, state: State) -> Hashable | None:
        key = self._model.canonical(state)
        if key in self._origin:
            return None
        self._origin[key] = (state, None, "")
        self._count(state, key)
        return key

    def _count(self, state: State, key: Hashable) -> None:
        self._result.states += 1
        broken = self._model.violation(state)
        if broken is not None and self._result.counter_example is None:
            self._result.counter_example = self._way_to(key, broken)

    def _way_to(self, key: Hashable, broken: str) -> CounterExample[State]:
        way: list[tuple[str, str]] = []
        state, before, label = self._origin[key]
        while before is not None:
            way.append((label, self._model.show(state)))
            state, before, label = self._origin[before]
        return CounterExample(broken, self._model.show(state), tuple(reversed(way)))


def explore(model: Model[Any], states_max: int = STATES_MAX) -> Exploration[Any]:
    """Examine every reachable state, or those before the first violation.

    With symmetry the first visited state of a class is kept, so the printed steps of a
    counter-example are valid.
    """
    # States have no cycles and all stay alive: garbage collection would take a fifth of the search.
    gc.disable()
    try:
        return _Search(model, states_max).run()
    finally:
        gc.enable()
