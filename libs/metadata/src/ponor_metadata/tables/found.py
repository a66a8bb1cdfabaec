"""Rows that an index found. A row object is created when it is read."""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar, overload

from ponor_metadata.tables.schema import Index

R = TypeVar("R")


class Found(Sequence[R], Generic[R]):
    """Rows of the image under one index key."""

    __slots__ = ("_keys", "_row")

    def __init__(self, keys: Sequence[Any], row: Callable[[Any], R | None]) -> None:
        self._keys = keys
        self._row = row

    def __len__(self) -> int:
        return len(self._keys)

    @overload
    def __getitem__(self, i: int) -> R: ...

    @overload
    def __getitem__(self, i: slice) -> Sequence[R]: ...

    def __getitem__(self, i: int | slice) -> R | Sequence[R]:
        if isinstance(i, slice):
            return Found(self._keys[i], self._row)
        row = self._row(self._keys[i])
        assert row is not None, f"an index lists the row {self._keys[i]!r}, which does not exist"
        return row

    def __iter__(self) -> Iterator[R]:
        for i in range(len(self._keys)):
            yield self[i]


class Merged(Sequence[R], Generic[R]):
    """Rows of the overlay under one index key: the rows of `base` whose order is not in `hidden`, merged with
    `shown`.

    `hidden` contains the orders of image rows that uncommitted batches changed, `shown` the new versions of
    rows. Rows are merged when they are read, because few callers read all of them.
    """

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
        visible = (row for row in self._base if self._order(row) not in self._hidden)
        return heapq.merge(visible, self._shown, key=self._order)

    def behind(self, order: Any) -> Iterator[R]:
        """See the function `rows_after`."""
        order_of = self._order
        first = bisect_right(self._base, order, key=order_of)
        base = (self._base[i] for i in range(first, len(self._base)))
        visible = (row for row in base if order_of(row) not in self._hidden)
        shown = (row for row in self._shown if order_of(row) > order)
        return heapq.merge(visible, shown, key=order_of)

    def last_at(self, order: Any) -> R | None:
        """See the function `last_at`."""
        base, shown, order_of = self._base, self._shown, self._order
        i = bisect_right(base, order, key=order_of) - 1
        while i >= 0 and order_of(base[i]) in self._hidden:
            i -= 1
        j = bisect_right(shown, order, key=order_of) - 1
        found = [rows[at] for rows, at in ((base, i), (shown, j)) if at >= 0]
        return max(found, key=order_of, default=None)


def rows_after(found: Sequence[R], index: Index[Any, R], order: Any) -> Iterator[R]:
    """Iterate over the rows whose order is above `order`, by binary search. `found`: a result of `index`."""
    if isinstance(found, Merged):
        return found.behind(order)
    first = bisect_right(found, order, key=index.order)
    return (found[i] for i in range(first, len(found)))


def last_at(found: Sequence[R], index: Index[Any, R], order: Any) -> R | None:
    """Return the last row whose order is at most `order`, or None, by binary search. `found`: a result of
    `index`.
    """
    if isinstance(found, Merged):
        row: R | None = found.last_at(order)
        return row
    i = bisect_right(found, order, key=index.order) - 1
    return found[i] if i >= 0 else None
