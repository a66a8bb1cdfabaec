"""The image's table for rows of any kind: packed tuples in blocks, and per index the keys in order.

What lives here: storage that knows nothing of what a row means. Millions of objects have tables of their own, which know more.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Generic, TypeVar, overload

from ponor_metadata.blocks import Picture, TupleBlocks, Values
from ponor_metadata.tables import Index, Schema
from ponor_metadata.untracking import untrack

K = TypeVar("K")
R = TypeVar("R")
I = TypeVar("I")  # noqa: E741 -- the key of an index


class Places:
    """The rows under one index key: their orders, ascending, and beside them their keys."""

    __slots__ = ("keys", "orders")

    def __init__(self) -> None:
        self.orders: list[Any] = []
        self.keys: list[Any] = []
        untrack(self.orders)
        untrack(self.keys)

    def add(self, order: Any, key: Any) -> None:
        """Insert at its place."""
        if not self.orders or self.orders[-1] < order:  # most rows come in order
            self.orders.append(order)
            self.keys.append(key)
            return
        position = bisect_left(self.orders, order)
        assert self.orders[position] != order, f"two rows at {order} of one index key"
        self.orders.insert(position, order)
        self.keys.insert(position, key)

    def remove(self, order: Any) -> None:
        """Take out what stands at this order."""
        position = bisect_left(self.orders, order)
        assert self.orders[position] == order, f"no row at {order} of the index key"
        del self.orders[position], self.keys[position]


RELEASED_AT_ONCE: Final = 512
"""Entries of an index that are freed in one step."""


def release_items(entries: dict[Any, Any]) -> Iterator[None]:
    """Empty a dictionary in small steps."""
    while entries:
        for _ in range(min(RELEASED_AT_ONCE, len(entries))):
            entries.popitem()
        yield


class Found(Sequence[R], Generic[R]):
    """Rows that an index named, made when they are looked at."""

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
        assert row is not None, f"an index names the row {self._keys[i]!r}, which is not there"
        return row

    def __iter__(self) -> Iterator[R]:
        for i in range(len(self._keys)):
            yield self[i]


class MemoryTable(Generic[K, R]):
    """Fulfils `ponor_metadata.tables.Table`."""

    __slots__ = ("_indexes", "_rows", "_schema")

    def __init__(self, schema: Schema[K, R]) -> None:
        self._schema = schema
        self._rows: TupleBlocks[K] = TupleBlocks()
        self._indexes: dict[str, dict[Any, Places]] = {index.name: {} for index in schema.indexes}

    @property
    def schema(self) -> Schema[K, R]:
        return self._schema

    def get(self, key: K) -> R | None:
        values = self._rows.get(key)
        return None if values is None else self._row(values)

    def __contains__(self, key: object) -> bool:
        # Keys of another type cannot be asked for: mypy sees to it.
        return self._rows.get(key) is not None  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[R]:
        for values in self._rows.values():
            yield self._row(values)

    def find(self, index: Index[I, R], index_key: I) -> Sequence[R]:
        places = self._indexes[index.name].get(index_key)
        return () if places is None else Found(places.keys, self.get)

    def after(self, key: K | None, limit: int) -> list[R]:
        """At most `limit` rows above a key, in key order; None: from the first. Takes time in proportion to the limit."""
        return [self._row(values) for _, values in self._rows.after(key, limit)]

    def index_keys(self, index: Index[I, R]) -> list[I]:
        """All keys of an index, in no order that means anything; a copy."""
        return list(self._indexes[index.name])

    def put(self, row: R) -> None:
        key = self._schema.key(row)
        old = self._rows.put(key, _exact(row))
        if self._indexes:
            self._reindex(key, None if old is None else self._row(old), row)

    def amend(self, row: R) -> None:
        old = self._rows.put(self._schema.key(row), _exact(row))
        assert old is not None, f"{self._schema.name}: no row to amend at {self._schema.key(row)!r}"

    def delete(self, key: K) -> None:
        old = self._rows.delete(key)
        if self._indexes:
            self._reindex(key, self._row(old), None)

    def freeze(self) -> Picture[K]:
        """A picture of the rows, as exact tuples, for the snapshot."""
        return self._rows.freeze()

    def load(self, rows: Sequence[Values]) -> None:
        """Rows of a snapshot, as exact tuples, in key order, above all that are there.

        Raises:
            ValueError: they are not.
        """
        keys: list[K] = list(map(self._schema.key, rows))  # type: ignore[arg-type]  # see Schema.key
        self._rows.extend(keys, rows)
        for key, values in zip(keys, rows, strict=True) if self._indexes else ():
            self._reindex(key, None, self._row(values))

    def exchange(self, other: MemoryTable[K, R]) -> None:
        """Take all that the other holds, and give it what this one held."""
        assert self._schema is other._schema
        self._rows, other._rows = other._rows, self._rows
        self._indexes, other._indexes = other._indexes, self._indexes

    def release(self) -> Iterator[None]:
        """Forget everything in small steps; the table is of no use meanwhile."""
        for index in self._indexes.values():
            yield from release_items(index)
        yield from self._rows.release()

    def _row(self, values: Values) -> R:
        # As NamedTuple._make does it, without its detour.
        return tuple.__new__(self._schema.row, values)  # type: ignore[type-var, arg-type]

    def _reindex(self, key: K, old: R | None, new: R | None) -> None:
        for index in self._schema.indexes:
            before = () if old is None else tuple(index.keys(old))
            after = () if new is None else tuple(index.keys(new))
            old_order = None if old is None else index.order(old)
            new_order = None if new is None else index.order(new)
            if before == after and old_order == new_order:
                continue
            lists = self._indexes[index.name]
            for index_key in before:
                places = lists[index_key]
                places.remove(old_order)
                if not places.keys:
                    del lists[index_key]
            for index_key in after:
                places = lists.get(index_key) or lists.setdefault(index_key, Places())
                places.add(new_order, key)


def _exact(row: Any) -> Values:
    """The row's values as a plain tuple: the garbage collector lets go of those, and of no subclass."""
    return tuple(row)
