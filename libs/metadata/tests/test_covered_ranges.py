"""Ranges of streams: binary search, and joining of ranges that stream objects cover."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from ponor_metadata.image.image import MetadataImage
from ponor_metadata.image.read_index import find_pieces
from ponor_metadata.image.validate import validate
from ponor_metadata.nouns.nodes import NO_NODE
from ponor_metadata.nouns.streams import JOINED_FROM_RANGES, STREAMS, RangeRow, StreamRow

from libs.metadata.tests.metadata_kit import (
    NODE_A,
    NODE_B,
    Log,
    closed,
    contents,
    created,
    obj,
    opened,
    prepared,
    so,
    sso,
    stream,
)

S1 = stream(1)
MOVES = 40


def row_of(log: Log) -> StreamRow:
    row = log.image[STREAMS].get(S1)
    assert row is not None
    return row


def moved(log: Log, move: int, *, in_set_object: bool = False) -> None:
    """Open the stream at the other of two nodes, which writes ten offsets."""
    node = (NODE_A, NODE_B)[move % 2]
    log.commit(opened(S1, move + 1, node), prepared(obj(move + 1), 1, node))
    start, end = 10 * move, 10 * move + 10
    if in_set_object:
        log.commit(sso(obj(move + 1), (S1, start, end), node_id=node))
    else:
        log.commit(so(obj(move + 1), S1, start, end))
    log.commit(closed(S1, move + 1))


def test_moves_do_not_add_ranges_if_stream_objects_contain_the_data() -> None:
    log = Log()
    log.commit(created(S1))
    for move in range(MOVES):
        moved(log, move)
        assert len(row_of(log).ranges) <= JOINED_FROM_RANGES
        validate(log.image)
    pieces = find_pieces(log.image, S1, 0, 10 * MOVES)
    assert [(piece.start_offset, piece.end_offset) for piece in pieces] == [
        (10 * move, 10 * move + 10) for move in range(MOVES)
    ]


def test_a_range_with_data_in_a_stream_set_object_keeps_its_node() -> None:
    log = Log()
    log.commit(created(S1))
    for move in range(MOVES):
        moved(log, move, in_set_object=move == 7)
    kept = [part for part in row_of(log).ranges if part.start_offset == 70]
    assert [(part.node_id, part.end_offset) for part in kept] == [(NODE_B, 80)]
    assert len(row_of(log).ranges) <= JOINED_FROM_RANGES + 2
    validate(log.image)
    assert len(find_pieces(log.image, S1, 0, 10 * MOVES)) == MOVES


def test_overlay_and_rules_join_the_same_ranges_as_compiled_code() -> None:
    log = Log()
    log.commit(created(S1))
    for move in range(MOVES):
        moved(log, move, in_set_object=move in {3, 9, 10})
    interpreted = MetadataImage(compiled=False)
    for encoded in log.encoded:
        interpreted.replay(encoded)
    assert contents(interpreted) == contents(log.image)


@given(
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=30),
    offset=st.integers(-1, 160),
    below=st.integers(0, 4),
)
def test_range_at_returns_the_range_that_contains_the_offset(
    lengths: list[int], offset: int, below: int
) -> None:
    writers: list[int] = []
    end = below
    for number, length in enumerate(lengths):
        writers += (number, number % 3 - 1, end)
        end += length
    row = StreamRow(S1, len(lengths), False, below, end, NO_NODE, -1, tuple(writers), ())  # type: ignore[arg-type]
    expected = next((part for part in row.ranges if part.start_offset <= offset < part.end_offset), None)
    found: RangeRow | None = row.range_at(offset)
    assert found == expected
    assert row.writer_of(offset) == (None if expected is None else expected.node_id)
