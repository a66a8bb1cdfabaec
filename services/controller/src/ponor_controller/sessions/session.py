"""One session: the frames of one node process after its Hello.

What lives here: reading frames, the bound on what is in flight, and handing operations to the lanes. Who the node is was decided before; what an
operation means is decided after.
"""

from __future__ import annotations

import asyncio
from functools import partial

from google.protobuf.message import DecodeError
from ponor.common.v1 import error_pb2
from ponor.controller.v1 import session_service_pb2 as wire
from ponor_rpc.errors import OperationError
from ponor_runtime.network import Connection, ConnectionClosedError

from ponor_controller.proposals.lanes import Lanes
from ponor_controller.proposals.pending import Caller, PendingOperation
from ponor_controller.sessions.node_activity import NodeActivity
from ponor_controller.sessions.outbox import Outbox

OPERATIONS_FRAME_BYTES_MAX = 256 * 1024
"""A frame may be larger only if it carries one operation, such as the commit of a very wide upload."""


class Session:
    """Serves one connection of one process."""

    def __init__(
        self,
        connection: Connection,
        outbox: Outbox,
        lanes: Lanes,
        activity: NodeActivity,
        caller: Caller,
        *,
        operations_max: int,
        bytes_max: int,
        silence_ms_max: int,
    ) -> None:
        self.caller = caller
        self._connection = connection
        self._outbox = outbox
        self._lanes = lanes
        self._activity = activity
        self._operations_max = operations_max
        self._bytes_max = bytes_max
        self._silence_seconds = silence_ms_max / 1000
        self._operations = 0
        self._bytes = 0
        self._room = asyncio.Event()
        self._room.set()
        outbox.on_sent = self._sent
        self._abandoned = asyncio.Event()

    def end(self, error: OperationError) -> None:
        """End the session with a reason; the process on the other side hears it."""
        self._outbox.refuse(error.to_proto())

    def abandon(self) -> None:
        """Drop the connection without a word: the same process has another one. Its operations still count."""
        self._abandoned.set()

    async def run(self) -> None:
        """Serve until the node goes or is silent, or the session is ended.

        Raises:
            ConnectionClosedError: the node is gone, or was silent for longer than it may be: half of a connection can die without a word.
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
                await asyncio.wait((sending,))  # the reader refused: the last word still goes out
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
                async with asyncio.timeout(self._silence_seconds):
                    frame = await self._connection.receive()
            except TimeoutError:
                raise ConnectionClosedError(
                    f"node {self.caller.node_id} was silent for {self._silence_seconds:g} s"
                ) from None
            self._activity.heard(self.caller.node_id)
            problem = self._accept(frame)
            if problem is not None:
                self.end(OperationError(error_pb2.ERROR_CODE_INVALID_REQUEST, problem))
                return

    def _accept(self, frame: bytes) -> str | None:
        """Take a frame; what is wrong with it, if anything is."""
        try:
            request = wire.SessionRequest.FromString(frame)
        except DecodeError as error:
            return f"a frame is not a SessionRequest: {error}"
        kind = request.WhichOneof("frame")
        if kind == "heartbeat":
            return None
        if kind != "operations":
            return f"a frame of kind {kind} is out of place"
        batch = request.operations
        if len(batch.operations) > self._operations_max:
            return f"{len(batch.operations)} operations in one frame; at most {self._operations_max} may be in flight"
        if len(frame) > OPERATIONS_FRAME_BYTES_MAX and len(batch.operations) > 1:
            return f"a frame of {len(frame)} bytes with several operations; split above {OPERATIONS_FRAME_BYTES_MAX}"
        for operation in batch.operations:
            if operation.request_id < batch.first_incomplete_id:
                return f"operation {operation.request_id} is below the first incomplete id {batch.first_incomplete_id}"
        for operation in batch.operations:
            self._put(operation, batch.first_incomplete_id)
        self._update_room()
        return None

    def _put(self, operation: wire.Operation, first_incomplete_id: int) -> None:
        size_bytes = operation.ByteSize()
        self._operations += 1
        self._bytes += size_bytes
        answer = partial(self._answer, size_bytes)
        self._lanes.put(PendingOperation(self.caller, operation, first_incomplete_id, answer))

    def _answer(self, size_bytes: int, result: wire.OperationResult) -> None:
        self._outbox.put(result, size_bytes)

    def _sent(self, operations: int, size_bytes: int) -> None:
        if not self._room.is_set():
            self._activity.heard(self.caller.node_id)  # we did not read: the silence is ours
        self._operations -= operations
        self._bytes -= size_bytes
        self._update_room()

    def _update_room(self) -> None:
        if self._operations < self._operations_max and self._bytes < self._bytes_max:
            self._room.set()
        else:
            self._room.clear()
