"""Streams: create, open, close, trim, delete.

What lives here: who may own a stream and when. A stream has one owner at a time, its epoch only rises, and nobody closes it but its owner, or whoever recovers the
write-ahead log that its data went through. With a log in a file that is the owner's node, which is still the owner after it registered again, under the old stream epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ponor.common.v1 import error_pb2
from ponor.controller.v1 import session_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_metadata.nouns import counters
from ponor_metadata.nouns.cluster import epoch_floor
from ponor_metadata.nouns.streams import STREAMS, STREAMS_OF_TOPIC, StreamRow
from ponor_metadata.nouns.topics import DELETIONS, parse_topic_id
from ponor_metadata.tables.schema import View
from ponor_runtime.identity import StreamId

from ponor_controller.domains.streams.wals import Writer, writer
from ponor_controller.kernel.decisions import (
    Decision,
    Situation,
    refuse,
    require_count,
    require_distinct,
    require_role,
)
from ponor_controller.shared_rules.partition_rights import require_stream_rights, require_tagged_rights

TAGS_MAX = 16
TAG_BYTES_MAX = 256
DESTROYED_PER_RECORD_MAX = 5_000
STREAM_EPOCH_MAX = (1 << 31) - 1
"""Stream epochs are leader epochs, and those are int32 in Kafka's protocol."""


def create_streams(body: wire.CreateStreams, situation: Situation) -> Decision:
    """New streams: closed, empty, at epoch -1."""
    require_role(situation, records_pb2.NODE_ROLE_BROKER)
    require_count(len(body.streams), situation.settings.streams_per_operation_max, "streams")
    for stream in body.streams:
        _check_tags(stream)
        require_tagged_rights(stream.tags, situation)
    decision = Decision()
    first = counters.next_value(situation.view, counters.STREAM)
    ids = list(range(first, first + len(body.streams)))
    for stream_id, stream in zip(ids, body.streams, strict=True):
        created = records_pb2.StreamCreated(stream_id=stream_id, tags=stream.tags)
        decision.records.append(records_pb2.Record(stream_created=created))
    decision.result = wire.OperationResult(streams_created=wire.StreamsCreated(stream_ids=ids))
    return decision


def open_streams(body: wire.OpenStreams, situation: Situation) -> Decision:
    """Become the owner: the stream must be closed and the epoch new, and of a partition's streams the caller must be its leader at that epoch.

    An exact repeat is a success.
    """
    require_role(situation, records_pb2.NODE_ROLE_BROKER)
    require_count(len(body.streams), situation.settings.streams_per_operation_max, "streams")
    require_distinct([stream.stream_id for stream in body.streams], "stream")
    caller = situation.caller
    writer(
        situation
    )  # a stream that is open has a log through which its data goes, or nobody could ever close it
    decision = Decision()
    opened = wire.StreamsOpened()
    for wanted in body.streams:
        row = require_stream(situation, wanted.stream_id)
        if not _is_repeated_open(row, wanted, situation):
            _check_open(row, wanted, situation)
            require_stream_rights(row.tag_pairs, situation, wanted.stream_epoch)
            record = records_pb2.StreamOpened(
                stream_id=wanted.stream_id,
                stream_epoch=wanted.stream_epoch,
                node_id=caller.node_id,
                node_epoch=caller.node_epoch,
            )
            decision.records.append(records_pb2.Record(stream_opened=record))
        opened.streams.add(
            stream_id=wanted.stream_id,
            stream_epoch=wanted.stream_epoch,
            start_offset=row.start_offset,
            end_offset=row.end_offset,
        )
    decision.result = wire.OperationResult(streams_opened=opened)
    return decision


