"""Compiled code that loads a snapshot, compared with its oracle."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ponor_metadata.image import storage_native
from ponor_metadata.image.blocks import StructBlocks
from ponor_metadata.image.stream_object_table import HOLDING, StreamObjectTable
from ponor_metadata.nouns.streams import STREAM_OBJECTS, STREAM_OBJECTS_OF, StreamObjectRow
from ponor_metadata.tables import columns_native
from ponor_metadata.tables.columns import BLOBS, INTEGERS, TEXTS, UNIQUE_TEXTS, ColumnReader
from ponor_runtime.identity import ObjectId, StreamId

from libs.metadata.tests import oracles

(SECTION,) = STREAM_OBJECTS.sections


@given(st.lists(st.one_of(st.text(max_size=5), st.sampled_from(["", "a", "ž", "日本"])), min_size=1))
def test_compiled_columns_are_split_as_by_the_oracle(texts: list[str]) -> None:
    blobs = [text.encode() for text in texts]
    joined, lengths = b"".join(blobs), array("q", map(len, blobs))
    assert columns_native.split_blobs(joined, lengths) == oracles.split_blobs(joined, lengths) == blobs
    assert columns_native.split_texts(joined, lengths) == oracles.split_texts(joined, lengths) == texts


def test_compiled_code_reads_nothing_beyond_the_bytes() -> None:
    for lengths in ([4], [2, 2], [-1], [1 << 62, 1 << 62], [3, -1]):
        with pytest.raises(ValueError, match="beyond"):
            columns_native.split_blobs(b"abc", array("q", lengths))
    with pytest.raises(UnicodeDecodeError):
        columns_native.split_texts(b"a\xff", array("q", [1, 1]))


@given(st.lists(st.text(max_size=3), min_size=1), st.booleans())
def test_text_columns_are_read_back_with_and_without_interning(texts: list[str], interned: bool) -> None:
    out = bytearray()
    (TEXTS if interned else UNIQUE_TEXTS).write(texts, out)
    for column in (TEXTS, UNIQUE_TEXTS):
        reader = ColumnReader(bytes(out))
        assert list(column.read(reader, len(texts))) == texts
        assert reader.rest == 0


@given(st.lists(st.binary(max_size=6), min_size=1), st.integers(0, 40), st.integers(-4, 4))
def test_damaged_lengths_are_refused_before_anything_is_split(
    blobs: list[bytes], at: int, change: int
) -> None:
    lengths = [len(blob) for blob in blobs]
    lengths[at % len(lengths)] += change
    out = bytearray()
    INTEGERS.write(lengths, out)
    data = bytes(out) + b"".join(blobs)
    if min(lengths) < 0 or sum(lengths) > sum(map(len, blobs)):
        with pytest.raises(ValueError, match="ends inside a column"):
            BLOBS.read(ColumnReader(data), len(blobs))
    else:
        assert list(map(len, BLOBS.read(ColumnReader(data), len(blobs)))) == lengths


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 9)), unique=True, max_size=24))
def test_compiled_index_entries_of_stream_objects_equal_the_oracle(
    pieces: list[tuple[int, int]],
) -> None:
    keys = list(range(10, 10 + len(pieces)))
    values = [(stream_id, start, start + 1) for stream_id, start in pieces]
    rows = StructBlocks(HOLDING)
    rows.extend(keys, values)
    compiled: dict[int, array[int]] = {}
    interpreted: dict[int, array[int]] = {}
    left = storage_native.note_all(compiled, rows, keys, values)
    assert left == oracles.note_all(interpreted, rows, keys, values)
    assert compiled == interpreted
    table = StreamObjectTable()
    table.load(SECTION, [(key, *each) for key, each in zip(keys, values, strict=True)])
    expected = sorted(
        StreamObjectRow(ObjectId(key), StreamId(stream_id), start, end)
        for key, (stream_id, start, end) in zip(keys, values, strict=True)
    )
    assert list(table) == expected
    for stream_id in range(1, 4):
        found = table.find(STREAM_OBJECTS_OF, StreamId(stream_id))
        of_stream = [row for row in expected if row.stream_id == stream_id]
        assert list(found) == sorted(of_stream, key=lambda row: row.start_offset)


def test_two_objects_at_one_offset_of_a_stream_are_refused() -> None:
    with pytest.raises(AssertionError, match="two objects at 5"):
        StreamObjectTable().load(SECTION, [(1, 7, 5, 6), (2, 7, 5, 9)])
