"""`s3stream.ports.StreamManager` over the controller session.

The session retries an operation under the same request id until its result is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ponor.controller.v1 import session_service_pb2 as wire
from ponor.controller.v1.session_service_pb2 import Operation, OperationResult
from ponor_metadata.client.session import SessionClient
from ponor_metadata.client.subscription import SubscriptionClient
from ponor_metadata.nouns.streams import STREAMS, STREAMS_OPEN_AT
from ponor_runtime.identity import NodeId, StreamEpoch, StreamId
from s3stream.ports import StreamState, WalName

from ponor_broker.partitions.handoff.move_operations import wire_state
from ponor_broker.partitions.log.stream_port import state_of
from ponor_broker.storage.wal_manager import submit, wire_wal


class ControllerStreamManager:
    """Fulfils `StreamManager`."""

    def __init__(self, session: SessionClient, subscription: SubscriptionClient, node_id: NodeId) -> None:
        self._session = session
        self._subscription = subscription
        self._node_id = node_id

    async def create_streams(self, tags: Sequence[Mapping[str, str]]) -> list[StreamId]:
        body = wire.CreateStreams(streams=[wire.StreamTags(tags=dict(one)) for one in tags])
        result = await self._submit(Operation(create_streams=body))
        return [StreamId(stream_id) for stream_id in result.streams_created.stream_ids]

    async def open_streams(self, streams: Sequence[tuple[StreamId, StreamEpoch]]) -> list[StreamState]:
        body = wire.OpenStreams(
            streams=[wire.OpenStream(stream_id=stream_id, stream_epoch=epoch) for stream_id, epoch in streams]
        )
        result = await self._submit(Operation(open_streams=body))
        return [
            StreamState(
                StreamId(state.stream_id),
                StreamEpoch(state.stream_epoch),
                state.start_offset,
                state.end_offset,
            )
            for state in result.streams_opened.streams
        ]

    async def close_streams(
        self, streams: Sequence[StreamState], *, recovered: WalName | None = None
    ) -> None:
        body = wire.CloseStreams(streams=[wire_state(state) for state in streams])
        if recovered is not None:
            body.recovered.CopyFrom(wire_wal(recovered))
        await self._submit(Operation(close_streams=body))

    async def trim_streams(self, streams: Sequence[tuple[StreamId, StreamEpoch, int]]) -> None:
        states = [
            wire.StreamState(stream_id=stream_id, stream_epoch=epoch, start_offset=start_offset)
            for stream_id, epoch, start_offset in streams
        ]
        await self._submit(Operation(trim_streams=wire.TrimStreams(streams=states)))

    async def delete_streams(self, stream_ids: Sequence[StreamId]) -> None:
        await self._submit(Operation(delete_streams=wire.DeleteStreams(stream_ids=stream_ids)))

    def owned_streams(self) -> list[StreamState]:
        rows = self._subscription.image[STREAMS].find(STREAMS_OPEN_AT, self._node_id)
        return list(map(state_of, rows))

    def exists(self, stream_id: StreamId) -> bool:
        return stream_id in self._subscription.image[STREAMS]

    async def _submit(self, operation: Operation) -> OperationResult:
        return await submit(self._session, operation)
