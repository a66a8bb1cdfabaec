"""Commits of objects: checks and records that uploads and compactions share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from ponor.common.v1 import error_pb2
from ponor.controller.v1 import session_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_metadata.nouns.objects import OBJECTS, ObjectState
from ponor_metadata.tables.ranges import encode_runs
from ponor_runtime.identity import NodeId, ObjectId

from ponor_controller.kernel.decisions import Situation, invalid, refuse

DESTROYED_PER_RECORD_MAX: Final = 5_000


def require_commit_size(set_ranges: int, stream_objects: int, situation: Situation) -> None:
    """Refuse a commit that is too large, because a commit is checked and applied in one turn of the event
    loop.

    Raises:
        OperationError: INVALID_REQUEST.
    """
    settings, total = situation.settings, set_ranges + stream_objects
    if total > settings.upload_ranges_max or stream_objects > settings.commit_objects_max:
        raise invalid(
            f"the commit has {total} ranges, {stream_objects} of them in stream objects; commit at most"
            f" {settings.upload_ranges_max} ranges (upload_ranges_max) and {settings.commit_objects_max}"
            " stream objects (commit_objects_max) at once"
        )


def require_prepared(object_id: int, size_bytes: int, situation: Situation) -> None:
    """Require that the caller prepared the object and that the reservation has not expired.

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
            "unknown" if row is None else f"{row.state.name} for epoch {row.node_epoch} of node {row.node_id}"
        )
        raise refuse(
            error_pb2.ERROR_CODE_OBJECT_NOT_PREPARED,
            f"object {object_id} is {state}, not prepared for epoch {caller.node_epoch} of node"
            f" {caller.node_id}; prepare another object and upload again",
        )
    if row.expires_at_ms < situation.now_ms:
        raise refuse(
            error_pb2.ERROR_CODE_OBJECT_EXPIRED,
            f"the reservation of object {object_id} expired {situation.now_ms - row.expires_at_ms} ms ago;"
            " prepare another object and upload again",
        )
    if size_bytes < 1:
        raise invalid(f"object {object_id} has {size_bytes} bytes; an object must have at least 1 byte")


def pack_ranges(ranges: Iterable[wire.UploadedRange]) -> bytes:
    """Pack ranges for a record.

    Raises:
        OperationError: INVALID_REQUEST; the ranges are not sorted, disjoint and non-empty.
    """
    try:
        return encode_runs(list(map(run_of, ranges)))
    except ValueError as error:
        raise invalid(f"ranges must be sorted, disjoint and not empty: {error}") from error


def run_of(uploaded: wire.UploadedRange) -> tuple[int, int, int]:
    """Return (stream id, start offset, end offset)."""
    return uploaded.stream_id, uploaded.start_offset, uploaded.end_offset


def stream_object_record(uploaded: wire.UploadedStreamObject, now_ms: int) -> records_pb2.Record:
    """The record that commits a stream object."""
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
    """The record that commits a stream set object with these ranges. `node_id`: the node whose log contained
    the data.
    """
    committed = records_pb2.StreamSetObjectCommitted(
        object_id=uploaded.object_id,
        size_bytes=uploaded.size_bytes,
        node_id=node_id,
        packed_ranges=packed_ranges,
        committed_at_ms=now_ms,
    )
    return records_pb2.Record(stream_set_object_committed=committed)


def destructions(object_ids: Sequence[int], now_ms: int) -> list[records_pb2.Record]:
    """The records that destroy objects. The size of each record is bounded."""
    records: list[records_pb2.Record] = []
    for position in range(0, len(object_ids), DESTROYED_PER_RECORD_MAX):
        some = object_ids[position : position + DESTROYED_PER_RECORD_MAX]
        destroyed = records_pb2.ObjectsDestroyed(object_ids=some, destroyed_at_ms=now_ms)
        records.append(records_pb2.Record(objects_destroyed=destroyed))
    return records
