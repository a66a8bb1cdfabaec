"""Interpreted versions of the compiled modules, as test oracles: same results, written for clarity."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Generic, TypeVar

from ponor_metadata.image.blocks import StructBlocks
from ponor_metadata.image.overlay import Overlay
from ponor_metadata.tables.schema import Schema, Table

K = TypeVar("K")
R = TypeVar("R")


@dataclass(slots=True, eq=False)
class Change(Generic[K, R]):
    """An uncommitted change of a row (None: deleted). `present`: the row before it, if the table has
    indexes.
    """

    key: K
    row: R | None
    present: R | None
    batch_index: int


class TouchedRows(Generic[K, R]):
    """The oracle of `image.touched_rows_native.TouchedRows`."""

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
        # Per index and index key: keys of touched rows that are or were under it, and the newest batch that
        # noted it.
        self._index_keys: dict[str, dict[Any, dict[K, int]]] = {
            index.name: {} for index in self._schema.indexes
        }
        # Changes and notes by batch, oldest first: a commit visits only those of its batches.
        self._changes: deque[Change[K, R]] = deque()
        self._notes: deque[tuple[int, dict[Any, dict[K, int]], Any, K]] = deque()
        # Changes since the last read of an index. Most are committed before the next one.
        self._unnoted: deque[Change[K, R]] = deque()
        self._moved = [(index.keys, self._index_keys[index.name]) for index in self._schema.indexes]
        # The last key that the image's table did not have, and the image's index then. A key is usually read
        # several times before its `put`.
        self._missing: K | None = None
        self._missing_at = 0

    @property
    def schema(self) -> Schema[K, R]:
        return self._schema

    @property
    def touched_rows(self) -> int:
        """The number of rows that uncommitted batches changed."""
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
        # A later batch that touches the row again has noted its previous index keys, which are the image's
        # now.
        while notes and notes[0][0] <= index:
            _, moved, index_key, key = notes.popleft()
            keys = moved.get(index_key)
            if keys is not None and keys.get(key, index + 1) <= index:
                del keys[key]
                if not keys:
                    del moved[index_key]


def note_all(
    of_stream: dict[int, array[int]],
    rows: StructBlocks,
    keys: list[int],
    values: Sequence[tuple[int, int, int]],
) -> list[int]:
    """The oracle of `image.storage_native.note_all`."""
    left = []
    for n, (key, (stream_id, start, _)) in enumerate(zip(keys, values, strict=True)):
        ids = of_stream.get(stream_id)
        last = None if ids is None else rows.get(ids[-1])
        if ids is None:
            of_stream[stream_id] = array("q", (key,))
        elif last is not None and last[1] < start:
            ids.append(key)
        else:
            left.append(n)
    return left


def append_slot(
    with_stream: dict[int, array[int]],
    stream_ids: array[int],
    slot: int,
    orders: array[int],
    order: int,
) -> list[int]:
    """The oracle of `image.storage_native.append_slot`."""
    left = []
    for stream_id in dict.fromkeys(stream_ids):
        slots = with_stream.get(stream_id)
        if slots is None:
            with_stream[stream_id] = array("I", (slot,))
        elif orders[slots[-1]] < order:
            slots.append(slot)
        else:
            left.append(stream_id)
    return left


def split_blobs(data: bytes, lengths: array[int]) -> list[bytes]:
    """The oracle of `tables.columns_native.split_blobs`."""
    return [data[begin:end] for begin, end in pairwise(accumulate(lengths, initial=0))]


def split_texts(data: bytes, lengths: array[int]) -> list[str]:
    """The same as strings.

    Raises:
        UnicodeDecodeError: one is not UTF-8.
    """
    return [text.decode() for text in split_blobs(data, lengths)]
