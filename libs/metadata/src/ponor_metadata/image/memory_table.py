"""The image's table for rows of any class. Rows are plain tuples in blocks. Each index key has sorted row
keys.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

from ponor_metadata.image.blocks import TupleBlocks
from ponor_metadata.image.storage_native import untrack
from ponor_metadata.tables.found import Found
from ponor_metadata.tables.schema import Index, Schema, Section, Table, Values

K = TypeVar("K")
R = TypeVar("R")
I = TypeVar("I")  # noqa: E741 -- the key of an index


@dataclass(frozen=True, slots=True)
class FrozenRows:
    """The rows of one section at one moment: the number of rows, and their column values in key order."""

    count: int
    values: Iterator[Values]


class ImageTable(Table[K, R], Protocol[K, R]):
    """A table of the image."""

    def after(self, key: K | None, limit: int) -> list[R]:
        """Return at most `limit` rows above a key (None: from the first), in key order. Takes O(limit)."""
        ...

    def freeze(self) -> tuple[FrozenRows, ...]:
        """Take a frozen copy of the rows for a snapshot. Returns one item for each section of the schema."""
        ...

    def load(self, section: Section, rows: Sequence[Values]) -> None:
        """Append rows of a snapshot, as values of the section's columns, in key order and above all present
        rows.

        Raises:
            ValueError: the rows are not in order, or do not belong to this section.
        """
        ...

    def exchange(self, other: Any) -> None:
        """Swap the contents with another table of the same class and schema."""
        ...

    def release(self) -> Iterator[None]:
        """Free all rows in small steps. The table must not be used afterwards."""
        ...


class Places:
    """Rows under one index key: the ascending list of sort keys (`Index.order`), and the list of row keys."""

    __slots__ = ("keys", "orders")

    def __init__(self) -> None:
        self.orders: list[Any] = []
        self.keys: list[Any] = []
        untrack(self.orders)
        untrack(self.keys)

    def add(self, order: Any, key: Any) -> None:
        """Insert a row's key at the position of its order."""
        if not self.orders or self.orders[-1] < order:  # most rows arrive in order
            self.orders.append(order)
            self.keys.append(key)
            return
        position = bisect_left(self.orders, order)
        assert self.orders[position] != order, f"two rows at {order} of one index key"
        self.orders.insert(position, order)
        self.keys.insert(position, key)

    def remove(self, order: Any) -> None:
        """Remove the entry at this order."""
        position = bisect_left(self.orders, order)
        assert self.orders[position] == order, f"no row at {order} of the index key"
        del self.orders[position], self.keys[position]


RELEASED_AT_ONCE: Final = 512
"""Index entries that one step frees."""


def release_items(entries: dict[Any, Any]) -> Iterator[None]:
    """Empty a dictionary in small steps."""
    while entries:
        for _ in range(min(RELEASED_AT_ONCE, len(entries))):
            entries.popitem()
        yield


class MemoryTable(Generic[K, R]):
    """An `ImageTable` for rows of any class."""

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
        return [self._row(values) for _, values in self._rows.after(key, limit)]

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

    def freeze(self) -> tuple[FrozenRows, ...]:
        picture = self._rows.freeze()
        return (FrozenRows(len(picture), (values for _, values in picture.drain())),)

    def load(self, section: Section, rows: Sequence[Values]) -> None:
        assert section in self._schema.sections
        keys: list[K] = list(map(self._schema.key, rows))  # type: ignore[arg-type]  # see Schema.key
        self._rows.extend(keys, rows)
        for key, values in zip(keys, rows, strict=True) if self._indexes else ():
            self._reindex(key, None, self._row(values))

    def exchange(self, other: MemoryTable[K, R]) -> None:
        assert self._schema is other._schema
        self._rows, other._rows = other._rows, self._rows
        self._indexes, other._indexes = other._indexes, self._indexes

    def release(self) -> Iterator[None]:
        for index in self._indexes.values():
            yield from release_items(index)
        yield from self._rows.release()

    def _row(self, values: Values) -> R:
        # The same as NamedTuple._make, without its overhead.
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


def index_keys(table: Table[Any, R], index: Index[I, R]) -> list[I]:
    """Return a copy of all keys of an index of a `MemoryTable`, in undefined order."""
    assert isinstance(table, MemoryTable), f"table {table.schema.name} has no list of index keys"
    return list(table._indexes[index.name])  # noqa: SLF001 -- of the class above


def _exact(row: Any) -> Values:
    """Return the row as a tuple, not as an instance of a subclass.

    Python's garbage collector stops tracking tuples, but not instances of subclasses.
    """
    return tuple(row)
