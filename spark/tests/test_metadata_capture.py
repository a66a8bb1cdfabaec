"""Tests of captured pieces: whether each is the entire content of its object."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from ponor_spark.metadata_capture import CapturedMetadata, PiecePacking
from ponor_spark.partition_layout import CommittedRange
from ponor_spark.snapshot import PIECE, HeldPiece

from libs.metadata.tests.metadata_kit import (
    NODE_A,
    Log,
    created,
    obj,
    opened,
    prepared,
    so,
    sso,
    stream,
    trimmed,
)

S1, S2 = stream(1), stream(2)


@given(runs=st.lists(st.tuples(st.booleans(), st.integers(1, 20)), min_size=1, max_size=8), data=st.data())
def test_piece_is_all_of_an_untrimmed_stream_object(
    runs: list[tuple[bool, int]], data: st.DataObject
) -> None:
    log = Log()
    log.commit(created(S1), created(S2))
    log.commit(opened(S1, 1, NODE_A), opened(S2, 1, NODE_A))
    end = neighbour = 0
    held: list[tuple[int, int, bool]] = []
    for number, (own, length) in enumerate(runs, start=1):
        log.commit(prepared(obj(number), 1, NODE_A, expires_at_ms=1 << 40))
        if own:
            log.commit(so(obj(number), S1, end, end + length))
        else:
            log.commit(
                sso(obj(number), (S1, end, end + length), (S2, neighbour, neighbour + 2), node_id=NODE_A)
            )
            neighbour += 2
        held.append((end, end + length, own))
        end += length
    start = data.draw(st.integers(0, runs[0][1] - 1))
    if start:
        log.commit(trimmed(S1, start))
    captured = CapturedMetadata("c", log.image.index, ())
    PiecePacking(log.image, captured).add(CommittedRange(S1, start, end))
    pieces = [HeldPiece._make(each) for each in PIECE.iter_unpack(captured.pieces[S1])]
    expected = [(max(low, start), high, own and low >= start) for low, high, own in held if high > start]
    assert [(each.start_offset, each.end_offset, each.is_all) for each in pieces] == expected
