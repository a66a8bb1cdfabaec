"""Packed tables of objects compared with dicts: rows and indexes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ponor_metadata.image.object_table import ObjectTable
from ponor_metadata.image.stream_object_table import StreamObjectTable
from ponor_metadata.image.stream_set_object_table import StreamSetObjectTable
from ponor_metadata.nouns.nodes import NO_EPOCH, NO_NODE
from ponor_metadata.nouns.objects import (
    OBJECTS_WAITING,
    STREAM_SET_OBJECTS_AT,
    STREAM_SET_OBJECTS_WITH,
    ObjectRow,
    ObjectState,
    StreamSetObjectRow,
)
from ponor_metadata.nouns.streams import STREAM_OBJECTS_OF, StreamObjectRow
from ponor_metadata.tables.ranges import PackedRanges, StreamPiece, encode_ranges
from ponor_metadata.tables.schema import Index, Table
from ponor_runtime.identity import NodeEpoch, NodeId, ObjectId, StreamId

from libs.metadata.tests.metadata_kit import NODE_A, obj

K = TypeVar("K")
R = TypeVar("R")
INT64 = st.integers(0, (1 << 63) - 1)
numbers = st.integers(0, 12)
nodes = st.sampled_from([NodeId(0), NodeId(1), NodeId((1 << 30) - 1)])


def objects(state: ObjectState) -> st.SearchStrategy[ObjectRow]:
    prepared, destroyed = state is ObjectState.PREPARED, state is ObjectState.DESTROYED
    nothing = st.just(0)
    return st.builds(
        ObjectRow,
        object_id=numbers.map(obj),
        state=st.just(state),
        namespace=st.sampled_from(["a", "b"]),
        bucket_index=st.integers(0, 3),
        node_id=nodes,
        node_epoch=st.integers(0, 3).map(NodeEpoch),
        expires_at_ms=INT64 if prepared else nothing,
        size_bytes=nothing if prepared else INT64,
        committed_at_ms=nothing if prepared else INT64,
        destroyed_at_ms=INT64 if destroyed else nothing,
        claim_node_id=nodes if destroyed else st.just(NO_NODE),
        claim_node_epoch=st.integers(0, 3).map(NodeEpoch) if destroyed else st.just(NO_EPOCH),
        claimed_until_ms=INT64 if destroyed else nothing,
    )


def check(
    table: Table[Any, Any], model: dict[Any, Any], indexes: Iterable[tuple[Index[Any, Any], Iterable[Any]]]
) -> None:
    assert list(table) == [model[key] for key in sorted(model)]
    assert len(table) == len(model)
    for number in range(13):
        assert table.get(obj(number)) == model.get(obj(number))
        assert (obj(number) in table) == (obj(number) in model)
    for index, keys in indexes:
        for key in keys:
            expected = sorted((row for row in model.values() if key in index.keys(row)), key=index.order)
            found = table.find(index, key)
            assert list(found) == expected
            assert len(found) == len(expected)
            assert [found[i] for i in range(len(expected))] == expected
            assert list(found[1:]) == expected[1:]


def play(
    table: Table[Any, Any],
    changes: list[Any],
    may_put: Callable[[dict[Any, Any], Any], bool],
    indexes: Iterable[tuple[Index[Any, Any], Iterable[Any]]],
) -> None:
    """Apply changes to a table and to a dict, and compare them: a row is put, a number is deleted."""
    model: dict[Any, Any] = {}
    for change in changes:
        if not isinstance(change, int):
            if may_put(model, change):
                table.put(change)
                model[change.object_id] = change
        elif obj(change) in model:
            table.delete(obj(change))
            del model[obj(change)]
        else:
            with pytest.raises(KeyError):
                table.delete(obj(change))
        check(table, model, indexes)


@given(st.lists(st.one_of(numbers, *map(objects, ObjectState)), max_size=25))
def test_the_table_of_objects_equals_its_model(changes: list[ObjectRow | int]) -> None:
    def states_rise(model: dict[Any, ObjectRow], row: ObjectRow) -> bool:
        return row.object_id not in model or model[row.object_id].state <= row.state

    play(ObjectTable(), changes, states_rise, [(OBJECTS_WAITING, ObjectState)])


def test_a_row_whose_times_belong_to_another_state_is_refused() -> None:
    row = ObjectRow(
        obj(1),
        ObjectState.COMMITTED,
        "ns",
        0,
        NODE_A,
        NodeEpoch(1),
        expires_at_ms=5,
        size_bytes=1,
        committed_at_ms=1,
        destroyed_at_ms=0,
        claim_node_id=NO_NODE,
        claim_node_epoch=NO_EPOCH,
        claimed_until_ms=0,
    )
    with pytest.raises(AssertionError, match="times of another state"):
        ObjectTable().put(row)


holdings = st.builds(
    lambda number, stream, start: StreamObjectRow(obj(number), StreamId(stream), start, start + 1),
    numbers,
    st.integers(0, 2),
    st.integers(0, 20),
)


@given(st.lists(st.one_of(numbers, holdings), max_size=30))
def test_the_table_of_stream_objects_equals_its_model(changes: list[StreamObjectRow | int]) -> None:
    def place_is_free(model: dict[Any, StreamObjectRow], row: StreamObjectRow) -> bool:
        return not any(other[1:3] == row[1:3] for other in model.values() if other.object_id != row.object_id)

    play(StreamObjectTable(), changes, place_is_free, [(STREAM_OBJECTS_OF, list(map(StreamId, range(3))))])


def set_object(number: int, node: NodeId, order: int, streams: list[int]) -> StreamSetObjectRow:
    pieces = [StreamPiece(StreamId(each), order, order + 1) for each in streams]
    return StreamSetObjectRow(obj(number), node, order, PackedRanges(encode_ranges(pieces)))


set_objects = st.builds(
    set_object,
    numbers,
    nodes,
    st.integers(0, 30),
    st.sets(st.integers(0, 4), min_size=1).map(sorted),
)


@given(st.lists(st.one_of(numbers, set_objects), max_size=30))
def test_the_table_of_stream_set_objects_equals_its_model(changes: list[StreamSetObjectRow | int]) -> None:
    def order_is_free(model: dict[Any, StreamSetObjectRow], row: StreamSetObjectRow) -> bool:
        others = (other for other in model.values() if other.object_id != row.object_id)
        return all(other.commit_order != row.commit_order for other in others)

    indexes: list[tuple[Index[Any, Any], Iterable[Any]]] = [
        (STREAM_SET_OBJECTS_AT, [NodeId(0), NodeId(1), NodeId((1 << 30) - 1)]),
        (STREAM_SET_OBJECTS_WITH, [StreamId(each) for each in range(5)]),
    ]
    play(StreamSetObjectTable(), changes, order_is_free, indexes)


def test_slots_of_deleted_objects_are_reused() -> None:
    table = StreamSetObjectTable()
    for number in range(10_000):
        table.put(set_object(number, NODE_A, number, [1, 2]))
        if number >= 3:
            table.delete(ObjectId(obj(number - 3)))
    assert table.slots == 4
    assert [row.object_id for row in table.find(STREAM_SET_OBJECTS_WITH, StreamId(1))] == [
        obj(number) for number in (9_997, 9_998, 9_999)
    ]
