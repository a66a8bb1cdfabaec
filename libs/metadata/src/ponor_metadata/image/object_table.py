"""The image's table of objects: 28 bytes for each PREPARED or COMMITTED row; DESTROYED rows are not packed.

The fields that all rows of a node epoch have in common (state, namespace, bucket, owner) are stored once, as
an origin with a number. Origin numbers are local to this process. One field holds the expiry of a PREPARED
row or the commit time of a COMMITTED row; no row has both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import chain, islice
from struct import Struct
from typing import Final, NamedTuple, TypeVar, overload

from ponor_runtime.identity import NodeEpoch, NodeId, ObjectId

from ponor_metadata.image.blocks import StructBlocks, TupleBlocks
from ponor_metadata.image.memory_table import FrozenRows
from ponor_metadata.nouns.nodes import NO_EPOCH, NO_NODE
from ponor_metadata.nouns.objects import (
    IN_USE_SECTION,
    OBJECTS,
    OBJECTS_WAITING,
    ObjectRow,
    ObjectState,
)
from ponor_metadata.tables.schema import Index, Schema, Section, Values

I = TypeVar("I")  # noqa: E741 -- the key of an index

IN_USE: Final = Struct("<Iqq")
"""Number of the origin; size_bytes; expires_at_ms or committed_at_ms."""


class Origin(NamedTuple):
    """The fields that many rows have in common."""

    state: ObjectState
    namespace: str
    bucket_index: int
    node_id: NodeId
    node_epoch: NodeEpoch


class WaitingObjects(Sequence[ObjectRow]):
    """Objects of one state, sorted by the time at which they are due.

    They are stored in blocks, because there may be a million objects, and most are removed at the front.
    """

    __slots__ = ("_due", "_table")

    def __init__(self, table: ObjectTable) -> None:
        self._table = table
        self._due: TupleBlocks[tuple[int, ObjectId]] = TupleBlocks()

    def __len__(self) -> int:
        return len(self._due)

    @overload
    def __getitem__(self, i: int) -> ObjectRow: ...

    @overload
    def __getitem__(self, i: slice) -> Sequence[ObjectRow]: ...

    def __getitem__(self, i: int | slice) -> ObjectRow | Sequence[ObjectRow]:
        return list(self)[i]

    def __iter__(self) -> Iterator[ObjectRow]:
        for (object_id,) in self._due.scan():
            row = self._table.get(object_id)
            assert row is not None, f"object {object_id} is listed as waiting but does not exist"
            yield row

    def of(self, table: ObjectTable) -> WaitingObjects:
        """Return the same objects as part of another table, which has taken over the rows."""
        moved = WaitingObjects(table)
        moved._due = self._due
        return moved

    def release(self) -> Iterator[None]:
        """Free all entries, one block per step."""
        return self._due.release()

    def after(self, due: tuple[int, ObjectId], limit: int) -> list[ObjectRow]:
        """Return at most `limit` objects that are due after (time, object id)."""
        rows = (self._table.get(object_id) for _, (object_id,) in self._due.after(due, limit))
        return [row for row in rows if row is not None]

    def note(self, row: ObjectRow) -> None:
        """Add an object."""
        self._due.put(OBJECTS_WAITING.order(row), (row.object_id,))

    def forget(self, row: ObjectRow) -> None:
        """Remove an object."""
        self._due.delete(OBJECTS_WAITING.order(row))


class ObjectTable:
    """An `ImageTable` of objects."""

    __slots__ = ("_destroyed", "_in_use", "_numbers", "_origins", "_waiting")

    def __init__(self) -> None:
        self._in_use = StructBlocks(IN_USE)
        self._destroyed: TupleBlocks[int] = TupleBlocks()
        # One origin for each state, namespace, bucket and node epoch: about two per registration of a
        # process.
        self._origins: list[Origin] = []
        self._numbers: dict[Origin, int] = {}
        self._waiting = {
            state: WaitingObjects(self) for state in (ObjectState.PREPARED, ObjectState.DESTROYED)
        }

    @property
    def schema(self) -> Schema[ObjectId, ObjectRow]:
        return OBJECTS

    def get(self, key: ObjectId) -> ObjectRow | None:
        packed = self._in_use.get(key)
        if packed is not None:
            return self._unpack(key, packed)
        kept = self._destroyed.get(key)
        return None if kept is None else ObjectRow(*kept)

    def __contains__(self, key: object) -> bool:
        # mypy rejects keys of another type.
        return self.get(key) is not None  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(self._in_use) + len(self._destroyed)

    def __iter__(self) -> Iterator[ObjectRow]:
        destroyed = self._destroyed.items()
        waiting = next(destroyed, None)
        for key, packed in self._in_use.items():
            while waiting is not None and waiting[0] < key:
                yield ObjectRow(*waiting[1])
                waiting = next(destroyed, None)
            yield self._unpack(key, packed)
        for _, kept in chain([waiting] if waiting is not None else [], destroyed):
            yield ObjectRow(*kept)

    def find(self, index: Index[I, ObjectRow], index_key: I) -> Sequence[ObjectRow]:
        assert index is OBJECTS_WAITING, f"objects have no index {index.name}"
        # The index's keys are states.
        return self._waiting.get(index_key, ())  # type: ignore[call-overload, no-any-return]

    def destroyed_after(self, due: tuple[int, ObjectId], limit: int) -> list[ObjectRow]:
        """Return at most `limit` DESTROYED rows after `due` = (time of destruction, object id), in this
        order.

        Takes O(limit).
        """
        return self._waiting[ObjectState.DESTROYED].after(due, limit)

    def put(self, row: ObjectRow) -> None:
        key = row.object_id
        if row.state is ObjectState.DESTROYED:
            old = self.get(key)
            if old is not None and old.state is not ObjectState.DESTROYED:
                self._in_use.delete(key)
            self._destroyed.put(key, tuple(row))
        else:
            packed = self._in_use.put(key, self._pack(row))
            if packed is not None:
                old = self._unpack(key, packed)
            else:
                old = self.get(key) if key in self._destroyed else None
                assert old is None, f"object {key} is destroyed and cannot come back"
        self._forget_waiting(old)
        self._note_waiting(row)

    def amend(self, row: ObjectRow) -> None:
        self.put(row)

    def delete(self, key: ObjectId) -> None:
        old = self.get(key)
        if old is None:
            raise KeyError(key)
        if old.state is ObjectState.DESTROYED:
            self._destroyed.delete(key)
        else:
            self._in_use.delete(key)
        self._forget_waiting(old)

    def after(self, key: ObjectId | None, limit: int) -> list[ObjectRow]:
        in_use = (self._unpack(found, packed) for found, packed in self._in_use.after(key, limit))
        destroyed = (ObjectRow(*row) for _, row in self._destroyed.after(key, limit))
        return list(islice(merge(in_use, destroyed), limit))

    def freeze(self) -> tuple[FrozenRows, ...]:
        in_use, destroyed, origins = self._in_use.freeze(), self._destroyed.freeze(), tuple(self._origins)
        # The section contains the fields of origins, because origin numbers are local to this process.
        rows = ((key, *origins[number], size, time_ms) for key, (number, size, time_ms) in in_use.drain())
        return (
            FrozenRows(len(in_use), rows),
            FrozenRows(len(destroyed), (row for _, row in destroyed.drain())),
        )

    def load(self, section: Section, rows: Sequence[Values]) -> None:
        if section is IN_USE_SECTION:
            self._load_in_use(rows)
            return
        if any(row[1] is not ObjectState.DESTROYED for row in rows):
            raise ValueError("the section of destroyed objects contains an object in use")
        self._destroyed.extend([row[0] for row in rows], rows)
        for row in rows:
            self._note_waiting(ObjectRow(*row))

    def _load_in_use(self, rows: Sequence[Values]) -> None:
        keys, *origin, sizes, times = zip(*rows, strict=True)
        named = list(map(Origin._make, zip(*origin, strict=True)))
        numbers = {each: self._number(each) for each in dict.fromkeys(named)}
        if any(each.state is ObjectState.DESTROYED for each in numbers):
            raise ValueError("the section of objects in use contains a destroyed object")
        packed = list(zip(map(numbers.__getitem__, named), sizes, times, strict=True))
        self._in_use.extend(keys, packed)
        if not any(each.state is ObjectState.PREPARED for each in numbers):
            return
        for key, each, values in zip(keys, named, packed, strict=True):
            if each.state is ObjectState.PREPARED:
                self._note_waiting(self._unpack(key, values))

    def exchange(self, other: ObjectTable) -> None:
        self._in_use, other._in_use = other._in_use, self._in_use
        self._destroyed, other._destroyed = other._destroyed, self._destroyed
        self._origins, other._origins = other._origins, self._origins
        self._numbers, other._numbers = other._numbers, self._numbers
        mine, others = self._waiting, other._waiting
        self._waiting = {state: waiting.of(self) for state, waiting in others.items()}
        other._waiting = {state: waiting.of(other) for state, waiting in mine.items()}

    def release(self) -> Iterator[None]:
        for waiting in self._waiting.values():
            yield from waiting.release()
        yield from self._destroyed.release()
        yield from self._in_use.release()

    def _pack(self, row: ObjectRow) -> Values:
        prepared = row.state is ObjectState.PREPARED
        time_ms = row.expires_at_ms if prepared else row.committed_at_ms
        assert row[6:] == ObjectTable._times(prepared, row.size_bytes, time_ms), (
            f"object {row.object_id} is {row.state.name} but has times of another state: {row}"
        )
        return self._number(Origin(*row[1:6])), row.size_bytes, time_ms

    def _unpack(self, key: int, packed: Values) -> ObjectRow:
        number, size_bytes, time_ms = packed
        origin = self._origins[number]
        times = ObjectTable._times(origin.state is ObjectState.PREPARED, size_bytes, time_ms)
        # The same as NamedTuple._make, without its overhead.
        return tuple.__new__(ObjectRow, (key, *origin, *times))

    @staticmethod
    def _times(prepared: bool, size_bytes: int, time_ms: int) -> Values:
        if prepared:
            return time_ms, size_bytes, 0, 0, NO_NODE, NO_EPOCH, 0
        return 0, size_bytes, time_ms, 0, NO_NODE, NO_EPOCH, 0

    def _number(self, origin: Origin) -> int:
        number = self._numbers.get(origin)
        if number is None:
            number = self._numbers[origin] = len(self._origins)
            self._origins.append(origin)
        return number

    def _note_waiting(self, row: ObjectRow) -> None:
        if row.state is not ObjectState.COMMITTED:
            self._waiting[row.state].note(row)

    def _forget_waiting(self, row: ObjectRow | None) -> None:
        if row is not None and row.state is not ObjectState.COMMITTED:
            self._waiting[row.state].forget(row)
