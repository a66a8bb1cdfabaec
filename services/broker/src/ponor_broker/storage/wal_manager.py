"""`s3stream.ports.WalManager` over the controller session and the image, and the translation of the
controller's error codes for all ports.
"""

from __future__ import annotations

from typing import Final

from ponor.common.v1 import error_pb2
from ponor.controller.v1 import session_service_pb2 as wire
from ponor.controller.v1.session_service_pb2 import Operation, OperationResult
from ponor_metadata.client.errors import NodeFencedError, SessionClosedError
from ponor_metadata.client.session import SessionClient
from ponor_metadata.client.subscription import SubscriptionClient
from ponor_metadata.nouns.cluster import cluster_of
from ponor_metadata.nouns.streams import STREAMS, STREAMS_OPEN_AT
from ponor_rpc.errors import OperationError
from ponor_runtime.identity import NodeEpoch, NodeId
from s3stream.errors import (
    S3StreamError,
    StorageFailedError,
    StreamClosedError,
    StreamFencedError,
    StreamNotClosedError,
    StreamNotFoundError,
    WalNotHeldError,
)
from s3stream.ports import StreamState, WalName

from ponor_broker.partitions.log.stream_port import state_of

_ERRORS: Final[dict[int, type[S3StreamError]]] = {
    error_pb2.ERROR_CODE_STREAM_NOT_FOUND: StreamNotFoundError,
    # its streams were deleted with the topic
    error_pb2.ERROR_CODE_TOPIC_NOT_FOUND: StreamNotFoundError,
    error_pb2.ERROR_CODE_STREAM_FENCED: StreamFencedError,
    error_pb2.ERROR_CODE_STREAM_NOT_OPENED: StreamClosedError,
    error_pb2.ERROR_CODE_STREAM_NOT_CLOSED: StreamNotClosedError,
    error_pb2.ERROR_CODE_WAL_NOT_HELD: WalNotHeldError,
}


def storage_error_of(error: OperationError) -> S3StreamError:
    """Return the storage error for a refused operation. An operation handles the codes that have a special
    meaning for it.
    """
    return _ERRORS.get(error.code, S3StreamError)(str(error))


async def submit(session: SessionClient, operation: Operation) -> OperationResult:
    """Execute an operation on streams or keys.

    Raises:
        S3StreamError: the controller refused it, or the session is closed.
    """
    try:
        return await session.submit(operation)
    except OperationError as error:
        raise storage_error_of(error) from error
    except SessionClosedError as error:
        raise StreamClosedError(str(error)) from error


class ControllerWalManager:
    """Fulfils `WalManager` for the process that owns the session."""

    def __init__(self, session: SessionClient, subscription: SubscriptionClient) -> None:
        self._session = session
        self._subscription = subscription

    @property
    def own(self) -> WalName:
        """Name of this process's log, open or not. Requires a registered session."""
        return self.name_of(self._session.identity.node_id, self._session.node_epoch)

    def name_of(self, node_id: NodeId, epoch: NodeEpoch) -> WalName:
        """Name of a log of this cluster."""
        cluster = cluster_of(self._subscription.image)
        assert cluster is not None, "the image does not contain the cluster"
        return WalName(cluster.namespace, node_id, epoch)

    async def open_wal(self) -> WalName:
        await self._submit(Operation(open_wal=wire.OpenWal()))
        return self.own

    async def close_wal(self, name: WalName, end_sequence: int) -> None:
        body = wire.CloseWal(wal=wire_wal(name), end_sequence=end_sequence)
        await self._submit(Operation(close_wal=body))

    async def verify_epoch(self) -> None:
        try:
            await self._session.submit(Operation(verify_epoch=wire.VerifyEpoch()))
        except (OperationError, SessionClosedError, NodeFencedError) as error:
            raise StreamFencedError(str(error)) from error

    def streams_of(self, name: WalName) -> list[StreamState]:
        rows = self._subscription.image[STREAMS].find(STREAMS_OPEN_AT, name.node_id)
        return [state_of(row) for row in rows if row.node_epoch == name.epoch]

    def may_delete_recovered(self) -> bool:
        cluster = cluster_of(self._subscription.image)
        return cluster is not None and not cluster.incarnation_unconfirmed

    async def _submit(self, operation: Operation) -> None:
        try:
            await self._session.submit(operation)
        except OperationError as error:
            refusal = storage_error_of(error)
            if isinstance(refusal, WalNotHeldError):
                raise refusal from error
            raise StorageFailedError(str(error)) from error
        except (SessionClosedError, NodeFencedError) as error:
            raise StorageFailedError(str(error)) from error


def wire_wal(name: WalName) -> wire.WalName:
    """Return the wire form of a log's name; it omits the namespace, which is the cluster's."""
    return wire.WalName(node_id=name.node_id, wal_epoch=name.epoch)
