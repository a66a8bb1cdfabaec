"""The split of un-uploaded data into objects, as properties."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from ponor_runtime.identity import StreamEpoch, StreamId
from s3stream.upload_plan import CARRY_DIVISOR, StreamPiece, plan_upload

SPLIT = 1000


def piece(stream_id: int, size_bytes: int) -> StreamPiece:
    return StreamPiece(StreamId(stream_id), StreamEpoch(1), 0, 1, size_bytes, ())


sizes_of_streams = st.lists(st.integers(1, 3 * SPLIT), max_size=60)


@given(sizes_of_streams, st.integers(1, 20), st.integers(0, 2 * SPLIT))
def test_every_piece_goes_to_exactly_one_place(
    sizes: list[int], ranges_max: int, carry_bytes_max: int
) -> None:
    pieces = [piece(number * 2, size) for number, size in enumerate(sizes)]
    plan = plan_upload(
        pieces, split_size_bytes=SPLIT, commit_ranges_max=ranges_max, carry_bytes_max=carry_bytes_max
    )
    placed = sorted([*plan.pieces, *plan.carried], key=lambda each: each.stream_id)
    assert placed == pieces
    for group in plan.groups:
        assert 1 <= len(group.stream_set) + len(group.stream_objects) <= ranges_max
        ids = [each.stream_id for each in group.stream_set]
        assert ids == sorted(ids)
        if len(pieces) > 1:
            assert all(each.size_bytes >= SPLIT for each in group.stream_objects)
            assert all(each.size_bytes < SPLIT for each in group.stream_set)
    if plan.carried:
        carried_bytes = sum(each.size_bytes for each in plan.carried)
        assert carried_bytes <= carry_bytes_max
        assert carried_bytes * CARRY_DIVISOR <= sum(sizes)
        assert plan.groups, "a carry never leaves nothing to upload"


@given(st.integers(1, 10 * SPLIT))
def test_a_lone_stream_is_one_stream_object(size: int) -> None:
    plan = plan_upload([piece(7, size)], split_size_bytes=SPLIT, commit_ranges_max=10, carry_bytes_max=0)
    assert plan.object_count == 1
    assert not plan.groups[0].stream_set


@given(st.lists(st.integers(1, SPLIT - 1), min_size=2, max_size=1000))
def test_small_pieces_cost_one_object_however_many(sizes: list[int]) -> None:
    pieces = [piece(number, size) for number, size in enumerate(sizes)]
    plan = plan_upload(pieces, split_size_bytes=SPLIT, commit_ranges_max=1000, carry_bytes_max=SPLIT)
    assert (plan.object_count, plan.carried) == (1, ())


@given(sizes_of_streams)
def test_objects_follow_bytes(sizes: list[int]) -> None:
    pieces = [piece(number, size) for number, size in enumerate(sizes)]
    plan = plan_upload(pieces, split_size_bytes=SPLIT, commit_ranges_max=1000, carry_bytes_max=0)
    assert plan.object_count <= sum(sizes) // SPLIT + 1