def close_streams(body: wire.CloseStreams, situation: Situation) -> Decision:
    """Give streams up, at exactly the end offset that the controller knows."""
    require_role(situation, records_pb2.NODE_ROLE_BROKER)
    require_count(len(body.streams), situation.settings.streams_per_operation_max, "streams")
    require_distinct([stream.stream_id for stream in body.streams], "stream")
    recovered = body.recovered if body.HasField("recovered") else None
    acting = writer(situation, recovered)
    decision = Decision()
    for wanted in body.streams:
        if recovered is not None and find_stream(situation.view, wanted.stream_id) is None:
            continue  # its topic was deleted while the log was recovered
        row = require_stream(situation, wanted.stream_id)
        repeated = not row.open and acting.holds(row) and row.stream_epoch == wanted.stream_epoch
        if not repeated:
            require_owner(row, wanted.stream_epoch, acting)
        if wanted.end_offset != row.end_offset:
            raise refuse(
                error_pb2.ERROR_CODE_OFFSET_MISMATCH,
                f"stream {row.stream_id} ends at {row.end_offset}, not at {wanted.end_offset}; upload what is missing before closing",
            )
        if not repeated:
            record = records_pb2.StreamClosed(stream_id=wanted.stream_id, stream_epoch=wanted.stream_epoch)
            decision.records.append(records_pb2.Record(stream_closed=record))
    return decision


def trim_streams(body: wire.TrimStreams, situation: Situation) -> Decision:
    """Drop the oldest data. Objects that hold nothing else are destroyed by the duty that reclaims."""
    require_role(situation, records_pb2.NODE_ROLE_BROKER)
    require_count(len(body.streams), situation.settings.streams_per_operation_max, "streams")
    require_distinct([stream.stream_id for stream in body.streams], "stream")
    acting = writer(situation)
    decision = Decision()
    for wanted in body.streams:
        row = require_stream(situation, wanted.stream_id)
        require_owner(row, wanted.stream_epoch, acting)
        if wanted.start_offset <= row.start_offset:
            continue
        if wanted.start_offset > row.end_offset:
            raise refuse(
                error_pb2.ERROR_CODE_OFFSET_MISMATCH,
                f"stream {row.stream_id} ends at {row.end_offset} and cannot begin at {wanted.start_offset}; upload first",
            )
        record = records_pb2.StreamTrimmed(stream_id=row.stream_id, start_offset=wanted.start_offset)
        decision.records.append(records_pb2.Record(stream_trimmed=record))
    return decision


def delete_streams(body: wire.DeleteStreams, situation: Situation) -> Decision:
    """Delete streams of the caller, or closed ones, but not those of a partition that another broker leads. Absent ones are deleted already.

    Their objects are destroyed by the duty that reclaims.
    """
    require_role(situation, records_pb2.NODE_ROLE_BROKER)
    require_count(len(body.stream_ids), situation.settings.streams_per_operation_max, "streams")
    require_distinct(body.stream_ids, "stream")
    rows = [
        row for row in map(situation.view[STREAMS].get, map(StreamId, body.stream_ids)) if row is not None
    ]
    for row in rows:
        if row.open and row.node_id != situation.caller.node_id:
            raise refuse(
                error_pb2.ERROR_CODE_STREAM_FENCED,
                f"stream {row.stream_id} is open at node {row.node_id}; only that node deletes it",
            )
        require_stream_rights(row.tag_pairs, situation)
    deleted = [records_pb2.StreamDeleted(stream_id=row.stream_id) for row in rows]
    return Decision([records_pb2.Record(stream_deleted=each) for each in deleted])


def destructions(object_ids: Sequence[int], now_ms: int) -> list[records_pb2.Record]:
    """The records that destroy objects, each small enough to share a batch with others."""
    records: list[records_pb2.Record] = []
    for position in range(0, len(object_ids), DESTROYED_PER_RECORD_MAX):
        some = object_ids[position : position + DESTROYED_PER_RECORD_MAX]
        destroyed = records_pb2.ObjectsDestroyed(object_ids=some, destroyed_at_ms=now_ms)
        records.append(records_pb2.Record(objects_destroyed=destroyed))
    return records


