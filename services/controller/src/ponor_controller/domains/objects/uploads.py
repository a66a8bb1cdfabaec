"""The operation that commits an upload: all of its objects become visible together.

The checks keep the offsets of every stream contiguous and account for every object. Repeated operations do
not reach this module: the executor answers them with the stored result. Ranges of deleted streams are ignored
and their objects are destroyed at once. The batch that commits the objects also advances the trim point of a
write-ahead log in the store past the slots that the objects replace.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ponor.common.v1 import error_pb2
from ponor.controller.v1 import session_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_metadata.nouns.streams import StreamRow

from ponor_controller.kernel.decisions import (
    Decision,
    Situation,
    invalid,
    refuse,
    require_distinct,
    require_role,
)
from ponor_controller.shared_rules.object_commits import (
    destructions,
    pack_ranges,
    require_commit_size,
    require_prepared,
    stream_object_record,
    stream_set_object_record,
)
from ponor_controller.shared_rules.stream_ownership import (
    Writer,
    require_owner,
    stream_finder,
    trim_records,
    writer,
)


def commit_upload(body: wire.CommitUpload, situation: Situation) -> Decision:
    """Commit at most one stream set object and any number of stream objects, and advance the streams'
    ends.
    """
    require_role(situation, records_pb2.NODE_ROLE_BROKER)
    acting = writer(situation, body.recovered if body.HasField("recovered") else None)
    set_object = body.stream_set_object if body.HasField("stream_set_object") else None
    set_ranges = list(set_object.ranges) if set_object is not None else []
    packed = _check_shape(body, set_object, set_ranges, situation)
    for uploaded in ([set_object] if set_object is not None else []) + list(body.stream_objects):
        require_prepared(uploaded.object_id, uploaded.size_bytes, situation)
    ranges = [*set_ranges, *(uploaded.range for uploaded in body.stream_objects)]
    existing = _check_continuity(ranges, acting, situation)
    decision = _commit(body, packed, existing, acting, situation)
    decision.rows = len(ranges)
    return decision


def _commit(
    body: wire.CommitUpload, packed: bytes, existing: frozenset[int], acting: Writer, situation: Situation
) -> Decision:
    """Decide on the records that commit objects of existing streams and destroy the other objects."""
    set_object = body.stream_set_object if body.HasField("stream_set_object") else None
    decision = Decision()
    dead: list[int] = []
    by_offset = sorted(body.stream_objects, key=lambda each: (each.range.stream_id, each.range.start_offset))
    for uploaded in by_offset:
        if uploaded.range.stream_id in existing:
            decision.records.append(stream_object_record(uploaded, situation.now_ms))
        else:
            dead.append(uploaded.object_id)
    if set_object is not None:
        live_ranges = [each for each in set_object.ranges if each.stream_id in existing]
        if live_ranges:
            if len(live_ranges) < len(set_object.ranges):
                packed = pack_ranges(live_ranges)
            committed = stream_set_object_record(set_object, packed, acting.node_id, situation.now_ms)
            decision.records.append(committed)
        else:
            dead.append(set_object.object_id)
    decision.records.extend(destructions(dead, situation.now_ms))
    decision.records.extend(trim_records(acting, body.trim_sequence))
    return decision


def _check_shape(
    body: wire.CommitUpload,
    set_object: wire.UploadedStreamSetObject | None,
    set_ranges: Sequence[wire.UploadedRange],
    situation: Situation,
) -> bytes:
    """Refuse a malformed commit; returns the packed ranges of the stream set object."""
    ids = [uploaded.object_id for uploaded in body.stream_objects]
    if set_object is not None:
        ids.append(set_object.object_id)
        if not set_ranges:
            raise invalid(f"stream set object {set_object.object_id} has no ranges")
    if not ids and not body.trim_sequence:
        raise invalid("the upload has neither objects nor a trim_sequence: there is nothing to commit")
    require_commit_size(len(set_ranges), len(body.stream_objects), situation)
    require_distinct(ids, "object")
    _check_one_kind_per_stream(body, set_ranges)
    return pack_ranges(set_ranges)


def _check_one_kind_per_stream(body: wire.CommitUpload, set_ranges: Sequence[wire.UploadedRange]) -> None:
    """Refuse an upload that has data of a stream both in stream objects and in the stream set object.

    Records are applied object by object, so such a stream's end could not advance in the order of offsets.
    """
    in_set = {each.stream_id for each in set_ranges}
    for uploaded in body.stream_objects:
        if uploaded.range.stream_id in in_set:
            raise invalid(
                f"stream {uploaded.range.stream_id} is in stream object {uploaded.object_id} and in the"
                " stream set object; put its range into only one of them"
            )


def _check_continuity(
    ranges: Iterable[wire.UploadedRange], acting: Writer, situation: Situation
) -> frozenset[int]:
    """Require that each stream's ranges begin at its committed end, with its present epoch and owner.

    Returns:
        The ids of existing streams (only for membership tests).
    """
    find = stream_finder(situation.view)
    rows: dict[int, StreamRow] = {}
    ends: dict[int, int] = {}
    deleted: set[int] = set()
    for stream_id, start, end, stream_epoch in sorted(map(_place, ranges)):
        if not 0 <= start < end:
            raise invalid(f"range [{start}, {end}) of stream {stream_id} is empty or negative")
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
                f"stream {stream_id} ends at {ends[stream_id]}, but the upload continues at {start};"
                " the node and the controller disagree, so the node must stop",
            )
        ends[stream_id] = end
    return frozenset(ends)


def _place(uploaded: wire.UploadedRange) -> tuple[int, int, int, int]:
    return uploaded.stream_id, uploaded.start_offset, uploaded.end_offset, uploaded.stream_epoch
