"""Operations on streams: which ones the controller allows, in each state."""

from __future__ import annotations

import pytest
from ponor.controller.v1 import session_service_pb2 as wire
from ponor.metadata.v1.records_pb2 import NODE_ROLE_GC as GC
from ponor_metadata.nouns.streams import STREAMS

from services.controller.tests.ledger import Ledger


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


def _close(stream_id: int, epoch: int, end: int) -> wire.CloseStreams:
    return wire.CloseStreams(
        streams=[wire.StreamState(stream_id=stream_id, stream_epoch=epoch, end_offset=end)]
    )


def _open(stream_id: int, epoch: int) -> wire.OpenStreams:
    return wire.OpenStreams(streams=[wire.OpenStream(stream_id=stream_id, stream_epoch=epoch)])


def _trim(stream_id: int, epoch: int, start: int) -> wire.TrimStreams:
    return wire.TrimStreams(
        streams=[wire.StreamState(stream_id=stream_id, stream_epoch=epoch, start_offset=start)]
    )


def test_a_stream_is_created_opened_written_closed_and_opened_elsewhere(ledger: Ledger) -> None:
    first, second = ledger.register(0), ledger.register(1)
    (stream,) = ledger.create_streams(first)
    row = ledger.stream(stream)
    assert (row.open, row.stream_epoch, row.end_offset) == (False, -1, 0)

    state = ledger.open(first, stream, 3)
    assert (state.start_offset, state.end_offset) == (0, 0)
    ledger.upload(first, set_ranges=[(stream, 3, 0, 10)])

    # The second broker may not open it while it is open, at any epoch.
    assert ledger.refusal(second, open_streams=_open(stream, 4)) == "STREAM_NOT_CLOSED"
    assert ledger.refusal(second, open_streams=_open(stream, 3)) == "STREAM_FENCED"

    # The first closes it, only at the end that the controller has.
    assert ledger.refusal(first, close_streams=_close(stream, 3, 11)) == "OFFSET_MISMATCH"
    ledger.do(first, close_streams=_close(stream, 3, 10))
    assert ledger.open(second, stream, 4).end_offset == 10

    # All operations of the old owner are fenced.
    assert ledger.refusal(first, close_streams=_close(stream, 3, 10)) == "STREAM_FENCED"
    assert ledger.refusal(first, trim_streams=_trim(stream, 3, 5)) == "STREAM_FENCED"
    assert ledger.refusal(first, trim_streams=_trim(stream, 4, 5)) == "STREAM_FENCED"
    ranges = ledger.stream(stream).ranges
    assert [(each.node_id, each.start_offset, each.end_offset) for each in ranges] == [
        (first.node_id, 0, 10),
        (second.node_id, 10, 10),
    ]


def test_an_open_is_repeated_only_by_the_same_process_at_the_same_epoch(ledger: Ledger) -> None:
    broker = ledger.register(0)
    (stream,) = ledger.create_streams(broker)
    ledger.open(broker, stream, 5)
    assert ledger.decide(broker, open_streams=_open(stream, 5)) == []

    restarted = ledger.register(0)
    assert restarted.node_epoch == broker.node_epoch + 1
    assert ledger.refusal(restarted, open_streams=_open(stream, 5)) == "STREAM_FENCED"
    assert ledger.refusal(restarted, open_streams=_open(stream, 6)) == "STREAM_NOT_CLOSED"


def test_a_restarted_broker_recovers_under_the_old_epoch_closes_and_reopens(
    ledger: Ledger,
) -> None:
    broker = ledger.register(0)
    (stream,) = ledger.create_streams(broker)
    ledger.open(broker, stream, 5)
    ledger.upload(broker, set_ranges=[(stream, 5, 0, 10)])

    restarted = ledger.register(0)
    assert ledger.stream(stream).open, "the stream waits for the recovery"
    ledger.upload(restarted, set_ranges=[(stream, 5, 10, 25)])
    ledger.do(restarted, close_streams=_close(stream, 5, 25))
    assert ledger.open(restarted, stream, 6).end_offset == 25
    assert ledger.stream(stream).node_epoch == restarted.node_epoch


def test_a_repeated_close_succeeds(
    ledger: Ledger,
) -> None:
    broker, other = ledger.register(0), ledger.register(1)
    (stream,) = ledger.create_streams(broker)
    ledger.open(broker, stream, 1)
    ledger.do(broker, close_streams=_close(stream, 1, 0))
    assert ledger.decide(broker, close_streams=_close(stream, 1, 0)) == []
    assert ledger.refusal(broker, close_streams=_close(stream, 2, 0)) == "STREAM_FENCED"
    assert ledger.refusal(other, close_streams=_close(stream, 1, 0)) == "STREAM_NOT_OPENED"