def find_stream(view: View, stream_id: int) -> StreamRow | None:
    """The stream's row; None if there is none, or if its topic is being deleted: a deleted topic's streams are gone for everybody before their rows are."""
    row = view[STREAMS].get(StreamId(stream_id))
    if row is None or not len(view[DELETIONS]):
        return row
    return None if any(_is_deleted(view, named) for named in STREAMS_OF_TOPIC.keys(row)) else row


def stream_finder(view: View) -> Callable[[int], StreamRow | None]:
    """`find_stream` for an operation on many streams: whether any topic is being deleted is asked once."""
    return partial(find_stream, view) if len(view[DELETIONS]) else view[STREAMS].get  # type: ignore[return-value]  # ids are ints


def _is_deleted(view: View, named: str) -> bool:
    topic_id = parse_topic_id(named)
    return topic_id is not None and topic_id in view[DELETIONS]


def require_stream(situation: Situation, stream_id: int) -> StreamRow:
    """The stream's row.

    Raises:
        OperationError: STREAM_NOT_FOUND.
    """
    row = find_stream(situation.view, stream_id)
    if row is None:
        raise refuse(
            error_pb2.ERROR_CODE_STREAM_NOT_FOUND,
            f"there is no stream {stream_id}; it was deleted or never made",
        )
    return row


def require_owner(row: StreamRow, stream_epoch: int, acting: Writer) -> None:
    """Whoever the caller acts for must hold the stream open at exactly this epoch.

    Raises:
        OperationError: STREAM_FENCED or STREAM_NOT_OPENED.
    """
    if row.stream_epoch != stream_epoch or (row.open and not acting.holds(row)):
        raise refuse(
            error_pb2.ERROR_CODE_STREAM_FENCED,
            f"stream {row.stream_id} is at epoch {row.stream_epoch} of node {row.node_id} epoch {row.node_epoch}, "
            f"not at epoch {stream_epoch} of {acting}; stop using it",
        )
    if not row.open:
        raise refuse(
            error_pb2.ERROR_CODE_STREAM_NOT_OPENED,
            f"stream {row.stream_id} is closed at epoch {row.stream_epoch}; open it first",
        )


def _is_repeated_open(row: StreamRow, wanted: wire.OpenStream, situation: Situation) -> bool:
    held = (row.open, row.node_id, row.node_epoch, row.stream_epoch)
    return held == (True, situation.caller.node_id, situation.caller.node_epoch, wanted.stream_epoch)


def _check_open(row: StreamRow, wanted: wire.OpenStream, situation: Situation) -> None:
    if not 0 <= wanted.stream_epoch <= STREAM_EPOCH_MAX:
        raise refuse(
            error_pb2.ERROR_CODE_INVALID_REQUEST,
            f"stream epoch {wanted.stream_epoch} is not within 0..{STREAM_EPOCH_MAX}",
        )
    if wanted.stream_epoch <= row.stream_epoch:
        raise refuse(
            error_pb2.ERROR_CODE_STREAM_FENCED,
            f"stream {row.stream_id} is at epoch {row.stream_epoch} of node {row.node_id} already; "
            f"epoch {wanted.stream_epoch} is stale",
        )
    floor = epoch_floor(situation.view)
    if wanted.stream_epoch < floor:
        raise refuse(
            error_pb2.ERROR_CODE_STREAM_FENCED,
            f"stream {row.stream_id}: epoch {wanted.stream_epoch} is of before the last forced recovery; epochs begin at {floor} now",
        )
    if row.open:
        raise refuse(
            error_pb2.ERROR_CODE_STREAM_NOT_CLOSED,
            f"stream {row.stream_id} is open at epoch {row.stream_epoch} of node {row.node_id}; try again after it was closed",
        )


def _check_tags(stream: wire.StreamTags) -> None:
    texts = [*stream.tags.keys(), *stream.tags.values()]
    if len(stream.tags) > TAGS_MAX or any(len(text.encode()) > TAG_BYTES_MAX for text in texts):
        raise refuse(
            error_pb2.ERROR_CODE_INVALID_REQUEST,
            f"a stream has at most {TAGS_MAX} tags, of at most {TAG_BYTES_MAX} bytes each",
        )
