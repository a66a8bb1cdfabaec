"""Schemas of tables, and the interfaces that image, overlay and noun files share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from ponor.metadata.v1.records_pb2 import RecordBatch

from ponor_metadata.tables.columns import Column

K = TypeVar("K")
R = TypeVar("R")
I = TypeVar("I")  # noqa: E741 -- the key of an index

Values = tuple[Any, ...]
"""A row as a plain tuple, not as an instance of the row class."""

FIRST_FIELD: Final = itemgetter(0)
FIRST_TWO_FIELDS: Final = itemgetter(0, 1)
FIRST_THREE_FIELDS: Final = itemgetter(0, 1, 2)


@dataclass(frozen=True, slots=True, eq=False)
class Index(Generic[I, R]):
    """A secondary index.

    Attributes:
        name: unique in its table.
        keys: the index keys under which a row is listed.
        order: the sort key of a row under each index key; unique among the rows of one index key.
    """

    name: str
    keys: Callable[[R], Iterable[I]]
    order: Callable[[R], Any]


@dataclass(frozen=True, slots=True, eq=False)
class Section:
    """How a snapshot encodes rows of one kind (docs/formats/image.md).

    Attributes:
        number: identifies the kind of section in a snapshot; positive, unique, never reused.
        columns: the columns of a row, in order.
        weighed: positions of columns whose sizes count against the byte limit of a section.
        name: name for messages; empty: the table's name.
    """

    number: int
    columns: tuple[Column, ...]
    weighed: tuple[int, ...] = ()
    name: str = ""

    def weight(self, values: Values) -> int:
        """Size of the row's weighed columns in bytes."""
        return sum(self.columns[i].weight(values[i]) for i in self.weighed)


@dataclass(frozen=True, slots=True, eq=False)
class Schema(Generic[K, R]):
    """The definition of a table.

    Attributes:
        name: unique among all tables.
        row: the class of the rows, a `NamedTuple`.
        key: returns the key of a row, which is its first field or its first two or three fields. Also accepts
            a plain tuple.
        sections: the sections in a snapshot; nearly always one, whose columns are the fields of the row.
        indexes: the indexes, in no particular order.
    """

    name: str
    row: Callable[..., R]
    key: Callable[[R], K]
    sections: tuple[Section, ...]
    indexes: tuple[Index[Any, R], ...] = ()


class Table(Protocol[K, R]):
    """Rows under keys, with indexes, as apply rules, validators and readers use them.

    Iteration is in key order, and an index returns rows in its declared order, so no result depends on the
    order of insertions.
    """

    @property
    def schema(self) -> Schema[K, R]:
        """The schema of the table."""
        ...

    def get(self, key: K) -> R | None:
        """Return the row, or None."""
        ...

    def __contains__(self, key: object) -> bool: ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[R]:
        """Iterate over all rows in key order, as of this call; the table may change in the meantime."""
        ...

    def find(self, index: Index[I, R], index_key: I) -> Sequence[R]:
        """Return the rows under an index key, in the index's order.

        Read the result at once, because it may show later changes of the table.
        """
        ...

    def put(self, row: R) -> None:
        """Insert or replace a row. Only apply rules call this."""
        ...

    def amend(self, row: R) -> None:
        """Replace a row by one that has the same index keys and orders, so that the indexes need no change.

        Only apply rules call this.
        """
        ...

    def delete(self, key: K) -> None:
        """Delete a row. Only apply rules call this.

        Raises:
            KeyError: there is no such row.
        """
        ...


class Tables(dict[Schema[Any, Any], Any]):
    """Tables by schema: `tables[STREAMS]`.

    The class is a dictionary, because apply rules look up several tables per record, and a `__getitem__`
    written in Python costs three times as much.
    """

    __slots__ = ()
    # Compare by identity: two images are different even if they are empty or share tables.
    __eq__ = object.__eq__
    __ne__ = object.__ne__
    __hash__ = object.__hash__  # type: ignore[assignment]
    __repr__ = object.__repr__

    if TYPE_CHECKING:

        def __getitem__(self, schema: Schema[K, R]) -> Table[K, R]:
            """Return the table of a schema."""


class View(Protocol):
    """All tables as of one batch: the image (committed batches) or the leader's overlay (proposed batches
    too).
    """

    @property
    def index(self) -> int:
        """Index of the newest batch in this view; 0 before the first."""
        ...

    @property
    def cluster_time_ms(self) -> int:
        """Cluster time of that batch."""
        ...

    def __getitem__(self, schema: Schema[K, R]) -> Table[K, R]:
        """Return the table of a schema."""
        ...

    def begin(self, batch: RecordBatch) -> None:
        """Set index and cluster time to the batch's. `apply_batch` calls this before the first record."""
        ...


Rule = Callable[[View, Any], None]
"""Applies the body of one record kind to a view. Raises AssertionError if the record breaks an invariant."""


@dataclass(frozen=True, slots=True, eq=False)
class Noun:
    """The declarations of one noun file.

    Attributes:
        schemas: the tables.
        rules: the apply rules. Each has the name of the record kind that it applies (the `kind` oneof of
            Record).
        check: raises AssertionError if rows of the tables break an invariant. It reads only rows and shares
            no code with the rules, so that it does not repeat a mistake in a rule.
    """

    schemas: tuple[Schema[Any, Any], ...]
    rules: tuple[Rule, ...] = ()
    check: Callable[[View], None] | None = None
