"""The read index compared with a scan: pieces are contiguous, clipped and in existing objects."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from ponor_metadata.image.read_index import PIECES_MAX, find_pieces
from ponor_metadata.nouns.streams import STREAMS

from libs.metadata.tests.metadata_kit import (
    NODE_A,
    NODE_B,
    Log,
    closed,
    created,
    destroyed,
    obj,
    opened,
    prepared,
    so,
    sso,
    stream,
    trimmed,
)

S1, S2 = stream(1), stream(2)


def written(runs: list[tuple[bool, bool, int]]) -> Log:
    """Write runs of stream 1: (as a stream object, after a move to the other node, length), and some of
    stream 2.
    """
    log = Log()
    log.commit(created(S1), created(S2))
    node, epoch, end = NODE_A, 1, 0
    log.commit(opened(S1, epoch, node), opened(S2, epoch, node))
    for number, (own, moves, length) in enumerate(runs, start=1):
        if moves:
            log.commit(closed(S1, epoch), closed(S2, epoch))
            node, epoch = (NODE_B if node == NODE_A else NODE_A), epoch + 1
            log.commit(opened(S1, epoch, node), opened(S2, epoch, node))
        log.commit(prepared(obj(number), 1, node, expires_at_ms=1 << 40))
        if own:
            log.commit(so(obj(number), S1, end, end + length))
        else:
            row = log.image[STREAMS].get(S2)
            assert row is not None
            neighbour = (S2, row.end_offset, row.end_offset + 2)
            log.commit(sso(obj(number), (S1, end, end + length), neighbour, node_id=node))
        end += length
    return log


runs_strategy = st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(1, 20)), min_size=1, max_size=12)


@given(runs_strategy, st.integers(0, 260), st.integers(0, 260), st.integers(1, 5))
def test_the_read_index_finds_the_same_pieces_as_a_scan(
    runs: list[tuple[bool, bool, int]], start: int, length: int, limit: int
) -> None:
    log = written(runs)
    stream_row = log.image[STREAMS].get(S1)
    assert stream_row is not None
    end = min(start + length, stream_row.end_offset)
    expected, position = [], 0
    for number, (_, _, run) in enumerate(runs, start=1):
        low, high = max(start, position), min(end, position + run)
        if low < high:
            expected.append((obj(number), low, high))
        position += run
    pieces = find_pieces(log.image, S1, start, start + length, limit=limit)
    assert [(piece.object_id, piece.start_offset, piece.end_offset) for piece in pieces] == expected[:limit]
    assert all(piece.namespace == "ns-1" and piece.size_bytes == 10 for piece in pieces)


def test_offsets_below_the_start_have_no_pieces() -> None:
    log = written([(False, False, 10), (True, False, 10)])
    log.commit(trimmed(S1, 5))
    assert find_pieces(log.image, S1, 4, 20) == []
    assert [piece.start_offset for piece in find_pieces(log.image, S1, 5, 20)] == [5, 10]
    log.commit(trimmed(S1, 15))
    assert [(piece.start_offset, piece.end_offset) for piece in find_pieces(log.image, S1, 15, 99)] == [
        (15, 20)
    ]


def test_unknown_streams_and_empty_requests_have_no_pieces() -> None:
    log = written([(True, False, 10)])
    assert find_pieces(log.image, stream(99), 0, 10) == []
    assert find_pieces(log.image, S1, 10, 20) == []
    assert find_pieces(log.image, S1, 5, 5) == []


def test_an_answer_ends_at_the_limit_and_the_next_request_continues() -> None:
    log = written([(number % 3 == 0, False, 1) for number in range(PIECES_MAX + 10)])
    first = find_pieces(log.image, S1, 0, 10_000)
    assert len(first) == PIECES_MAX
    rest = find_pieces(log.image, S1, first[-1].end_offset, 10_000)
    assert len(rest) == 10


def test_a_destroyed_object_is_not_found() -> None:
    log = written([(True, False, 10)])
    log.commit(trimmed(S1, 10), destroyed(obj(1)))
    assert find_pieces(log.image, S1, 0, 10) == []
