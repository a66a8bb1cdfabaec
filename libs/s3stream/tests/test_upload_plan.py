"""Properties of the assignment of data to objects."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from ponor_runtime.identity import StreamEpoch, StreamId
from s3stream.settings import COMMIT_OBJECTS_MAX, StorageSettings
from s3stream.upload_plan import SMALL_REST_DIVISOR, UploadPiece, UploadPlan, plan_upload

SPLIT = 1000


def piece(stream_id: int, size_bytes: int) -> UploadPiece:
    return UploadPiece(StreamId(stream_id), StreamEpoch(1), 0, 1, size_bytes, ())


sizes_of_streams = st.lists(st.integers(1, 3 * SPLIT), max_size=60)


def plan_of(
    pieces: list[UploadPiece],
    *,
    ranges_max: int = 10_000,
    streams_max: int = 10_000,
    small_rest_bytes_max: int = 0,
    may_carry: bool = False,
) -> UploadPlan:
    return plan_upload(
        pieces,
        split_size_bytes=SPLIT,
        commit_ranges_max=ranges_max,
        set_object_streams_max=streams_max,
        small_rest_bytes_max=small_rest_bytes_max,
        may_carry=may_carry,
    )


@given(sizes_of_streams, st.integers(1, 20), st.integers(1, 20), st.integers(0, 2 * SPLIT), st.booleans())
def test_every_piece_is_assigned_exactly_once(
    sizes: list[int], ranges_max: int, streams_max: int, small_rest_bytes_max: int, may_carry: bool
) -> None:
    pieces = [piece(number * 2, size) for number, size in enumerate(sizes)]
    plan = plan_of(
        pieces,
        ranges_max=ranges_max,
        streams_max=streams_max,
        small_rest_bytes_max=small_rest_bytes_max,
        may_carry=may_carry,
    )
    placed = sorted([*plan.pieces, *plan.carried], key=lambda each: each.stream_id)
    assert placed == pieces
    for group in plan.groups:
        assert 1 <= len(group.stream_set) + len(group.stream_objects) <= ranges_max
        assert len(group.stream_set) <= streams_max
        ids = [each.stream_id for each in group.stream_set]
        assert ids == sorted(ids)
        if len(pieces) > 1:
            assert all(each.size_bytes >= SPLIT for each in group.stream_objects)
            assert sum(each.size_bytes >= SPLIT for each in group.stream_set) <= 1
    if plan.carried:
        assert may_carry
        carried_bytes = sum(each.size_bytes for each in plan.carried)
        assert carried_bytes <= small_rest_bytes_max
        assert carried_bytes * SMALL_REST_DIVISOR <= sum(sizes)
        assert plan.groups, "a carry never leaves nothing to upload"


@given(st.lists(st.integers(1, SPLIT - 1), min_size=2, max_size=200), st.integers(1, 60), st.integers(1, 60))
def test_a_wide_rest_is_divided_evenly_into_as_few_set_objects_as_possible(
    sizes: list[int], streams_max: int, ranges_max: int
) -> None:
    """Together they are the rest in its order; no object is much narrower than another."""
    pieces = [piece(number, size) for number, size in enumerate(sizes)]
    plan = plan_of(pieces, streams_max=streams_max, ranges_max=ranges_max)
    assert [each for group in plan.groups for each in group.stream_set] == pieces
    widths = [len(group.stream_set) for group in plan.groups]
    assert len(widths) == plan.object_count == -(-len(pieces) // min(streams_max, ranges_max))
    assert max(widths) - min(widths) <= 1
    assert max(widths) <= streams_max


def test_stream_objects_are_committed_with_the_first_set_object() -> None:
    sizes = [*[1] * 7, *[3 * SPLIT] * 4]
    plan = plan_of([piece(number, size) for number, size in enumerate(sizes)], streams_max=3, ranges_max=5)
    assert [(len(group.stream_set), len(group.stream_objects)) for group in plan.groups] == [
        (2, 3),
        (2, 1),
        (3, 0),
    ]


@given(st.integers(1, 10 * SPLIT))
def test_a_single_stream_becomes_one_stream_object(size: int) -> None:
    plan = plan_of([piece(7, size)])
    assert plan.object_count == 1
    assert not plan.groups[0].stream_set


@given(st.lists(st.integers(1, SPLIT - 1), min_size=2, max_size=1000), st.booleans())
def test_small_pieces_need_one_object(sizes: list[int], may_carry: bool) -> None:
    pieces = [piece(number, size) for number, size in enumerate(sizes)]
    plan = plan_of(pieces, small_rest_bytes_max=SPLIT, may_carry=may_carry)
    assert (plan.object_count, plan.carried) == (1, ())


@given(
    st.integers(SPLIT, 3 * SPLIT),
    st.integers(0, 5),
    st.lists(st.integers(1, 10), min_size=1, max_size=12),
    st.booleans(),
)
def test_a_small_rest_needs_no_own_object(
    smallest: int, others: int, rest: list[int], may_carry: bool
) -> None:
    """It is carried, or shares the object of the smallest run, which then is a stream set object."""
    sizes = [*rest, smallest, *(3 * SPLIT + number for number in range(others))]
    plan = plan_of(
        [piece(number, size) for number, size in enumerate(sizes)],
        small_rest_bytes_max=SPLIT,
        may_carry=may_carry,
    )
    assert plan.object_count == 1 + others
    if may_carry:
        assert [each.size_bytes for each in plan.carried] == rest
    else:
        assert [each.size_bytes for each in plan.groups[0].stream_set] == [*rest, smallest]


@given(sizes_of_streams, st.integers(1, 100), st.booleans())
def test_the_number_of_objects_follows_bytes(sizes: list[int], streams_max: int, may_carry: bool) -> None:
    """Beyond the streams of one set object, it also follows the streams."""
    pieces = [piece(number, size) for number, size in enumerate(sizes)]
    plan = plan_of(pieces, small_rest_bytes_max=SPLIT // 2, streams_max=streams_max, may_carry=may_carry)
    assert plan.object_count <= sum(sizes) // SPLIT + 1 + len(pieces) // streams_max


def test_a_commit_respects_the_controllers_limit_of_stream_objects() -> None:
    plan = plan_of([piece(number, SPLIT) for number in range(3 * COMMIT_OBJECTS_MAX + 1)])
    assert [len(group.stream_objects) for group in plan.groups] == [*[COMMIT_OBJECTS_MAX] * 3, 1]


def test_the_upload_of_a_full_block_is_divided_into_short_commits() -> None:
    defaults = StorageSettings()
    wide = [piece(number, 10) for number in range(2 * defaults.block_streams_max)]
    plan = plan_of(wide, ranges_max=defaults.commit_ranges_max, streams_max=defaults.set_object_streams_max)
    widths = [len(group.stream_set) for group in plan.groups]
    assert plan.pieces == wide
    assert max(widths) <= 1_000
    assert max(widths) - min(widths) <= 1
