"""The image's table of stream set objects: packed ranges, and an index entry of four bytes for each stream
in each object.

The index from a stream to its objects refers to an object by a slot number of 32 bits, which is reused after
the object is deleted. Slot numbers are local to this process. Ranges are decoded on access. Those of the
`DECODED_MAX` objects read last stay decoded.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeVar

from ponor_runtime.identity import NodeId, ObjectId, StreamId

from ponor_metadata.image.blocks import TupleBlocks
from ponor_metadata.image.memory_table import FrozenRows, Places, release_items
from ponor_metadata.image.storage_native import append_slot
from ponor_metadata.nouns.objects import (
    STREAM_SET_OBJECTS,
    STREAM_SET_OBJECTS_AT,
    STREAM_SET_OBJECTS_WITH,
    StreamSetObjectRow,
)
from ponor_metadata.tables.found import Found
from ponor_metadata.tables.ranges import DecodedRanges, PackedRanges, decode_ranges
from ponor_metadata.tables.schema import Index, Schema, Section, Values

I = TypeVar("I")  # noqa: E741 -- the key of an index

DECODED_MAX: Final = 64
"""Objects whose ranges stay decoded, at 24 bytes per piece."""


class StreamSetObjectTable:
    """An `ImageTable` of stream set objects."""

    __slots__ = (
        "_at_node",
        "_decoded",
        "_free",
        "_object_ids",
        "_orders",
        "_rows",
        "_slot_of",
        "_with_stream",
    )

    def __init__(self) -> None:
        # (node id, commit order, packed ranges) by object id.
        self._rows: TupleBlocks[int] = TupleBlocks()
        self._at_node: dict[int, Places] = {}
        self._with_stream: dict[int, array[int]] = {}
        self._slot_of: dict[int, int] = {}
        # Object ids by slot.
        self._object_ids = array("q")
        self._orders = array("q")
        self._free: list[int] = []
        self._decoded: dict[int, PackedRanges] = {}

    @property
    def schema(self) -> Schema[ObjectId, StreamSetObjectRow]:
        return STREAM_SET_OBJECTS

    @property
    def slots(self) -> int:
        """Number of slots: the largest number of rows so far."""
        return len(self._orders)

    def get(self, key: ObjectId) -> StreamSetObjectRow | None:
        values = self._rows.get(key)
        return None if values is None else self._row(key, values)

    def __contains__(self, key: object) -> bool:
        return self._rows.get(key) is not None  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[StreamSetObjectRow]:
        for key, (node_id, order, data) in self._rows.items():
            yield StreamSetObjectRow(ObjectId(key), node_id, order, PackedRanges(data))

    def find(self, index: Index[I, StreamSetObjectRow], index_key: I) -> Sequence[StreamSetObjectRow]:
        key: Any = index_key
        if index is STREAM_SET_OBJECTS_AT:
            places = self._at_node.get(key)
            return () if places is None else Found(places.keys, self.get)
        assert index is STREAM_SET_OBJECTS_WITH, f"stream set objects have no index {index.name}"
        slots = self._with_stream.get(key)
        return () if slots is None else Found(slots, self._in_slot)

    def put(self, row: StreamSetObjectRow) -> None:
        if self._rows.get(row.object_id) is not None:
            self.delete(row.object_id)
        self._rows.put(row.object_id, (row.node_id, row.commit_order, row.ranges.data))
        self._note(row)

    def amend(self, row: StreamSetObjectRow) -> None:
        self.put(row)

    def delete(self, key: ObjectId) -> None:
        row = self._row(key, self._rows.delete(key))
        slot = self._slot_of.pop(key)
        self._decoded.pop(key, None)
        places = self._at_node[row.node_id]
        places.remove(row.commit_order)
        if not places.keys:
            del self._at_node[row.node_id]
        for stream_id in row.ranges.decoded.stream_ids():
            slots = self._with_stream[stream_id]
            # Compaction and retention delete the oldest object first.
            position = (
                0 if slots[0] == slot else bisect_left(slots, row.commit_order, key=self._orders.__getitem__)
            )
            assert slots[position] == slot, f"object {key} is missing in the index of stream {stream_id}"
            del slots[position]
            if not slots:
                del self._with_stream[stream_id]
        self._free.append(slot)

    def after(self, key: ObjectId | None, limit: int) -> list[StreamSetObjectRow]:
        return [
            StreamSetObjectRow(ObjectId(each), node_id, order, PackedRanges(data))
            for each, (node_id, order, data) in self._rows.after(key, limit)
        ]

    def ids_with(self, stream_id: StreamId) -> list[int]:
        """Return the ids of objects with a piece of the stream, without decoding ranges."""
        return [self._object_ids[slot] for slot in self._with_stream.get(stream_id, ())]

    def pieces_of(self, key: ObjectId) -> DecodedRanges | None:
        """Return the pieces of an object, decoded for this call only; None if the object does not exist."""
        values = self._rows.get(key)
        return None if values is None else decode_ranges(values[2])

    def freeze(self) -> tuple[FrozenRows, ...]:
        picture = self._rows.freeze()
        return (FrozenRows(len(picture), ((key, *values) for key, values in picture.drain())),)

    def load(self, section: Section, rows: Sequence[Values]) -> None:
        assert section in STREAM_SET_OBJECTS.sections
        self._rows.extend([row[0] for row in rows], [tuple(row[1:]) for row in rows])
        for object_id, node_id, order, data in rows:
            self._note(StreamSetObjectRow(object_id, node_id, order, PackedRanges(data)))

    def exchange(self, other: StreamSetObjectTable) -> None:
        for name in StreamSetObjectTable.__slots__:
            mine, others = getattr(self, name), getattr(other, name)
            setattr(self, name, others)
            setattr(other, name, mine)

    def release(self) -> Iterator[None]:
        for entries in (self._with_stream, self._slot_of, self._at_node, self._decoded):
            yield from release_items(entries)
        yield from self._rows.release()

    def _row(self, key: int, values: Values) -> StreamSetObjectRow:
        node_id, order, data = values
        ranges = self._decoded.pop(key, None) or PackedRanges(data)
        self._decoded[key] = ranges  # the newest last
        if len(self._decoded) > DECODED_MAX:
            del self._decoded[next(iter(self._decoded))]
        return StreamSetObjectRow(ObjectId(key), NodeId(node_id), order, ranges)

    def _in_slot(self, slot: int) -> StreamSetObjectRow | None:
        return self.get(ObjectId(self._object_ids[slot]))

    def _note(self, row: StreamSetObjectRow) -> None:
        order = row.commit_order
        slot = self._take_slot(row.object_id, order)
        places = self._at_node.get(row.node_id) or self._at_node.setdefault(row.node_id, Places())
        places.add(order, row.object_id)
        orders, with_stream = self._orders, self._with_stream
        column = row.ranges.decoded.stream_id_column
        for stream_id in append_slot(with_stream, column, slot, orders, order):
            slots = with_stream[stream_id]
            slots.insert(bisect_left(slots, order, key=orders.__getitem__), slot)

    def _take_slot(self, object_id: ObjectId, order: int) -> int:
        if self._free:
            slot = self._free.pop()
            self._object_ids[slot], self._orders[slot] = object_id, order
        else:
            slot = len(self._orders)
            self._object_ids.append(object_id)
            self._orders.append(order)
        self._slot_of[object_id] = slot
        return slot
