"""Upload commits: the controller's checks before data in objects becomes visible."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ponor.controller.v1 import session_service_pb2 as wire
from ponor_controller.domains.objects import uploads
from ponor_controller.kernel.operation import Caller
from ponor_controller.shared_rules.object_commits import pack_ranges
from ponor_controller.shared_rules.stream_ownership import find_stream
from ponor_metadata.nouns.objects import STREAM_SET_OBJECTS
from ponor_metadata.nouns.streams import STREAM_OBJECTS, StreamRow
from ponor_metadata.tables.schema import View

from services.controller.tests.ledger import Ledger, UploadRange, upload_body


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture
def broker(ledger: Ledger) -> Caller:
    return ledger.register(0)


@pytest.fixture
def streams(ledger: Ledger, broker: Caller) -> list[int]:
    ids = ledger.create_streams(broker, 3)
    for stream in ids:
        ledger.open(broker, stream, 1)
    return ids


def test_one_commit_makes_objects_visible_and_advances_every_end(
    ledger: Ledger, broker: Caller, streams: list[int]
) -> None:
    one, two, three = streams
    shared, single = ledger.upload(
        broker, set_ranges=[(one, 1, 0, 5), (two, 1, 0, 7)], stream_objects=[(three, 1, 0, 100)]
    )
    assert [ledger.stream(each).end_offset for each in streams] == [5, 7, 100]
    row = ledger.set_object(shared)
    assert [(p.stream_id, p.start_offset, p.end_offset) for p in row.ranges.decoded] == [
        (one, 0, 5),
        (two, 0, 7),
    ]
    assert ledger.stream_object(single).end_offset == 100
    assert ledger.object(single).size_bytes == 500


def test_offsets_have_no_gap_and_no_overlap(ledger: Ledger, broker: Caller, streams: list[int]) -> None:
    one = streams[0]
    ledger.upload(broker, set_ranges=[(one, 1, 0, 5)])
    (unused,) = ledger.prepare(broker)
    for start, end in ((6, 9), (4, 9), (0, 5), (0, 3)):
        body = upload_body([unused], set_ranges=[(one, 1, start, end)])
        assert ledger.refusal(broker, commit_upload=body) == "OFFSET_MISMATCH", (start, end)
    ledger.do(broker, commit_upload=upload_body([unused], set_ranges=[(one, 1, 5, 9)]))
    assert ledger.stream(one).end_offset == 9


def test_stream_objects_of_one_stream_may_be_in_any_order(
    ledger: Ledger, broker: Caller, streams: list[int]
) -> None:
    one = streams[0]
    ledger.upload(broker, stream_objects=[(one, 1, 10, 20), (one, 1, 0, 10)])
    assert ledger.stream(one).end_offset == 20


def test_only_the_owner_commits_and_only_under_the_current_epoch(
    ledger: Ledger, broker: Caller, streams: list[int]
) -> None:
    one = streams[0]
    other = ledger.register(1)
    (theirs,) = ledger.prepare(other)
    (mine,) = ledger.prepare(broker)
    body = upload_body([theirs], set_ranges=[(one, 1, 0, 5)])
    assert ledger.refusal(other, commit_upload=body) == "STREAM_FENCED"
    for epoch in (0, 2):
        body = upload_body([mine], set_ranges=[(one, epoch, 0, 5)])
        assert ledger.refusal(broker, commit_upload=body) == "STREAM_FENCED"
    close = wire.CloseStreams(streams=[wire.StreamState(stream_id=one, stream_epoch=1)])
    ledger.do(broker, close_streams=close)
    body = upload_body([mine], set_ranges=[(one, 1, 0, 5)])
    assert ledger.refusal(broker, commit_upload=body) == "STREAM_NOT_OPENED"


def test_an_object_must_be_prepared_by_the_same_process_and_not_expired(
    ledger: Ledger, broker: Caller, streams: list[int]
) -> None:
    one = streams[0]
    body = upload_body([12345], set_ranges=[(one, 1, 0, 5)])
    assert ledger.refusal(broker, commit_upload=body) == "OBJECT_NOT_PREPARED"

    (late,) = ledger.prepare(broker, ttl_ms=100)
    ledger.now_ms += 101
    body = upload_body([late], set_ranges=[(one, 1, 0, 5)])
    assert ledger.refusal(broker, commit_upload=body) == "OBJECT_EXPIRED"

    (mine,) = ledger.prepare(broker)
    restarted = ledger.register(0)
    body = upload_body([mine], set_ranges=[(one, 1, 0, 5)])
    assert ledger.refusal(restarted, commit_upload=body) == "OBJECT_NOT_PREPARED"

    (fresh,) = ledger.upload(restarted, set_ranges=[(one, 1, 0, 5)])
    again = upload_body([fresh], set_ranges=[(one, 1, 5, 6)])
    assert ledger.refusal(restarted, commit_upload=again) == "OBJECT_NOT_PREPARED"


def test_a_lease_is_valid_through_its_last_millisecond(
    ledger: Ledger, broker: Caller, streams: list[int]
) -> None:
    (last,) = ledger.prepare(broker, ttl_ms=100)
    ledger.now_ms += 100
    ledger.do(broker, commit_upload=upload_body([last], set_ranges=[(streams[0], 1, 0, 5)]))


def test_ranges_of_deleted_streams_are_skipped_and_their_objects_destroyed(
    ledger: Ledger, broker: Caller, streams: list[int]
) -> None:
    one, two, three = streams
    ledger.do(broker, delete_streams=wire.DeleteStreams(stream_ids=[two, three]))
    shared, single = ledger.upload(
        broker, set_ranges=[(one, 1, 0, 5), (two, 1, 0, 7)], stream_objects=[(three, 1, 0, 100)]
    )
    pieces = list(ledger.set_object(shared).ranges.decoded)
    assert [piece.stream_id for piece in pieces] == [one]
    assert ledger.object(single).state.name == "DESTROYED"

    (orphan,) = ledger.upload(broker, set_ranges=[(two, 1, 7, 9)])
    assert ledger.object(orphan).state.name == "DESTROYED"


def test_malformed_uploads_are_refused(ledger: Ledger, broker: Caller, streams: list[int]) -> None:
    one, two, _ = streams
    a, b = ledger.prepare(broker, 2)
    unsorted = upload_body([a], set_ranges=[(two, 1, 0, 5), (one, 1, 0, 5)])
    empty = upload_body([a], set_ranges=[(one, 1, 0, 0)])
    negative = upload_body([a], stream_objects=[(one, 1, -1, 5)])
    same_id = upload_body([a, a], set_ranges=[(one, 1, 0, 5)], stream_objects=[(two, 1, 0, 5)])
    both_kinds = upload_body([a, b], set_ranges=[(one, 1, 0, 5)], stream_objects=[(one, 1, 5, 9)])
    no_size = upload_body([a], stream_objects=[(one, 1, 0, 5)])
    no_size.stream_objects[0].size_bytes = 0
    no_ranges = wire.CommitUpload(stream_set_object=wire.UploadedStreamSetObject(object_id=a, size_bytes=1))
    bodies = (unsorted, empty, negative, same_id, both_kinds, no_size, no_ranges, wire.CommitUpload())
    for body in bodies:
        assert ledger.refusal(broker, commit_upload=body) == "INVALID_REQUEST", body


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(
        st.lists(
            st.tuples(st.integers(0, 3), st.integers(1, 9), st.booleans()),
            min_size=1,
            max_size=4,
            unique_by=lambda s: s[0],
        ),
        min_size=1,
        max_size=8,
    )
)
def test_committed_objects_cover_every_stream_from_zero_to_its_end(
    steps: list[list[tuple[int, int, bool]]],
) -> None:
    ledger = Ledger()
    broker = ledger.register(0)
    streams = ledger.create_streams(broker, 4)
    for stream in streams:
        ledger.open(broker, stream, 1)
    ends = dict.fromkeys(streams, 0)
    for step in steps:
        in_set: list[UploadRange] = []
        alone: list[UploadRange] = []
        for which, count, is_alone in sorted(step):
            stream = streams[which]
            (alone if is_alone else in_set).append((stream, 1, ends[stream], ends[stream] + count))
            ends[stream] += count
        ledger.upload(broker, set_ranges=in_set, stream_objects=alone)
    covered: dict[int, list[tuple[int, int]]] = {stream: [] for stream in streams}
    for single in ledger.image[STREAM_OBJECTS]:
        covered[single.stream_id].append((single.start_offset, single.end_offset))
    for shared in ledger.image[STREAM_SET_OBJECTS]:
        for piece in shared.ranges.decoded:
            covered[piece.stream_id].append((piece.start_offset, piece.end_offset))
    for stream, end in ends.items():
        assert ledger.stream(stream).end_offset == end
        offset = 0
        for start, stop in sorted(covered[stream]):
            assert start == offset
            offset = stop
        assert offset == end


def test_each_stream_of_an_upload_is_looked_up_once_and_its_ranges_are_packed_once(
    ledger: Ledger, broker: Caller, streams: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up: list[int] = []
    packed: list[int] = []

    def counted_finder(view: View) -> Callable[[int], StreamRow | None]:
        def find(stream_id: int) -> StreamRow | None:
            looked_up.append(stream_id)
            return find_stream(view, stream_id)

        return find

    def counted_pack(ranges: Sequence[wire.UploadedRange]) -> bytes:
        packed.append(len(ranges))
        return pack_ranges(ranges)

    monkeypatch.setattr(uploads, "stream_finder", counted_finder)
    monkeypatch.setattr(uploads, "pack_ranges", counted_pack)
    one, two, three = streams
    ledger.upload(
        broker,
        set_ranges=[(one, 1, 0, 5), (two, 1, 0, 7)],
        stream_objects=[(three, 1, 0, 100), (three, 1, 100, 200)],
    )
    assert looked_up == [one, two, three]
    assert packed == [2]
