"""Upload commits: data leaves a node's write-ahead log and becomes objects, all at once or not at all.

What lives here: the checks that keep offsets gapless and every object accounted for. Repeats never get here: the kept result answers them
before continuity is looked at. Ranges of deleted streams are ignored, their objects destroyed at once. The trim point of a write-ahead log in the store moves in the same
batch as what made the slots below it superfluous.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ponor.common.v1 import error_pb2
from ponor.controller.v1 import session_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_metadata.nouns.objects import OBJECTS, ObjectState
from ponor_metadata.nouns.streams import StreamRow
from ponor_metadata.tables.ranges import encode_runs
from ponor_runtime.identity import NodeId, ObjectId

from ponor_controller.domains.streams.operations import destructions, require_owner, stream_finder
from ponor_controller.domains.streams.wals import Writer, trims, writer
from ponor_controller.kernel.decisions import Decision, Situation, refuse, require_distinct, require_role


def commit_upload(body: wire.CommitUpload, situation: Situation) -> Decision:
    """Commit at most one stream set object and any number of stream objects, and advance the streams' ends."""
    require_role(situation, records_pb2.NODE_ROLE_BROKER)
    acting = writer(situation, body.recovered if body.HasField("recovered") else None)
    set_object = body.stream_set_object if body.HasField("stream_set_object") else None
    set_ranges = list(set_object.ranges) if set_object is not None else []
    packed = _check_shape(body, set_object, set_ranges, situation)
    for uploaded in ([set_object] if set_object is not None else []) + list(body.stream_objects):
        require_prepared(uploaded.object_id, uploaded.size_bytes, situation)
    ranges = [*set_ranges, *(uploaded.range for uploaded in body.stream_objects)]
    alive = _check_continuity(ranges, acting, situation)
    decision = Decision()
    dead: list[int] = []
    for uploaded in sorted(
        body.stream_objects, key=lambda each: (each.range.stream_id, each.range.start_offset)
    ):
        if uploaded.range.stream_id in alive:
            decision.records.append(stream_object_record(uploaded, situation.now_ms))
        else:
            dead.append(uploaded.object_id)
    if set_object is not None:
        live_ranges = [each for each in set_ranges if each.stream_id in alive]
        if live_ranges:
            if len(live_ranges) < len(set_ranges):
                packed = pack_ranges(live_ranges)
            committed = stream_set_object_record(set_object, packed, acting.node_id, situation.now_ms)
            decision.records.append(committed)
        else:
            dead.append(set_object.object_id)
    decision.records.extend(destructions(dead, situation.now_ms))
    decision.records.extend(trims(acting, body.trim_sequence))
    return decision


def _check_shape(
    body: wire.CommitUpload,
    set_object: wire.UploadedStreamSetObject | None,
    set_ranges: Sequence[wire.UploadedRange],
    situation: Situation,
) -> bytes:
    """Refuse what no state of the cluster would allow; returns the packed ranges of the stream set object."""
    ids = [uploaded.object_id for uploaded in body.stream_objects]
    if set_object is not None:
        ids.append(set_object.object_id)
        if not set_ranges:
            raise refuse(
                error_pb2.ERROR_CODE_INVALID_REQUEST,
                f"stream set object {set_object.object_id} has no ranges",
            )
    if not ids and not body.trim_sequence:
        raise refuse(
            error_pb2.ERROR_CODE_INVALID_REQUEST, "an upload without objects; there is nothing to commit"
        )
    require_commit_size(len(set_ranges), len(body.stream_objects), situation)
    require_distinct(ids, "object")
    _check_one_kind_per_stream(body, set_ranges)
    return pack_ranges(set_ranges)


def require_commit_size(set_ranges: int, stream_objects: int, situation: Situation) -> None:
    """A commit is checked and applied in one turn of the event loop.

    Raises:
        OperationError: INVALID_REQUEST.
    """
    settings, total = situation.settings, set_ranges + stream_objects
    if total > settings.upload_ranges_max or stream_objects > settings.commit_objects_max:
        raise refuse(
            error_pb2.ERROR_CODE_INVALID_REQUEST,
            f"a commit of {total} ranges, {stream_objects} of them stream objects; commit at most {settings.upload_ranges_max}"
            f" ranges (upload_ranges_max) and {settings.commit_objects_max} stream objects (commit_objects_max) at once",
        )


def pack_ranges(ranges: Iterable[wire.UploadedRange]) -> bytes:
    """Pack ranges for a record; refuse those that no stream set object can hold.

    Raises:
        OperationError: INVALID_REQUEST.
    """
    try:
        return encode_runs(list(map(run_of, ranges)))
    except ValueError as error:
        raise refuse(
            error_pb2.ERROR_CODE_INVALID_REQUEST, f"ranges must be sorted, disjoint and not empty: {error}"
        ) from error


