"""Operations on streams: create, open, close, trim, delete.

A stream has one owner at a time and its epoch only rises. Two nodes may close a stream: the owner, and the
node that recovers the write-ahead log with the stream's data. A log in a file is recovered by the next
process of the owner's node.
"""

from __future__ import annotations

from ponor.common.v1 import error_pb2
from ponor.controller.v1 import session_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_metadata.nouns import counters
from ponor_metadata.nouns.cluster import epoch_floor
from ponor_metadata.nouns.streams import STREAMS, StreamRow
from ponor_runtime.identity import StreamId

from ponor_controller.kernel.decisions import (
    Decision,
    Situation,
    invalid,
    refuse,
    require_count,
    require_distinct,
    require_role,
)
from ponor_controller.shared_rules.partition_rights import require_stream_rights, require_tagged_rights
from ponor_controller.shared_rules.stream_ownership import find_stream, require_owner, require_stream, writer

TAGS_MAX = 16
TAG_BYTES_MAX = 256
STREAM_EPOCH_MAX = (1 << 31) - 1
"""Stream epochs are leader epochs, which are int32 in Kafka's protocol."""


def create_streams(body: wire.CreateStreams, situation: Situation) -> Decision:
    """Create streams: closed, empty, at epoch -1."""
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
    """Make the caller the owner of closed streams, at a new epoch.

    To open a partition's streams, the caller must lead the partition at that epoch. An exact repetition
    succeeds.
    """
    require_role(situation, records_pb2.NODE_ROLE_BROKER)
    require_count(len(body.streams), situation.settings.streams_per_operation_max, "streams")
    require_distinct([stream.stream_id for stream in body.streams], "stream")
    caller = situation.caller
    # The caller must have a log: otherwise no node could ever close the stream.
    writer(situation)
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
    """Close streams. The end offset in the request must be the committed end offset."""
    require_role(situation, records_pb2.NODE_ROLE_BROKER)
    require_count(len(body.streams), situation.settings.streams_per_operation_max, "streams")
    require_distinct([stream.stream_id for stream in body.streams], "stream")
    recovered = body.recovered if body.HasField("recovered") else None
    acting = writer(situation, recovered)
    decision = Decision()
    for wanted in body.streams:
        if recovered is not None and find_stream(situation.view, wanted.stream_id) is None:
            continue  # the topic of the stream was deleted during the recovery of the log
        row = require_stream(situation, wanted.stream_id)
        repeated = not row.open and acting.holds(row) and row.stream_epoch == wanted.stream_epoch
        if not repeated:
            require_owner(row, wanted.stream_epoch, acting)
        if wanted.end_offset != row.end_offset:
            raise refuse(
                error_pb2.ERROR_CODE_OFFSET_MISMATCH,
                f"stream {row.stream_id} ends at {row.end_offset}, not at {wanted.end_offset}; upload the"
                " missing records before you close it",
            )
        if not repeated:
            record = records_pb2.StreamClosed(stream_id=wanted.stream_id, stream_epoch=wanted.stream_epoch)
            decision.records.append(records_pb2.Record(stream_closed=record))
    return decision


def trim_streams(body: wire.TrimStreams, situation: Situation) -> Decision:
    """Raise the start offsets of streams. `ReclaimDuty` destroys objects without live data."""
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
                f"stream {row.stream_id} ends at {row.end_offset} and cannot begin at {wanted.start_offset};"
                " upload first",
            )
        record = records_pb2.StreamTrimmed(stream_id=row.stream_id, start_offset=wanted.start_offset)
        decision.records.append(records_pb2.Record(stream_trimmed=record))
    return decision


def delete_streams(body: wire.DeleteStreams, situation: Situation) -> Decision:
    """Delete streams that are closed, or that the caller holds open. Absent streams count as deleted.

    A partition's streams are deleted only by its leader. `ReclaimDuty` destroys their objects.
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
                f"stream {row.stream_id} is open at node {row.node_id}; only that node can delete it",
            )
        require_stream_rights(row.tag_pairs, situation)
    deleted = [records_pb2.StreamDeleted(stream_id=row.stream_id) for row in rows]
    return Decision([records_pb2.Record(stream_deleted=each) for each in deleted])


def _is_repeated_open(row: StreamRow, wanted: wire.OpenStream, situation: Situation) -> bool:
    held = (row.open, row.node_id, row.node_epoch, row.stream_epoch)
    return held == (True, situation.caller.node_id, situation.caller.node_epoch, wanted.stream_epoch)


def _check_open(row: StreamRow, wanted: wire.OpenStream, situation: Situation) -> None:
    if not 0 <= wanted.stream_epoch <= STREAM_EPOCH_MAX:
        raise invalid(f"stream epoch {wanted.stream_epoch} is not within 0..{STREAM_EPOCH_MAX}")
    if wanted.stream_epoch <= row.stream_epoch:
        raise refuse(
            error_pb2.ERROR_CODE_STREAM_FENCED,
            f"stream {row.stream_id} already has epoch {row.stream_epoch} of node {row.node_id};"
            f" epoch {wanted.stream_epoch} is outdated",
        )
    floor = epoch_floor(situation.view)
    if wanted.stream_epoch < floor:
        raise refuse(
            error_pb2.ERROR_CODE_STREAM_FENCED,
            f"stream {row.stream_id}: epoch {wanted.stream_epoch} is from before the last forced recovery;"
            f" the lowest epoch is now {floor}",
        )
    if row.open:
        raise refuse(
            error_pb2.ERROR_CODE_STREAM_NOT_CLOSED,
            f"stream {row.stream_id} is open at epoch {row.stream_epoch} of node {row.node_id}; try again"
            " when it is closed",
        )


def _check_tags(stream: wire.StreamTags) -> None:
    texts = [*stream.tags.keys(), *stream.tags.values()]
    if len(stream.tags) > TAGS_MAX or any(len(text.encode()) > TAG_BYTES_MAX for text in texts):
        raise invalid(f"a stream has at most {TAGS_MAX} tags, of at most {TAG_BYTES_MAX} bytes each")
