"""Rules of apply for the life of streams: create, open, close, trim, delete, reclaim, and how their end advances."""

from __future__ import annotations

from itertools import chain
from sys import intern

from ponor.metadata.v1 import records_pb2 as records
from ponor_runtime.identity import NodeEpoch, NodeId, StreamEpoch, StreamId

from ponor_metadata import counters
from ponor_metadata.covered_ranges import MERGED_FROM_PARTS, merge_covered
from ponor_metadata.rows import NO_EPOCH, NO_NODE, ReclaimRow, StreamRow
from ponor_metadata.tables import STREAM_OBJECTS_OF
from ponor_metadata.view import View, is_current


def stream_created(view: View, record: records.StreamCreated) -> None:
    """Closed, empty, at epoch -1, without a range."""
    stream_id = StreamId(record.stream_id)
    assert stream_id not in view.streams, f"stream {stream_id} exists"
    counters.take(view, counters.STREAM, stream_id)
    view.streams.put(
        StreamRow(
            stream_id=stream_id,
            stream_epoch=StreamEpoch(-1),
            open=False,
            start_offset=0,
            end_offset=0,
            node_id=NO_NODE,
            node_epoch=NO_EPOCH,
            writers=(),
            tag_pairs=tuple(map(intern, chain.from_iterable(sorted(record.tags.items())))),
        )
    )


def stream_opened(view: View, record: records.StreamOpened) -> None:
    """A new range [end, end) of the new owner. A last range that is empty, or trimmed away, says nothing about any offset, and goes."""
    stream = _stream(view, record.stream_id)
    node_id = NodeId(record.node_id)
    assert not stream.open, f"stream {stream.stream_id} is open at epoch {stream.stream_epoch}"
    assert record.stream_epoch > stream.stream_epoch, f"stream {stream.stream_id}: the epoch does not rise"
    assert is_current(view, node_id, record.node_epoch), f"node {node_id} epoch {record.node_epoch} is stale"
    writers = stream.writers
    if writers and stream.end_offset <= max(writers[-1], stream.start_offset):
        writers = writers[:-3]
    if len(writers) >= 3 * MERGED_FROM_PARTS:
        writers = merge_covered(view, stream._replace(writers=writers))
    epoch = StreamEpoch(record.stream_epoch)
    view.streams.put(
        stream._replace(
            stream_epoch=epoch,
            open=True,
            node_id=node_id,
            node_epoch=NodeEpoch(record.node_epoch),
            writers=(*writers, epoch, node_id, stream.end_offset),
        )
    )


def stream_closed(view: View, record: records.StreamClosed) -> None:
    """The range is sealed where the stream ends."""
    stream = _stream(view, record.stream_id)
    assert stream.open, f"stream {stream.stream_id} is closed"
    assert record.stream_epoch == stream.stream_epoch, (
        f"stream {stream.stream_id} is at epoch {stream.stream_epoch}"
    )
    view.streams.put(stream._replace(open=False))


def stream_trimmed(view: View, record: records.StreamTrimmed) -> None:
    """The start rises, at most to the committed end. Ranges that lie wholly below go; objects do later."""
    stream = _stream(view, record.stream_id)
    start = record.start_offset
    assert stream.start_offset < start <= stream.end_offset, (
        f"stream {stream.stream_id}: trim to {start} is outside of ({stream.start_offset}, {stream.end_offset}]"
    )
    writers = stream.writers
    while len(writers) > 3 and writers[5] <= start:  # the second part begins there: the first ends
        writers = writers[3:]
    view.streams.put(stream._replace(start_offset=start, writers=writers))
    view.reclaims.put(ReclaimRow(stream.stream_id))


def stream_deleted(view: View, record: records.StreamDeleted) -> None:
    """The stream's row goes; its objects do later."""
    stream = _stream(view, record.stream_id)
    view.streams.delete(stream.stream_id)
    view.reclaims.put(ReclaimRow(stream.stream_id))


def streams_reclaimed(view: View, record: records.StreamsReclaimed) -> None:
    """Nothing dead is left of the streams. Of stream objects that is asserted; a stream set object may hold too many pieces to look at."""
    for stream_id in map(StreamId, record.stream_ids):
        assert stream_id in view.reclaims, f"stream {stream_id} was neither trimmed nor deleted"
        stream = view.streams.get(stream_id)
        oldest = next(iter(view.stream_objects.find(STREAM_OBJECTS_OF, stream_id)), None)
        assert oldest is None or (stream is not None and oldest.end_offset > stream.start_offset), (
            f"stream {stream_id}: object {oldest} is dead and was not destroyed"
        )
        view.reclaims.delete(stream_id)


def advance(view: View, stream_id: StreamId, start_offset: int, end_offset: int) -> StreamRow:
    """[start_offset, end_offset) of a stream was committed; answers the stream as it is now.

    Above the present end it must begin exactly there and the stream must be open: nobody commits for a closed stream. At or below the
    end it replaces what other objects hold (compaction), and the end stays.
    """
    stream = _stream(view, stream_id)
    assert start_offset < end_offset, f"stream {stream_id}: an empty commit at {start_offset}"
    if end_offset <= stream.end_offset:
        return stream
    assert stream.open, f"stream {stream_id} is closed; its end cannot advance"
    assert start_offset == stream.end_offset, (
        f"stream {stream_id}: a commit at {start_offset} leaves the end {stream.end_offset} behind or overlaps it"
    )
    advanced = StreamRow(*stream[:4], end_offset, *stream[5:])
    view.streams.amend(advanced)
    return advanced


def _stream(view: View, stream_id: int) -> StreamRow:
    stream = view.streams.get(StreamId(stream_id))
    assert stream is not None, f"stream {stream_id} does not exist"
    return stream
