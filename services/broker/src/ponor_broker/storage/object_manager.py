"""`s3stream.ports.ObjectManager` over the controller session: object ids, commits, and look-ups in
the local read index.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ponor.common.v1 import error_pb2
from ponor.controller.v1 import session_service_pb2 as wire
from ponor.controller.v1.session_service_pb2 import Operation, OperationResult
from ponor_metadata.client.errors import MetadataLagError, SessionClosedError
from ponor_metadata.client.seen_history import Witness
from ponor_metadata.client.session import SessionClient
from ponor_metadata.client.subscription import SubscriptionClient
from ponor_metadata.image.read_index import find_pieces
from ponor_metadata.nouns.objects import STREAM_SET_OBJECTS
from ponor_metadata.tables.schema import View
from ponor_rpc.errors import OperationError
from ponor_runtime.identity import ObjectId, StreamId
from s3stream.errors import (
    CommitRefusedError,
    PreparedExpiredError,
    S3StreamError,
    StorageFailedError,
    WalNotHeldError,
)
from s3stream.ports import PIECES_MAX, ObjectPiece, PreparedObjects, StreamRange, UploadedObject, WalName

from ponor_broker.storage.wal_manager import storage_error_of, wire_wal

LAG_WAIT_MS = 1_000
"""How long a look-up waits until the image shows the last commit. After that it fails; the caller retries."""

_LEASE_IS_OVER: Final = frozenset(
    {error_pb2.ERROR_CODE_OBJECT_EXPIRED, error_pb2.ERROR_CODE_OBJECT_NOT_PREPARED}
)
"""Refusals of a commit whose object ids have expired or were removed by the garbage collector: the upload
starts again with new ids."""


class ControllerObjectManager:
    """Fulfils `ObjectManager`. A look-up after a commit waits until the image shows the commit."""

    def __init__(
        self,
        session: SessionClient,
        subscription: SubscriptionClient,
        witness: Witness,
        *,
        prepared_ttl_ms: int,
    ) -> None:
        self._session = session
        self._subscription = subscription
        self._witness = witness
        self._prepared_ttl_ms = prepared_ttl_ms
        self._committed_index = 0

    async def prepare_objects(self, count: int) -> PreparedObjects:
        body = wire.PrepareObjects(count=count, ttl_ms=self._prepared_ttl_ms)
        try:
            result = await self._submit(Operation(prepare_objects=body))
        except OperationError as error:
            raise storage_error_of(error) from error
        # Write the witness before an object gets one of these ids (and below, before the caller trims its
        # log): a later start then detects controllers whose log was restored from an older copy.
        await self._witness.write(self._session.seen)
        reserved = result.objects_reserved
        return PreparedObjects(
            ObjectId(reserved.first_object_id), reserved.count, reserved.namespace, reserved.bucket_index
        )

    async def commit_upload(
        self,
        stream_set_object: UploadedObject | None,
        stream_objects: Sequence[UploadedObject],
        *,
        trim_sequence: int = 0,
        recovered: WalName | None = None,
    ) -> None:
        body = wire.CommitUpload(
            stream_objects=[_stream_object(uploaded) for uploaded in stream_objects],
            trim_sequence=trim_sequence,
        )
        if stream_set_object is not None:
            body.stream_set_object.CopyFrom(_stream_set_object(stream_set_object))
        if recovered is not None:
            body.recovered.CopyFrom(wire_wal(recovered))
        try:
            result = await self._submit(Operation(commit_upload=body))
        except OperationError as error:
            raise _commit_refusal(error) from error
        self._committed_index = max(self._committed_index, result.commit_index)
        await self._witness.write(self._session.seen)

    async def find_objects(
        self, stream_id: StreamId, start_offset: int, end_offset: int, *, pieces_max: int = PIECES_MAX
    ) -> list[ObjectPiece]:
        pieces = self._find(stream_id, start_offset, end_offset, pieces_max)
        if pieces or self._subscription.image.index >= self._committed_index:
            return pieces
        try:
            await self._subscription.wait_for(self._committed_index, LAG_WAIT_MS)
        except MetadataLagError:
            return []
        return self._find(stream_id, start_offset, end_offset, pieces_max)

    def _find(
        self, stream_id: StreamId, start_offset: int, end_offset: int, pieces_max: int
    ) -> list[ObjectPiece]:
        image = self._subscription.image
        return [
            ObjectPiece(
                piece.object_id,
                piece.namespace,
                piece.bucket_index,
                piece.size_bytes,
                piece.start_offset,
                piece.end_offset,
                _range_count(image, piece.object_id),
            )
            for piece in find_pieces(image, stream_id, start_offset, end_offset, limit=pieces_max)
        ]

    async def _submit(self, operation: Operation) -> OperationResult:
        try:
            return await self._session.submit(operation)
        except SessionClosedError as error:
            raise StorageFailedError(str(error)) from error


def _range_count(image: View, object_id: ObjectId) -> int:
    """Return the number of ranges in an object; a stream object has one."""
    row = image[STREAM_SET_OBJECTS].get(object_id)
    return 1 if row is None else len(row.ranges.decoded)


def _commit_refusal(error: OperationError) -> S3StreamError:
    if error.code in _LEASE_IS_OVER:
        return PreparedExpiredError(str(error))
    if error.code == error_pb2.ERROR_CODE_WAL_NOT_HELD:
        return WalNotHeldError(str(error))
    return CommitRefusedError(str(error))


def _range(part: StreamRange) -> wire.UploadedRange:
    return wire.UploadedRange(
        stream_id=part.stream_id,
        stream_epoch=part.epoch,
        start_offset=part.start_offset,
        end_offset=part.end_offset,
    )


def _stream_object(uploaded: UploadedObject) -> wire.UploadedStreamObject:
    (only,) = uploaded.ranges
    return wire.UploadedStreamObject(
        object_id=uploaded.object_id, size_bytes=uploaded.size_bytes, range=_range(only)
    )


def _stream_set_object(uploaded: UploadedObject) -> wire.UploadedStreamSetObject:
    return wire.UploadedStreamSetObject(
        object_id=uploaded.object_id,
        size_bytes=uploaded.size_bytes,
        ranges=[_range(part) for part in uploaded.ranges],
    )
