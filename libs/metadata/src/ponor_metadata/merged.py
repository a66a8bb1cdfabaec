"""Rows that an index finds in the overlay: those of the image, without the rows that uncommitted batches changed, and among them what these batches made of them."""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar, overload

from ponor_metadata.tables import Index

R = TypeVar("R")


class Merged(Sequence[R], Generic[R]):
    """Rows of the image's index without those at `hidden` orders, and `shown` among them. Made as it is read: few look at all of it."""

    __slots__ = ("_base", "_hidden", "_order", "_shown")

    def __init__(
        self, base: Sequence[R], hidden: frozenset[Any], shown: list[R], order: Callable[[R], Any]
    ) -> None:
        self._base = base
        self._hidden = hidden
        self._shown = shown
        self._order = order

    def __len__(self) -> int:
        return len(self._base) - len(self._hidden) + len(self._shown)

    @overload
    def __getitem__(self, i: int) -> R: ...

    @overload
    def __getitem__(self, i: slice) -> Sequence[R]: ...

    def __getitem__(self, i: int | slice) -> R | Sequence[R]:
        return list(self)[i]

    def __iter__(self) -> Iterator[R]:
        left = (row for row in self._base if self._order(row) not in self._hidden)
        return heapq.merge(left, self._shown, key=self._order)

    def last_at(self, order: Any) -> R | None:
        """See the function of this name."""
        base, shown, order_of = self._base, self._shown, self._order
        i = bisect_right(base, order, key=order_of) - 1
        while i >= 0 and order_of(base[i]) in self._hidden:
            i -= 1
        j = bisect_right(shown, order, key=order_of) - 1
        found = [rows[at] for rows, at in ((base, i), (shown, j)) if at >= 0]
        return max(found, key=order_of, default=None)


def last_at(found: Sequence[R], index: Index[Any, R], order: Any) -> R | None:
    """The last of the rows that an index found whose order is not above `order`; None if there is none. Takes a binary search."""
    if isinstance(found, Merged):
        row: R | None = found.last_at(order)
        return row
    i = bisect_right(found, order, key=index.order) - 1
    return found[i] if i >= 0 else None
