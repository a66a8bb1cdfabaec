"""One session: read the frames of a node process after its Hello and queue its operations."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from google.protobuf.message import DecodeError
from ponor.common.v1 import error_pb2
from ponor.controller.v1 import session_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_rpc.errors import OperationError
from ponor_runtime.identity import NodeId
from ponor_runtime.network import Connection, ConnectionClosedError
from ponor_runtime.observer_clock import ObserverClock

from ponor_controller.kernel.lanes import Lanes
from ponor_controller.kernel.node_activity import NodeActivity
from ponor_controller.kernel.operation import Caller, PendingOperation
from ponor_controller.server.sessions.outbox import Outbox

LoadListener: TypeAlias = Callable[[NodeId, wire.LoadReport], None]
"""Called with the load reports of brokers."""

OPERATIONS_FRAME_BYTES_MAX = 256 * 1024
"""Bound of a frame with several operations. A frame with one operation may be larger, for example the commit
of an upload with very many ranges."""


class NodeSilentError(ConnectionClosedError):
    """The node was silent for too long. The other end may still consider the connection open."""


class Session:
    """Serves one connection of one process."""

    def __init__(
        self,
        connection: Connection,
        outbox: Outbox,
        lanes: Lanes,
        activity: NodeActivity,
        caller: Caller,
        loads: LoadListener,
        *,
        operations_max: int,
        bytes_max: int,
        silence_ms_max: int,
        observed: ObserverClock,
    ) -> None:
        self.caller = caller
        self._connection = connection
        self._outbox = outbox
        self._lanes = lanes
        self._activity = activity
        self._loads = loads
        self._operations_max = operations_max
        self._bytes_max = bytes_max
        self._silence_seconds = silence_ms_max / 1000
        self._observed = observed
        self._operations = 0
        self._bytes = 0
        self._room = asyncio.Event()
        self._room.set()
        outbox.on_sent = self._sent
        self._abandoned = asyncio.Event()

    def end(self, error: OperationError) -> None:
        """End the session and send the reason."""
        self._outbox.refuse(error.to_proto())

    def abandon(self) -> None:
        """Close the connection without sending a reason, because the same process has a newer connection."""
        self._abandoned.set()

    async def run(self) -> None:
        """Serve until the node disconnects or is silent, or the session is ended.

        Raises:
            NodeSilentError: the node was silent for too long. Its direction of the connection may have failed
                alone.
            ConnectionClosedError: the connection was closed.
        """
        loop = asyncio.get_running_loop()
        name = f"session-{self.caller.node_id}-{self.caller.node_epoch}"
        reading = loop.create_task(self._read(), name=f"{name}-read")
        sending = loop.create_task(self._outbox.run(), name=f"{name}-send")
        abandoned = loop.create_task(self._abandoned.wait(), name=f"{name}-abandoned")
        tasks = (reading, sending, abandoned)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if reading.done() and reading.exception() is None:
                await asyncio.wait((sending,))  # the reader refused a frame: send the reason first
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self) -> None:
        while True:
            await self._room.wait()
            try:
                async with self._observed.timeout(self._silence_seconds):
                    frame = await self._connection.receive()
            except TimeoutError:
                raise NodeSilentError(
                    f"node {self.caller.node_id} was silent for {self._silence_seconds:g} s"
                ) from None
            self._activity.heard(self.caller.node_id)
            problem = self._accept(frame)
            if problem is not None:
                self.end(OperationError(error_pb2.ERROR_CODE_INVALID_REQUEST, problem))
                return

    def _accept(self, frame: bytes) -> str | None:
        """Handle a frame. Returns the error in the frame; None if it is valid."""
        try:
            request = wire.SessionRequest.FromString(frame)
        except DecodeError as error:
            return f"a frame is not a SessionRequest: {error}"
        kind = request.WhichOneof("frame")
        if kind == "heartbeat":
            return None
        if kind == "load":
            return self._accept_load(request.load, len(frame))
        if kind != "operations":
            return f"a frame of kind {kind} is not allowed here"
        batch = request.operations
        if len(batch.operations) > self._operations_max:
            return (
                f"a frame has {len(batch.operations)} operations; at most {self._operations_max} may be in"
                " flight"
            )
        if len(frame) > OPERATIONS_FRAME_BYTES_MAX and len(batch.operations) > 1:
            return (
                f"a frame with several operations has {len(frame)} bytes; split frames above"
                f" {OPERATIONS_FRAME_BYTES_MAX} bytes"
            )
        operations, first_incomplete_id = list(batch.operations), batch.first_incomplete_id
        for operation in operations:
            if operation.request_id < first_incomplete_id:
                return (
                    f"operation {operation.request_id} is below the first incomplete id {first_incomplete_id}"
                )
        if operations:
            self._put(operations, first_incomplete_id, len(frame))
        return None

    def _accept_load(self, report: wire.LoadReport, size_bytes: int) -> str | None:
        if self.caller.role != records_pb2.NODE_ROLE_BROKER:
            return f"node {self.caller.node_id} sent a load report and is not a broker"
        if size_bytes > OPERATIONS_FRAME_BYTES_MAX:
            return (
                f"a load report has {size_bytes} bytes; the limit is {OPERATIONS_FRAME_BYTES_MAX}; report"
                " fewer partitions"
            )
        self._loads(self.caller.node_id, report)
        return None

    def _put(self, operations: list[wire.Operation], first_incomplete_id: int, frame_bytes: int) -> None:
        # Each operation counts with an equal share of the frame: measuring an operation costs as much as
        # encoding it.
        share_bytes = -(-frame_bytes // len(operations))
        self._operations += len(operations)
        self._bytes += share_bytes * len(operations)
        answer = partial(self._answer, share_bytes)
        for operation in operations:
            kind = operation.WhichOneof("kind")
            self._lanes.put(PendingOperation(self.caller, operation, first_incomplete_id, answer, kind))
        self._update_room()

    def _answer(self, size_bytes: int, result: bytes) -> None:
        self._outbox.put(result, size_bytes)

    def _sent(self, operations: int, size_bytes: int) -> None:
        if not self._room.is_set():
            self._activity.heard(self.caller.node_id)  # the node seemed silent: this controller did not read
        self._operations -= operations
        self._bytes -= size_bytes
        self._update_room()

    def _update_room(self) -> None:
        if self._operations < self._operations_max and self._bytes < self._bytes_max:
            self._room.set()
        else:
            self._room.clear()
