"""Rows that uncommitted batches touched: compiled code compared with its oracle."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ponor_metadata.image import touched_rows_native
from ponor_metadata.image.image import MetadataImage
from ponor_metadata.image.overlay import Overlay
from ponor_metadata.nouns.keys import KEYS, KeyRow
from ponor_metadata.nouns.nodes import OPERATIONS, OperationRow
from ponor_metadata.tables.schema import Schema
from ponor_runtime.identity import NodeId

from libs.metadata.tests.oracles import TouchedRows

NODE = NodeId(65_536)
NUMBERS = st.integers(0, 6)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), NUMBERS),
        st.tuples(st.just("delete"), NUMBERS),
        st.tuples(st.just("get"), NUMBERS),
        st.tuples(st.just("commit"), NUMBERS),
        st.tuples(st.just("drop"), NUMBERS),
    ),
    max_size=60,
)


def _state(rows: Any) -> tuple[Any, ...]:
    """Return the whole state: touched rows, changes, and changes that are not noted for indexes."""

    def plain(change: Any) -> tuple[Any, ...]:
        return change.key, change.row, change.present, change.batch_index

    return (
        {key: plain(change) for key, change in rows._touched.items()},
        [plain(change) for change in rows._changes],
        [plain(change) for change in rows._unnoted],
        rows.touched_rows,
    )


def _operation(number: int, index: int) -> OperationRow:
    return OperationRow(NODE, number, bytes(8), b"%d" % index, index)


def _key(number: int, index: int) -> KeyRow:
    return KeyRow(f"k{number}", b"%d" % index)


@pytest.mark.parametrize(("table", "row"), [(OPERATIONS, _operation), (KEYS, _key)])
@given(committed=st.sets(NUMBERS), steps=steps)
def test_compiled_touched_rows_equal_the_oracle(
    table: Schema[Any, Any], row: Any, committed: set[int], steps: list[tuple[str, int]]
) -> None:
    image = MetadataImage()
    base = image[table]
    for number in sorted(committed):
        base.put(row(number, 0))
    overlay = Overlay(image)
    twins: list[Any] = [TouchedRows(base, overlay), touched_rows_native.TouchedRows(base, overlay)]
    for index, (step, number) in enumerate(steps, 1):
        overlay._newest = (index, 0)
        key = base.schema.key(row(number, index))
        for twin in twins:
            if step == "put":
                twin.put(row(number, index))
            elif step == "delete" and key in twin:
                twin.delete(key)
            elif step == "delete":
                with pytest.raises(KeyError):
                    twin.delete(key)
            elif step == "commit":
                twin.forget(index - number)
            elif step == "drop":
                twin.forget(None)
        assert twins[0].get(key) == twins[1].get(key)
        assert type(twins[0].get(key)) is type(twins[1].get(key))
        assert _state(twins[0]) == _state(twins[1])