def test_opens_and_closes_are_atomic(ledger: Ledger) -> None:
    broker, other = ledger.register(0), ledger.register(1)
    mine, theirs = ledger.create_streams(broker, 2)
    ledger.open(other, theirs, 1)
    both = wire.OpenStreams(
        streams=[
            wire.OpenStream(stream_id=mine, stream_epoch=2),
            wire.OpenStream(stream_id=theirs, stream_epoch=2),
        ]
    )
    assert ledger.refusal(broker, open_streams=both) == "STREAM_NOT_CLOSED"
    assert not ledger.stream(mine).open


def test_a_trim_moves_the_start_and_destroys_objects_below_it(ledger: Ledger) -> None:
    broker = ledger.register(0)
    one, two = ledger.create_streams(broker, 2)
    ledger.open(broker, one, 1)
    ledger.open(broker, two, 1)
    (shared,) = ledger.upload(broker, set_ranges=[(one, 1, 0, 10), (two, 1, 0, 10)])
    (single,) = ledger.upload(broker, stream_objects=[(one, 1, 10, 30)])

    ledger.do(broker, trim_streams=_trim(one, 1, 29))
    ledger.reclaim()
    assert ledger.stream(one).start_offset == 29
    assert ledger.object(single).state.name == "COMMITTED"
    assert ledger.object(shared).state.name == "COMMITTED", "stream two still needs it"

    ledger.do(broker, trim_streams=_trim(one, 1, 30))
    assert ledger.object(single).state.name == "COMMITTED", "the trim commits the new start alone"
    ledger.reclaim()
    assert ledger.object(single).state.name == "DESTROYED"
    ledger.do(broker, trim_streams=_trim(two, 1, 10))
    ledger.reclaim()
    assert ledger.object(shared).state.name == "DESTROYED"

    assert ledger.decide(broker, trim_streams=_trim(one, 1, 30)) == []
    assert ledger.decide(broker, trim_streams=_trim(one, 1, 7)) == []
    assert ledger.refusal(broker, trim_streams=_trim(one, 1, 31)) == "OFFSET_MISMATCH"


def test_streams_are_deleted_by_their_owner_or_when_closed(ledger: Ledger) -> None:
    broker, other = ledger.register(0), ledger.register(1)
    opened, closed = ledger.create_streams(broker, 2)
    ledger.open(broker, opened, 1)
    (single,) = ledger.upload(broker, stream_objects=[(opened, 1, 0, 30)])

    assert ledger.refusal(other, delete_streams=wire.DeleteStreams(stream_ids=[opened])) == "STREAM_FENCED"
    ledger.do(other, delete_streams=wire.DeleteStreams(stream_ids=[closed]))
    ledger.do(broker, delete_streams=wire.DeleteStreams(stream_ids=[opened]))
    assert len(ledger.image[STREAMS]) == 0
    ledger.reclaim()
    assert ledger.object(single).state.name == "DESTROYED"
    assert ledger.decide(broker, delete_streams=wire.DeleteStreams(stream_ids=[opened, closed])) == []
    assert ledger.refusal(broker, close_streams=_close(opened, 1, 30)) == "STREAM_NOT_FOUND"


def test_invalid_requests_are_refused(ledger: Ledger) -> None:
    broker, gc = ledger.register(0), ledger.register(1000, role=GC)
    (stream,) = ledger.create_streams(broker)
    assert ledger.refusal(broker, create_streams=wire.CreateStreams()) == "INVALID_REQUEST"
    assert ledger.refusal(broker, open_streams=_open(stream, 1 << 31)) == "INVALID_REQUEST"
    assert ledger.refusal(broker, open_streams=_open(stream, -1)) == "INVALID_REQUEST"
    assert ledger.refusal(broker, open_streams=_open(stream + 1, 1)) == "STREAM_NOT_FOUND"
    assert ledger.refusal(broker) == "INVALID_REQUEST"
    twice = wire.DeleteStreams(stream_ids=[stream, stream])
    assert ledger.refusal(broker, delete_streams=twice) == "INVALID_REQUEST"
    many = wire.CreateStreams(streams=[wire.StreamTags()] * 1_001)
    assert ledger.refusal(broker, create_streams=many) == "INVALID_REQUEST"
    long = wire.CreateStreams(streams=[wire.StreamTags(tags={"kind": "x" * 300})])
    assert ledger.refusal(broker, create_streams=long) == "INVALID_REQUEST"
    assert ledger.refusal(gc, delete_streams=wire.DeleteStreams(stream_ids=[stream])) == "INVALID_REQUEST"
