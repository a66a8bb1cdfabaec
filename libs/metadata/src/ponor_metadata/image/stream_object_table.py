"""The image's table of stream objects: 40 bytes per row.

Rows are (stream, start, end) by object id. The index has the object ids of each stream, sorted by start
offset.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Any, Final, TypeVar, overload

from ponor_runtime.identity import ObjectId, StreamId

from ponor_metadata.image.blocks import StructBlocks
from ponor_metadata.image.memory_table import FrozenRows, release_items
from ponor_metadata.image.storage_native import note_all
from ponor_metadata.nouns.streams import STREAM_OBJECTS, STREAM_OBJECTS_OF, StreamObjectRow
from ponor_metadata.tables.found import Found
from ponor_metadata.tables.schema import Index, Schema, Section, Values

I = TypeVar("I")  # noqa: E741 -- the key of an index

HOLDING: Final = Struct("<qqq")
"""Stream id, start offset, end offset. Compiled code depends on this layout."""


class _Tail(Sequence[int]):
    """The items of an array after the first `gone` items, without a copy."""

    __slots__ = ("_gone", "_ids")

    def __init__(self, ids: array[int], gone: int) -> None:
        self._ids = ids
        self._gone = gone

    def __len__(self) -> int:
        return len(self._ids) - self._gone

    @overload
    def __getitem__(self, i: int) -> int: ...

    @overload
    def __getitem__(self, i: slice) -> Sequence[int]: ...

    def __getitem__(self, i: int | slice) -> int | Sequence[int]:
        if isinstance(i, slice):
            return self._ids[self._gone :][i]
        return self._ids[i + self._gone if i >= 0 else i]


class StreamObjectTable:
    """An `ImageTable` of stream objects."""

    __slots__ = ("_gone", "_of_stream", "_rows")

    def __init__(self) -> None:
        self._rows = StructBlocks(HOLDING)
        self._of_stream: dict[int, array[int]] = {}
        # For each stream: how many ids at the front of its array belong to deleted rows. Retention deletes
        # objects from the front, and removing the first item of an array moves all others, so many ids are
        # removed together.
        self._gone: dict[int, int] = {}

    @property
    def schema(self) -> Schema[ObjectId, StreamObjectRow]:
        return STREAM_OBJECTS

    def get(self, key: ObjectId) -> StreamObjectRow | None:
        values = self._rows.get(key)
        # The same as NamedTuple._make, without its overhead.
        return None if values is None else tuple.__new__(StreamObjectRow, (key, *values))

    def __contains__(self, key: object) -> bool:
        # mypy rejects keys of another type.
        return self._rows.get(key) is not None  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[StreamObjectRow]:
        for key, values in self._rows.items():
            yield StreamObjectRow(ObjectId(key), *values)

    def find(self, index: Index[I, StreamObjectRow], index_key: I) -> Sequence[StreamObjectRow]:
        assert index is STREAM_OBJECTS_OF, f"stream objects have no index {index.name}"
        stream_id: Any = index_key
        ids = self._of_stream.get(stream_id)
        if ids is None:
            return ()
        gone = self._gone.get(stream_id)
        return Found(ids if gone is None else _Tail(ids, gone), self.get)

    def ids_of(self, stream_id: StreamId) -> array[int]:
        """Ids of a stream's objects by start offset; a copy."""
        return self._of_stream.get(stream_id, array("q"))[self._gone.get(stream_id, 0) :]

    def put(self, row: StreamObjectRow) -> None:
        key, stream_id, start, end = row
        old = self._rows.put(key, (stream_id, start, end))
        if old is not None:
            if old[:2] == (stream_id, start):
                return
            self._forget(key, old[0], old[1])
        self._note(key, stream_id, start)

    def amend(self, row: StreamObjectRow) -> None:
        self.put(row)

    def delete(self, key: ObjectId) -> None:
        stream_id, start, _ = self._rows.delete(key)
        self._forget(key, stream_id, start)

    def after(self, key: ObjectId | None, limit: int) -> list[StreamObjectRow]:
        return [StreamObjectRow(ObjectId(each), *values) for each, values in self._rows.after(key, limit)]

    def freeze(self) -> tuple[FrozenRows, ...]:
        picture = self._rows.freeze()
        return (FrozenRows(len(picture), ((key, *values) for key, values in picture.drain())),)

    def load(self, section: Section, rows: Sequence[Values]) -> None:
        assert section in STREAM_OBJECTS.sections
        keys: list[int] = [row[0] for row in rows]
        values: list[tuple[int, int, int]] = [row[1:] for row in rows]
        self._rows.extend(keys, values)
        for n in note_all(self._of_stream, self._rows, keys, values):
            stream_id, start, _ = values[n]
            self._note(keys[n], stream_id, start)

    def exchange(self, other: StreamObjectTable) -> None:
        self._rows, other._rows = other._rows, self._rows
        self._of_stream, other._of_stream = other._of_stream, self._of_stream
        self._gone, other._gone = other._gone, self._gone

    def release(self) -> Iterator[None]:
        yield from release_items(self._of_stream)
        yield from self._rows.release()

    def _start_of(self, object_id: int) -> int:
        values = self._rows.get(object_id)
        assert values is not None, f"the index of streams names object {object_id}, which does not exist"
        return int(values[1])

    def _note(self, key: int, stream_id: int, start: int) -> None:
        ids = self._of_stream.get(stream_id)
        if ids is None:
            self._of_stream[stream_id] = array("q", (key,))
        elif self._start_of(ids[-1]) < start:  # most objects continue their stream
            ids.append(key)
        else:
            position = bisect_left(ids, start, lo=self._gone.get(stream_id, 0), key=self._start_of)
            assert self._start_of(ids[position]) != start, f"stream {stream_id}: two objects at {start}"
            ids.insert(position, key)

    def _forget(self, key: int, stream_id: int, start: int) -> None:
        ids, gone = self._of_stream[stream_id], self._gone.get(stream_id, 0)
        position = self._position(ids, key, start, gone)
        if position > gone:
            del ids[position]
            return
        gone += 1
        if 2 * gone < len(ids):
            self._gone[stream_id] = gone
            return
        del ids[:gone]
        self._gone.pop(stream_id, None)
        if not ids:
            del self._of_stream[stream_id]

    def _position(self, ids: array[int], key: int, start: int, gone: int) -> int:
        """Find an object's position without its own row, which is already deleted or changed."""
        if ids[gone] == key:  # retention and deletion begin with the oldest
            return gone
        low, high = gone, len(ids)
        while low < high:
            middle = (low + high) // 2
            if ids[middle] == key:
                return middle
            if self._start_of(ids[middle]) < start:
                low = middle + 1
            else:
                high = middle
        raise AssertionError(f"object {key} is missing in the index of its stream")
