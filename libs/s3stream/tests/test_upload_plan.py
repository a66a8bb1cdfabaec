"""The split of un-uploaded data into objects, as properties."""

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
def test_every_piece_goes_to_exactly_one_place(
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
def test_a_wide_rest_is_as_few_set_objects_as_may_be_side_by_side(
    sizes: list[int], streams_max: int, ranges_max: int
) -> None:
    """One after the other they are the rest in its order; none is much narrower than another."""
    pieces = [piece(number, size) for number, size in enumerate(sizes)]
    plan = plan_of(pieces, streams_max=streams_max, ranges_max=ranges_max)
    assert [each for group in plan.groups for each in group.stream_set] == pieces
    widths = [len(group.stream_set) for group in plan.groups]
    assert len(widths) == plan.object_count == -(-len(pieces) // min(streams_max, ranges_max))
    assert max(widths) - min(widths) <= 1
    assert max(widths) <= streams_max


def test_stream_objects_travel_with_the_first_set_object() -> None:
    sizes = [*[1] * 7, *[3 * SPLIT] * 4]
    plan = plan_of([piece(number, size) for number, size in enumerate(sizes)], streams_max=3, ranges_max=5)
    assert [(len(group.stream_set), len(group.stream_objects)) for group in plan.groups] == [
        (2, 3),
        (2, 1),
        (3, 0),
    ]


@given(st.integers(1, 10 * SPLIT))
def test_a_lone_stream_is_one_stream_object(size: int) -> None:
    plan = plan_of([piece(7, size)])
    assert plan.object_count == 1
    assert not plan.groups[0].stream_set


@given(st.lists(st.integers(1, SPLIT - 1), min_size=2, max_size=1000), st.booleans())
def test_small_pieces_cost_one_object_however_many(sizes: list[int], may_carry: bool) -> None:
    pieces = [piece(number, size) for number, size in enumerate(sizes)]
    plan = plan_of(pieces, small_rest_bytes_max=SPLIT, may_carry=may_carry)
    assert (plan.object_count, plan.carried) == (1, ())


@given(
    st.integers(SPLIT, 3 * SPLIT),
    st.integers(0, 5),
    st.lists(st.integers(1, 10), min_size=1, max_size=12),
    st.booleans(),
)
def test_a_small_rest_never_costs_an_object(
    smallest: int, others: int, rest: list[int], may_carry: bool
) -> None:
    """Carried, or in the object of the smallest run, which is a stream set object then."""
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
def test_objects_follow_bytes(sizes: list[int], streams_max: int, may_carry: bool) -> None:
    """And beyond the streams of one set object, the streams."""
    pieces = [piece(number, size) for number, size in enumerate(sizes)]
    plan = plan_of(pieces, small_rest_bytes_max=SPLIT // 2, streams_max=streams_max, may_carry=may_carry)
    assert plan.object_count <= sum(sizes) // SPLIT + 1 + len(pieces) // streams_max


def test_a_commit_has_no_more_stream_objects_than_a_controller_takes() -> None:
    plan = plan_of([piece(number, SPLIT) for number in range(3 * COMMIT_OBJECTS_MAX + 1)])
    assert [len(group.stream_objects) for group in plan.groups] == [*[COMMIT_OBJECTS_MAX] * 3, 1]


def test_an_upload_of_a_full_block_is_several_commits_that_the_leader_checks_in_short_turns() -> None:
    defaults = StorageSettings()
    wide = [piece(number, 10) for number in range(2 * defaults.block_streams_max)]
    plan = plan_of(wide, ranges_max=defaults.commit_ranges_max, streams_max=defaults.set_object_streams_max)
    widths = [len(group.stream_set) for group in plan.groups]
    assert plan.pieces == wide
    assert max(widths) <= 1_000
    assert max(widths) - min(widths) <= 1
