"""The checker: every reachable state of a model, breadth first, and the shortest way to a broken one.

What lives here: exploration, and how a counter-example reads. What a state is and what may happen in it belongs to the models. A model is finite by its
own bounds; `states_max` only keeps a mistake in them from eating the machine, and reaching it is reported, never passed over: a search that was cut short
proves nothing.

Explicit states in Python rather than TLA+: TLC and Apalache cannot be had from the registries that a build may use, so nobody would run them
(docs/design/simulation-and-models.md#models).
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
    """What the checker needs to know of a model. States are immutable and compare by value."""

    def initial(self) -> Iterable[State]:
        """Where it begins."""

    def steps(self, state: State) -> Iterable[tuple[str, State]]:
        """Everything that may happen next, each with a sentence about it; its first word is the action's name."""

    def violation(self, state: State) -> str | None:
        """What is wrong with a state, None if nothing is."""

    def canonical(self, state: State) -> Hashable:
        """Equal for states that differ in names alone; the state itself where there is no symmetry to use."""

    def show(self, state: State) -> str:
        """The state in a line, for counter-examples."""


@dataclass(frozen=True, slots=True)
class CounterExample(Generic[State]):
    """The shortest way to a violation: what happened, and the state after it."""

    violation: str
    first: str
    steps: tuple[tuple[str, str], ...]

    @property
    def actions(self) -> list[str]:
        """The names of what happened."""
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
    """What a search found.

    Attributes:
        states: distinct states, after symmetry.
        transitions: steps looked at.
        depth: of the deepest state.
        complete: every reachable state was looked at.
        taken: how often each action led somewhere new; an action that never did makes a model say less than it seems to.
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
        return f"{extent} {self.states} states, {self.transitions} steps, depth {self.depth}, {self.cpu_s:.1f} s: {found}"


class _Search(Generic[State]):
    """One breadth-first search: who was seen, and whence."""

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
    """Look at every reachable state, or at those before the first violation.

    With symmetry the states kept are the ones that were reached first, so a counter-example is a way that can be walked as it is printed.
    """
    # States are values without cycles, and all of them stay: looking for garbage among them again and again is a fifth of the search.
    gc.disable()
    try:
        return _Search(model, states_max).run()
    finally:
        gc.enable()
