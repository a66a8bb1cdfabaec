"""Linearizability: search for one order of all operations that explains every answer and respects real time.

The search is that of Wing and Gong ("Testing and verifying concurrent objects", 1993) with Lowe's cache
("Testing for linearizability", 2017). It runs per key, because a history is linearizable if and only if the
history of each key is linearizable (Herlihy and Wing, 1990).

The problem is NP-complete. With the cache, some hundred operations per key take milliseconds.
`configurations_max` bounds the search: a history that exceeds it raises an error and never passes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from ponor_cluster_simulation.histories.operation import Operation

CONFIGURATIONS_MAX: Final = 1_000_000
REFUSED: Final = object()
"""The result of a model for an operation that is impossible in a state."""


class HistoryTooWideError(Exception):
    """Too many operations of one key overlap; use more keys, or fewer clients per key."""


class SequentialModel(Protocol):
    """The sequential behaviour of one key. States are hashable."""

    initial: Hashable

    def step(self, state: Hashable, operation: Operation) -> Any:
        """Return the next state, or `REFUSED`."""

    def without_effect(self, operations: Sequence[Operation]) -> set[int]:
        """Return positions of operations that never returned and that the search may omit, because they
        explain no answer.
        """


class Register:
    """Register with read, write and compare-and-set (`cas` writes `value` if the state is `expected`). The
    initial value is None.
    """

    initial: Hashable = None

    def step(self, state: Hashable, operation: Operation) -> Any:
        if operation.kind == "write":
            return operation.value
        if operation.kind == "read":
            return state if state == operation.value else REFUSED
        assert operation.kind == "cas", f"a register has no operation {operation.kind!r}"
        return operation.value if state == operation.expected else REFUSED

    def without_effect(self, operations: Sequence[Operation]) -> set[int]:
        """Return positions of operations that never returned and whose value no other operation used."""
        needed = {each.value for each in operations if each.kind == "read"}
        needed |= {each.expected for each in operations if each.kind == "cas"}
        return {
            position
            for position, each in enumerate(operations)
            if each.returned is None and (each.kind == "read" or each.value not in needed)
        }


@dataclass(frozen=True, slots=True)
class NotLinearizable:
    """No order explains the operations of `key`.

    `explained` is the longest order found, `stuck` the answer that it cannot explain.
    """

    key: str
    explained: tuple[Operation, ...]
    stuck: Operation

    def __str__(self) -> str:
        shown = [str(each) for each in self.explained[-8:]]
        return "\n  ".join(
            [
                f"key {self.key}: no order explains {self.stuck} after these operations:",
                *(shown or ["(none)"]),
            ]
        )


class _Event:
    """A call or a return, in a doubly linked list by time."""

    __slots__ = ("answer", "before", "number", "operation", "then")

    def __init__(self, number: int, operation: Operation) -> None:
        self.number = number
        self.operation = operation
        self.answer: _Event | None = None
        """For a call: its return, or None. For a return: itself."""
        self.before: _Event = self
        self.then: _Event | None = None


class _Search:
    """The search over the operations of one key."""

    def __init__(
        self, operations: Sequence[Operation], model: SequentialModel, configurations_max: int
    ) -> None:
        self._model = model
        self._configurations_max = configurations_max
        self._operations = operations
        self._head = _Event(-1, operations[0])
        self._returns_left = _link(self._head, operations)
        self._longest: list[Operation] = []
        self._stuck: Operation | None = None

    def run(self) -> tuple[list[Operation], Operation] | None:
        """Return None if linearizable, otherwise the longest order and the operation that it cannot
        explain.
        """
        step, head = self._model.step, self._head
        state, taken = self._model.initial, 0
        seen: set[tuple[int, Hashable]] = set()
        order: list[tuple[_Event, Hashable]] = []
        event = head.then
        while self._returns_left:
            assert event is not None, "the search reached the end of the history before a return"
            if event.answer is not event:
                after = step(state, event.operation)
                configuration = (taken | 1 << event.number, after)
                if after is not REFUSED and configuration not in seen:
                    self._remember(seen, configuration)
                    order.append((event, state))
                    state, taken = after, configuration[0]
                    self._lift(event)
                    event = head.then
                else:
                    event = event.then
            else:
                self._note(order, event.operation)
                if not order:
                    assert self._stuck is not None
                    return self._longest, self._stuck
                event, state = order.pop()
                taken &= ~(1 << event.number)
                self._unlift(event)
                event = event.then
        return None

    def _remember(self, seen: set[tuple[int, Hashable]], configuration: tuple[int, Hashable]) -> None:
        if len(seen) >= self._configurations_max:
            raise HistoryTooWideError(
                f"{len(self._operations)} operations of one key need more than {self._configurations_max}"
                " configurations"
            )
        seen.add(configuration)

    def _note(self, order: list[tuple[_Event, Hashable]], stuck: Operation) -> None:
        if self._stuck is None or len(order) > len(self._longest):
            self._longest = [event.operation for event, _ in order]
            self._stuck = stuck

    def _lift(self, call: _Event) -> None:
        _unlink(call)
        if call.answer is not None:
            _unlink(call.answer)
            self._returns_left -= 1

    def _unlift(self, call: _Event) -> None:
        if call.answer is not None:
            _relink(call.answer)
            self._returns_left += 1
        _relink(call)


def find_anomalies(
    operations: Iterable[Operation],
    model: SequentialModel | None = None,
    configurations_max: int = CONFIGURATIONS_MAX,
) -> list[NotLinearizable]:
    """Return the keys that are not linearizable, in order; an empty list if all are.

    Raises:
        HistoryTooWideError: the search of one key needs more than `configurations_max` configurations.
    """
    model = model or Register()
    by_key: dict[str, list[Operation]] = defaultdict(list)
    for each in operations:
        by_key[each.key].append(each)
    anomalies = []
    for key in sorted(by_key):
        dropped = model.without_effect(by_key[key])
        kept = [each for position, each in enumerate(by_key[key]) if position not in dropped]
        found = _Search(kept, model, configurations_max).run() if kept else None
        if found is not None:
            anomalies.append(NotLinearizable(key, tuple(found[0]), found[1]))
    return anomalies


def _link(head: _Event, operations: Sequence[Operation]) -> int:
    """Link calls and returns after `head` by time. Return the number of returns.

    A call at the time of a return precedes it, because they overlap.
    """
    events: list[tuple[float, int, _Event]] = []
    returns = 0
    for number, operation in enumerate(operations):
        call = _Event(number, operation)
        events.append((operation.called, 0, call))
        if operation.returned is not None:
            call.answer = _Event(number, operation)
            call.answer.answer = call.answer
            events.append((operation.returned, 1, call.answer))
            returns += 1
    last = head
    for _, _, event in sorted(events, key=lambda each: each[:2]):
        event.before, last.then = last, event
        last = event
    return returns


def _unlink(event: _Event) -> None:
    event.before.then = event.then
    if event.then is not None:
        event.then.before = event.before


def _relink(event: _Event) -> None:
    event.before.then = event
    if event.then is not None:
        event.then.before = event