def _check_one_kind_per_stream(body: wire.CommitUpload, set_ranges: Sequence[wire.UploadedRange]) -> None:
    """A stream's run of one upload goes into stream objects or into the stream set object; records are applied object by object, so
    a stream in both could not be advanced in the order of its offsets.
    """
    in_set = {each.stream_id for each in set_ranges}
    for uploaded in body.stream_objects:
        if uploaded.range.stream_id in in_set:
            raise refuse(
                error_pb2.ERROR_CODE_INVALID_REQUEST,
                f"stream {uploaded.range.stream_id} is in stream object {uploaded.object_id} and in the stream set object; "
                "put its run into one of them",
            )


def require_prepared(object_id: int, size_bytes: int, situation: Situation) -> None:
    """The object must be the caller's to commit, now.

    Raises:
        OperationError: OBJECT_NOT_PREPARED, OBJECT_EXPIRED, or INVALID_REQUEST for an empty object.
    """
    caller = situation.caller
    row = situation.view[OBJECTS].get(ObjectId(object_id))
    if (
        row is None
        or row.state is not ObjectState.PREPARED
        or row.node_id != caller.node_id
        or row.node_epoch != caller.node_epoch
    ):
        state = (
            "never prepared"
            if row is None
            else f"{row.state.name} for epoch {row.node_epoch} of node {row.node_id}"
        )
        raise refuse(
            error_pb2.ERROR_CODE_OBJECT_NOT_PREPARED,
            f"object {object_id} is {state}, not prepared for epoch {caller.node_epoch} of node {caller.node_id}; "
            "prepare another and upload again",
        )
    if row.expires_at_ms < situation.now_ms:
        raise refuse(
            error_pb2.ERROR_CODE_OBJECT_EXPIRED,
            f"the lease of object {object_id} ran out {situation.now_ms - row.expires_at_ms} ms ago; prepare another and upload again",
        )
    if size_bytes < 1:
        raise refuse(error_pb2.ERROR_CODE_INVALID_REQUEST, f"object {object_id} has {size_bytes} bytes")


def _check_continuity(
    ranges: Iterable[wire.UploadedRange], acting: Writer, situation: Situation
) -> frozenset[int]:
    """Every stream's ranges must continue its committed end, under its present epoch and owner.

    Returns:
        The streams that are there (for look-ups only).
    """
    find = stream_finder(situation.view)
    rows: dict[int, StreamRow] = {}
    ends: dict[int, int] = {}
    deleted: set[int] = set()
    for stream_id, start, end, stream_epoch in sorted(map(_place, ranges)):
        if not 0 <= start < end:
            raise refuse(
                error_pb2.ERROR_CODE_INVALID_REQUEST,
                f"range [{start}, {end}) of stream {stream_id} is empty or negative",
            )
        if stream_id in deleted:
            continue
        row = rows.get(stream_id)
        if row is None:
            row = find(stream_id)
            if row is None:
                deleted.add(stream_id)
                continue
            require_owner(row, stream_epoch, acting)
            rows[stream_id], ends[stream_id] = row, row.end_offset
        elif stream_epoch != row.stream_epoch:
            require_owner(row, stream_epoch, acting)
        if start != ends[stream_id]:
            raise refuse(
                error_pb2.ERROR_CODE_OFFSET_MISMATCH,
                f"stream {stream_id} ends at {ends[stream_id]}, the upload goes on at {start}; "
                "the node and the controller disagree, the node must stop",
            )
        ends[stream_id] = end
    return frozenset(ends)


def _place(uploaded: wire.UploadedRange) -> tuple[int, int, int, int]:
    return uploaded.stream_id, uploaded.start_offset, uploaded.end_offset, uploaded.stream_epoch


def run_of(uploaded: wire.UploadedRange) -> tuple[int, int, int]:
    """(stream id, start offset, end offset)."""
    return uploaded.stream_id, uploaded.start_offset, uploaded.end_offset


def stream_object_record(uploaded: wire.UploadedStreamObject, now_ms: int) -> records_pb2.Record:
    """The record by which a stream object is committed."""
    committed = records_pb2.StreamObjectCommitted(
        object_id=uploaded.object_id,
        size_bytes=uploaded.size_bytes,
        stream_id=uploaded.range.stream_id,
        start_offset=uploaded.range.start_offset,
        end_offset=uploaded.range.end_offset,
        committed_at_ms=now_ms,
    )
    return records_pb2.Record(stream_object_committed=committed)


def stream_set_object_record(
    uploaded: wire.UploadedStreamSetObject, packed_ranges: bytes, node_id: NodeId, now_ms: int
) -> records_pb2.Record:
    """The record by which a stream set object with these ranges is committed for the node that they went through."""
    committed = records_pb2.StreamSetObjectCommitted(
        object_id=uploaded.object_id,
        size_bytes=uploaded.size_bytes,
        node_id=node_id,
        packed_ranges=packed_ranges,
        committed_at_ms=now_ms,
    )
    return records_pb2.Record(stream_set_object_committed=committed)
