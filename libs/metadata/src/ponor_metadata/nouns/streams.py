"""Streams, the ranges that each writer wrote, stream objects, and reclaims of trimmed and deleted streams."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from itertools import chain
from sys import intern
from typing import Final, NamedTuple

from ponor.metadata.v1 import records_pb2 as records
from ponor_runtime.identity import NodeEpoch, NodeId, ObjectId, StreamEpoch, StreamId

from ponor_metadata.nouns import counters
from ponor_metadata.nouns.nodes import NO_EPOCH, NO_NODE, NODES, is_current
from ponor_metadata.tables.columns import BOOLEANS, INTEGERS, TEXTS, Lists
from ponor_metadata.tables.found import last_at
from ponor_metadata.tables.schema import FIRST_FIELD, Index, Noun, Schema, Section, View

NO_STREAM: Final = StreamId(-1)
TOPIC_TAG: Final = "topic"
"""The tag that holds the id of a stream's topic, in lower-case hexadecimal."""
PARTITION_TAG: Final = "partition"
"""The tag that holds the number of a stream's partition, in decimal."""
JOINED_FROM_RANGES: Final = 4
"""`stream_opened` joins covered ranges only for streams with at least this many ranges.

Compiled code opens streams with fewer ranges (`plain_records_native`).
"""
LOOKUPS_MAX: Final = 32
"""Bound of the stream objects that one call of `_join_covered` reads. Ranges beyond it keep their node until
a later call."""


class RangeRow(NamedTuple):
    """[start_offset, end_offset) of a stream, written through the write-ahead log of `node_id` under
    `stream_epoch`.
    """

    stream_epoch: StreamEpoch
    node_id: NodeId
    start_offset: int
    end_offset: int


