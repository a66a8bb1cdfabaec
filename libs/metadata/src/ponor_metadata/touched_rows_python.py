"""The rows of one table that uncommitted batches touched, without compiled code: the twin of `touched_rows_native`."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ponor_metadata.tables import Schema, Table

if TYPE_CHECKING:
    from ponor_metadata.overlay import Overlay

K = TypeVar("K")
R = TypeVar("R")


@dataclass(slots=True, eq=False)
class Change(Generic[K, R]):
    """What a batch that is not committed makes of a row (None: deleted), and what stood there before; `present` is known where indexes ask for it."""

    key: K
    row: R | None
    present: R | None
    batch_index: int


class TouchedRows(Generic[K, R]):
    """The image's table with the touched rows put over it, as far as one row at a time is concerned."""

    __slots__ = (
        "_base",
        "_changes",
        "_image",
        "_index_keys",
        "_missing",
        "_missing_at",
        "_moved",
        "_notes",
        "_overlay",
        "_schema",
        "_touched",
        "_unnoted",
    )

    def __init__(self, base: Table[K, R], overlay: Overlay) -> None:
        self._base = base
        self._schema = base.schema
        self._overlay = overlay
        self._image = overlay.image
        # The newest change of every row that uncommitted batches touched.
        self._touched: dict[K, Change[K, R]] = {}
        # Per index: under which index keys touched rows stand or stood, which rows, and the newest batch that said so.
        self._index_keys: dict[str, dict[Any, dict[K, int]]] = {
            index.name: {} for index in self._schema.indexes
        }
        # What was touched and noted by which batch, oldest first: a commit looks at what its batches did, not at all that is in flight.
        self._changes: deque[Change[K, R]] = deque()
        self._notes: deque[tuple[int, dict[Any, dict[K, int]], Any, K]] = deque()
        # Rows that were put or taken out, and what stood there before, since somebody looked at an index last: most are committed before anybody does.
        self._unnoted: deque[Change[K, R]] = deque()
        self._moved = [(index.keys, self._index_keys[index.name]) for index in self._schema.indexes]
        # The key that was last looked for in the image's table in vain, and the image's index then: what is about to be put is asked for several times before.
        self._missing: K | None = None
        self._missing_at = 0

    @property
    def schema(self) -> Schema[K, R]:
        return self._schema

    @property
    def touched_rows(self) -> int:
        """How many rows uncommitted batches changed."""
        return len(self._touched)

    def get(self, key: K) -> R | None:
        touched = self._touched.get(key)
        if touched is not None:
            return touched.row
        index = self._image.index
        if key == self._missing and index == self._missing_at:
            return None
        row = self._base.get(key)
        if row is None:
            self._missing, self._missing_at = key, index
        return row

    def __contains__(self, key: object) -> bool:
        # Keys of another type are in neither dict.
        return self.get(key) is not None  # type: ignore[arg-type]

    def put(self, row: R) -> None:
        key = self._schema.key(row)
        self._change(key, row, self.get(key) if self._moved else None)

    def delete(self, key: K) -> None:
        present = self.get(key)
        if present is None:
            raise KeyError(key)
        self._change(key, None, present)

    def _change(self, key: K, row: R | None, present: R | None) -> None:
        change = Change(key, row, present, self._overlay.index)
        if self._moved:
            self._unnoted.append(change)
        self._touched[key] = change
        self._changes.append(change)

    def forget(self, index: int | None) -> None:
        """Forget the rows that no batch above `index` touched; None: all rows."""
        self._missing = None
        if index is None:
            self._touched.clear()
            self._changes.clear()
            self._notes.clear()
            self._unnoted.clear()
            for moved in self._index_keys.values():
                moved.clear()
            return
        changes, notes, unnoted = self._changes, self._notes, self._unnoted
        while unnoted and unnoted[0].batch_index <= index:
            unnoted.popleft()
        while changes and changes[0].batch_index <= index:
            change = changes.popleft()
            if self._touched.get(change.key) is change:  # else it was touched again
                del self._touched[change.key]
        # A row that a later batch touches again is noted by that batch where it stood before it, which is where the image shows it now.
        while notes and notes[0][0] <= index:
            _, moved, index_key, key = notes.popleft()
            keys = moved.get(index_key)
            if keys is not None and keys.get(key, index + 1) <= index:
                del keys[key]
                if not keys:
                    del moved[index_key]
