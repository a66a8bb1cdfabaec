"""Division of a computation into steps of bounded work."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final, TypeVar

from ponor_runtime.turns import Steps

_T = TypeVar("_T")
ITEMS_PER_STEP: Final = 2_000
"""Items that a step handles before it ends. An item takes about half a microsecond."""
LIGHT_ITEMS_PER_ITEM: Final = 8
"""Elements of set operations, sorts and comprehensions that take as long as one item."""
BATCH_ITEMS: Final = 512
SORTED_ITEMS_MAX: Final = 2_048
"""Elements that one call of `sorted` receives."""


class StepBudget:
    """A count of the work that is left in the current step."""

    def __init__(self) -> None:
        self._left = ITEMS_PER_STEP

    def spend(self, items: int, *, light_items: int = 0) -> bool:
        """Count work that was done. Return whether the step must end; the next call belongs to a new step."""
        self._left -= items + light_items // LIGHT_ITEMS_PER_ITEM
        if self._left > 0:
            return False
        self._left = ITEMS_PER_STEP
        return True


def batches(items: Iterable[_T]) -> Iterator[list[_T]]:
    """Divide items into lists of at most `BATCH_ITEMS`."""
    iterator = iter(items)
    while batch := list(islice(iterator, BATCH_ITEMS)):
        yield batch


def sorted_in_steps(items: Iterable[_T], budget: StepBudget, key: Callable[[_T], Any]) -> Steps[list[_T]]:
    """Sort as `sorted` does: in parts, which are then merged."""
    iterator = iter(items)
    parts: list[list[_T]] = []
    while part := sorted(islice(iterator, SORTED_ITEMS_MAX), key=key):
        parts.append(part)
        if budget.spend(len(part)):
            yield
    if len(parts) <= 1:
        return parts[0] if parts else []
    merged: list[_T] = []
    for batch in batches(heapq.merge(*parts, key=key)):
        merged.extend(batch)
        if budget.spend(len(batch)):
            yield
    return merged