class StreamRow(NamedTuple):
    """A stream. Committed offsets are [start_offset, end_offset).

    `node_id` and `node_epoch` are those of the present or last owner (-1 before the first open). `writers` is
    a flat tuple with (stream epoch, node id, start offset) of each range. A range ends where the next one
    begins, the last one at `end_offset`. The first may begin below `start_offset`. A range whose offsets are
    all in stream objects may have `NO_NODE`, because only stream set objects are found by node; adjacent
    ranges with `NO_NODE` are joined. `tag_pairs` contains names and values alternately, sorted by name.
    """

    stream_id: StreamId
    stream_epoch: StreamEpoch
    open: bool
    start_offset: int
    end_offset: int
    node_id: NodeId
    node_epoch: NodeEpoch
    writers: tuple[int, ...]
    tag_pairs: tuple[str, ...]

    @property
    def ranges(self) -> tuple[RangeRow, ...]:
        """The ranges, contiguous and in the order of offsets."""
        writers = self.writers
        starts = writers[2::3]
        ends = (*starts[1:], self.end_offset)
        return tuple(
            RangeRow(StreamEpoch(epoch), NodeId(node_id), start, end)
            for epoch, node_id, start, end in zip(writers[::3], writers[1::3], starts, ends, strict=False)
        )

    @property
    def tags(self) -> Mapping[str, str]:
        """Tag values by name."""
        return dict(zip(self.tag_pairs[::2], self.tag_pairs[1::2], strict=True))

    def range_at(self, offset: int) -> RangeRow | None:
        """Return the range that contains the offset, or None."""
        i = self._range_index(offset)
        if i < 0:
            return None
        writers = self.writers
        end = writers[3 * i + 5] if 3 * i + 3 < len(writers) else self.end_offset
        return RangeRow(StreamEpoch(writers[3 * i]), NodeId(writers[3 * i + 1]), writers[3 * i + 2], end)

    def writer_of(self, offset: int) -> NodeId | None:
        """Return the node whose write-ahead log the offset went through; None if no range contains the
        offset.
        """
        i = self._range_index(offset)
        return None if i < 0 else NodeId(self.writers[3 * i + 1])

    def _range_index(self, offset: int) -> int:
        """Return the position of the range that contains the offset, by binary search; -1 if there is
        none.
        """
        writers = self.writers
        if not writers or offset >= self.end_offset:
            return -1
        if writers[-1] <= offset:  # nearly every search is for the last range
            return len(writers) // 3 - 1
        return bisect_right(range(len(writers) // 3), offset, key=lambda i: writers[3 * i + 2]) - 1


class StreamObjectRow(NamedTuple):
    """A stream object: it contains [start_offset, end_offset) of one stream."""

    object_id: ObjectId
    stream_id: StreamId
    start_offset: int
    end_offset: int


class ReclaimRow(NamedTuple):
    """A trimmed or deleted stream. Objects that contain pieces of it but no live data may still have to be
    destroyed.
    """

    stream_id: StreamId


def _open_at(row: StreamRow) -> tuple[NodeId, ...]:
    return (row.node_id,) if row.open else ()


def _topic_tag(row: StreamRow) -> tuple[str, ...]:
    pairs = row.tag_pairs
    return tuple(pairs[i + 1] for i in range(0, len(pairs), 2) if pairs[i] == TOPIC_TAG)


def _partition_tags(row: StreamRow) -> tuple[tuple[str, str], ...]:
    pairs = row.tag_pairs
    topic = partition = None
    for i in range(0, len(pairs), 2):
        if pairs[i] == TOPIC_TAG:
            topic = pairs[i + 1]
        elif pairs[i] == PARTITION_TAG:
            partition = pairs[i + 1]
    return () if topic is None or partition is None else ((topic, partition),)


STREAMS_OPEN_AT: Final[Index[NodeId, StreamRow]] = Index("open_at", _open_at, lambda row: row.stream_id)
"""Open streams of a node, by stream id."""
STREAMS_OF_TOPIC: Final[Index[str, StreamRow]] = Index("of_topic", _topic_tag, lambda row: row.stream_id)
"""Streams by their tag `topic`, in the order of stream ids."""
STREAMS_OF_PARTITION: Final[Index[tuple[str, str], StreamRow]] = Index(
    "of_partition", _partition_tags, lambda row: row.stream_id
)
"""Streams by their tags `topic` and `partition`, in the order of stream ids."""
STREAM_OBJECTS_OF: Final[Index[StreamId, StreamObjectRow]] = Index(
    "of_stream", lambda row: (row.stream_id,), lambda row: row.start_offset
)
"""A stream's objects by start offset."""

STREAMS: Final[Schema[StreamId, StreamRow]] = Schema(
    "streams",
    StreamRow,
    FIRST_FIELD,
    (
        Section(
            6,
            (
                INTEGERS,
                INTEGERS,
                BOOLEANS,
                *[INTEGERS] * 4,
                Lists(INTEGERS, INTEGERS, INTEGERS),
                Lists(TEXTS, TEXTS),
            ),
            weighed=(7, 8),
        ),
    ),
    (STREAMS_OPEN_AT, STREAMS_OF_TOPIC, STREAMS_OF_PARTITION),
)
STREAM_OBJECTS: Final[Schema[ObjectId, StreamObjectRow]] = Schema(
    "stream_objects", StreamObjectRow, FIRST_FIELD, (Section(9, (INTEGERS,) * 4),), (STREAM_OBJECTS_OF,)
)
RECLAIMS: Final[Schema[StreamId, ReclaimRow]] = Schema(
    "reclaims", ReclaimRow, FIRST_FIELD, (Section(21, (INTEGERS,)),)
)


def stream_created(view: View, record: records.StreamCreated) -> None:
    """Create a stream: closed, empty, at epoch -1, without a range."""
    stream_id = StreamId(record.stream_id)
    assert stream_id not in view[STREAMS], f"stream {stream_id} already exists"
    counters.take(view, counters.STREAM, stream_id)
    view[STREAMS].put(
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
    """Open a stream at a new owner and append the empty range [end, end). If the last range before it has no
    live offsets, it is dropped.
    """
    stream = _stream(view, record.stream_id)
    node_id = NodeId(record.node_id)
    assert not stream.open, f"stream {stream.stream_id} is open at epoch {stream.stream_epoch}"
    assert record.stream_epoch > stream.stream_epoch, f"stream {stream.stream_id}: the epoch does not rise"
    assert is_current(view, node_id, record.node_epoch), f"node {node_id} epoch {record.node_epoch} is stale"
    writers = stream.writers
    if writers and stream.end_offset <= max(writers[-1], stream.start_offset):
        writers = writers[:-3]
    if len(writers) >= 3 * JOINED_FROM_RANGES:
        writers = _join_covered(view, stream._replace(writers=writers))
    epoch = StreamEpoch(record.stream_epoch)
    view[STREAMS].put(
        stream._replace(
            stream_epoch=epoch,
            open=True,
            node_id=node_id,
            node_epoch=NodeEpoch(record.node_epoch),
            writers=(*writers, epoch, node_id, stream.end_offset),
        )
    )


def stream_closed(view: View, record: records.StreamClosed) -> None:
    """Close a stream. Its last range ends at the stream's end."""
    stream = _stream(view, record.stream_id)
    assert stream.open, f"stream {stream.stream_id} is closed"
    assert record.stream_epoch == stream.stream_epoch, (
        f"stream {stream.stream_id} is at epoch {stream.stream_epoch}, not {record.stream_epoch}"
    )
    view[STREAMS].put(stream._replace(open=False))


def stream_trimmed(view: View, record: records.StreamTrimmed) -> None:
    """Raise the start offset, at most to the committed end, and drop ranges below it. Objects are destroyed
    later.
    """
    stream = _stream(view, record.stream_id)
    start = record.start_offset
    assert stream.start_offset < start <= stream.end_offset, (
        f"stream {stream.stream_id}: trim to {start} is outside of ({stream.start_offset},"
        f" {stream.end_offset}]"
    )
    writers = stream.writers
    while (
        len(writers) > 3 and writers[5] <= start
    ):  # the second range begins at writers[5]: the first ends there
        writers = writers[3:]
    view[STREAMS].put(stream._replace(start_offset=start, writers=writers))
    view[RECLAIMS].put(ReclaimRow(stream.stream_id))


def stream_deleted(view: View, record: records.StreamDeleted) -> None:
    """Delete a stream. Its objects are destroyed later."""
    stream = _stream(view, record.stream_id)
    view[STREAMS].delete(stream.stream_id)
    view[RECLAIMS].put(ReclaimRow(stream.stream_id))


def streams_reclaimed(view: View, record: records.StreamsReclaimed) -> None:
    """End the reclaims of streams whose dead objects are all destroyed.

    Asserted for stream objects only, because a stream set object may have too many pieces for one step.
    """
    for stream_id in map(StreamId, record.stream_ids):
        assert stream_id in view[RECLAIMS], f"stream {stream_id} was neither trimmed nor deleted"
        stream = view[STREAMS].get(stream_id)
        oldest = next(iter(view[STREAM_OBJECTS].find(STREAM_OBJECTS_OF, stream_id)), None)
        assert oldest is None or (stream is not None and oldest.end_offset > stream.start_offset), (
            f"stream {stream_id}: object {oldest} has no live data and was not destroyed"
        )
        view[RECLAIMS].delete(stream_id)


def advance(view: View, stream_id: StreamId, start_offset: int, end_offset: int) -> StreamRow:
    """Record a commit of [start_offset, end_offset) and return the stream's new row.

    A commit that ends above the present end must begin exactly at the end, and the stream must be open. A
    commit that ends at or below the end replaces other objects (compaction) and does not change the end.
    """
    stream = _stream(view, stream_id)
    assert start_offset < end_offset, f"stream {stream_id}: an empty commit at {start_offset}"
    if end_offset <= stream.end_offset:
        return stream
    assert stream.open, f"stream {stream_id} is closed; its end cannot advance"
    assert start_offset == stream.end_offset, (
        f"stream {stream_id}: a commit at {start_offset} does not begin at the end {stream.end_offset}"
    )
    advanced = StreamRow(*stream[:4], end_offset, *stream[5:])
    view[STREAMS].amend(advanced)
    return advanced


def _stream(view: View, stream_id: int) -> StreamRow:
    stream = view[STREAMS].get(StreamId(stream_id))
    assert stream is not None, f"stream {stream_id} does not exist"
    return stream


def _join_covered(view: View, stream: StreamRow) -> tuple[int, ...]:
    """Return the stream's writers, with adjacent ranges joined that stream objects cover, as far as
    `LOOKUPS_MAX` allows.

    The node of a range is needed only to find stream set objects. Stream objects are found by stream id, and
    compaction never moves their data into stream set objects. Without joining, every move of a partition
    would add a range that stays until it is trimmed.
    """
    lookups = LOOKUPS_MAX
    joined: list[int] = []
    for part in stream.ranges:
        covered = part.node_id == NO_NODE
        if not covered and lookups > 0:
            covered, lookups = _is_covered(view, stream, part, lookups)
        if covered and joined and joined[-2] == NO_NODE:
            joined[-3] = part.stream_epoch
        else:
            joined += (part.stream_epoch, NO_NODE if covered else part.node_id, part.start_offset)
    return tuple(joined)


def _is_covered(view: View, stream: StreamRow, part: RangeRow, lookups: int) -> tuple[bool, int]:
    """Return whether stream objects contain all live offsets of the range, and the number of lookups left."""
    found = view[STREAM_OBJECTS].find(STREAM_OBJECTS_OF, stream.stream_id)
    at = max(part.start_offset, stream.start_offset)
    while at < part.end_offset and lookups > 0:
        lookups -= 1
        row = last_at(found, STREAM_OBJECTS_OF, at)
        if row is None or row.end_offset <= at:
            return False, lookups
        at = row.end_offset
    return at >= part.end_offset, lookups


def _check(view: View) -> None:
    counters.check_below(view, counters.STREAM, (row.stream_id for row in view[STREAMS]))
    for stream in view[STREAMS]:
        name = f"stream {stream.stream_id}"
        assert 0 <= stream.start_offset <= stream.end_offset, f"{name}: the offset range is invalid"
        if stream.open:
            owner = view[NODES].get(stream.node_id)
            assert owner is not None, f"{name}: open at an unknown node"
            assert stream.node_epoch <= owner.node_epoch, (
                f"{name}: open at a node epoch that was never assigned"
            )
            assert stream.ranges[-1].node_id == stream.node_id, f"{name}: another node wrote the last range"
            assert stream.ranges[-1].stream_epoch == stream.stream_epoch, (
                f"{name}: the last range has an older epoch"
            )
        if not stream.ranges:
            assert stream.stream_epoch == -1, f"{name}: was opened, but has no range"
            assert stream.end_offset == 0, f"{name}: has data, but no range"
            assert stream.node_id == NO_NODE, f"{name}: has an owner, but no range"
        _check_ranges(stream)
    for row in view[STREAM_OBJECTS]:
        assert row.stream_id in view[STREAMS] or row.stream_id in view[RECLAIMS], (
            f"object {row.object_id}: its stream is deleted and does not wait for a reclaim"
        )


def _check_ranges(stream: StreamRow) -> None:
    name = f"stream {stream.stream_id}"
    for earlier, later in zip(stream.ranges, stream.ranges[1:], strict=False):
        assert earlier.end_offset == later.start_offset, (
            f"{name}: ranges are not contiguous at {later.start_offset}"
        )
        assert earlier.start_offset < earlier.end_offset, f"{name}: a range before the last one is empty"
        assert earlier.stream_epoch < later.stream_epoch, f"{name}: epochs of ranges do not rise"
        assert earlier.end_offset > stream.start_offset, f"{name}: a range lies completely below the start"
    if stream.ranges:
        assert stream.ranges[0].start_offset <= stream.start_offset, (
            f"{name}: the ranges begin above the start of the stream"
        )
        assert stream.ranges[-1].end_offset == stream.end_offset, (
            f"{name}: the ranges do not end at the end of the stream"
        )


NOUN: Final = Noun(
    schemas=(STREAMS, STREAM_OBJECTS, RECLAIMS),
    rules=(
        stream_created,
        stream_opened,
        stream_closed,
        stream_trimmed,
        stream_deleted,
        streams_reclaimed,
    ),
    check=_check,
)
