"""One subscriber: send and receive its frames, and bound the bytes that were sent and not acknowledged."""

from __future__ import annotations

import asyncio
from collections import deque

from google.protobuf.message import DecodeError
from ponor.common.v1 import error_pb2
from ponor.controller.v1 import subscription_service_pb2 as wire
from ponor_rpc.errors import OperationError
from ponor_runtime.network import Connection, ConnectionClosedError
from ponor_runtime.observer_clock import ObserverClock

from ponor_controller.kernel.leading import Leading

READS_MAX = 64
"""Bound of the linearizable reads of one subscriber that wait for confirmation."""


class Subscriber:
    """One subscription, after its first frame.

    Attributes:
        sent_index: the newest index that was sent; it never falls.
        more: set when batches, an ack or an answer arrive.
        probe: number of the newest probe that a Progress must still answer; 0 for none.
        answers: confirmed read indices that wait to be sent.
    """

    def __init__(
        self,
        connection: Connection,
        leading: Leading,
        *,
        window_bytes: int,
        silence_ms_max: int,
        observed: ObserverClock,
    ) -> None:
        self._connection = connection
        self._leading = leading
        self._window_bytes = window_bytes
        self._silence_seconds = silence_ms_max / 1000
        self._observed = observed
        self._sent_bytes = 0
        self._received_bytes = 0
        # A dict and not a set, so that reads are cancelled in the order of arrival.
        self._reads: dict[asyncio.Task[None], None] = {}
        self.sent_index = 0
        self.more = asyncio.Event()
        self.probe = 0
        self.newest_probe = 0
        self.answers: deque[wire.ReadIndexResponse] = deque()

    @property
    def has_room(self) -> bool:
        """Whether the unacknowledged bytes are below the bound."""
        return self._sent_bytes - self._received_bytes < self._window_bytes

    async def send(self, frame: bytes) -> None:
        """Send an encoded SubscribeResponse.

        Raises:
            ConnectionClosedError: the connection was closed.
        """
        self._sent_bytes += len(frame)
        await self._connection.send(frame)

    async def room(self) -> None:
        """Wait until there is room. The wait ends when `listen` fails for silence of the subscriber."""
        while not self.has_room:
            self.more.clear()
            await self.more.wait()

    async def listen(self) -> None:
        """Receive frames until the subscriber disconnects, is silent for too long, or violates the protocol.

        The subscriber acknowledges every frame at once, so silence means that the subscriber, or one
        direction of the connection, has failed.
        """
        try:
            while True:
                async with self._observed.timeout(self._silence_seconds):
                    encoded = await self._connection.receive()
                request = wire.SubscribeRequest.FromString(encoded)
                kind = request.WhichOneof("frame")
                if kind == "ack":
                    self._acknowledged(request.ack)
                elif kind == "read_index" and len(self._reads) < READS_MAX:
                    self._begin_read(request.read_index.context)
                else:
                    return
        except (ConnectionClosedError, DecodeError, TimeoutError):
            return
        finally:
            for read in self._reads:
                read.cancel()

    def _acknowledged(self, ack: wire.SubscribeAck) -> None:
        self._received_bytes = max(self._received_bytes, min(ack.received_bytes, self._sent_bytes))
        if ack.probe > self.newest_probe:
            self.probe = self.newest_probe = ack.probe
        self.more.set()

    def _begin_read(self, context: int) -> None:
        read = asyncio.get_running_loop().create_task(self._read(context), name="subscription-read-index")
        self._reads[read] = None
        read.add_done_callback(self._reads.pop)

    async def _read(self, context: int) -> None:
        answer = wire.ReadIndexResponse(context=context)
        try:
            answer.index = await self._leading.read_index()
        except OperationError as error:
            answer.error.CopyFrom(error.to_proto())
        self.answers.append(answer)
        self.more.set()


async def receive_start(connection: Connection) -> wire.SubscribeStart:
    """Receive the first frame.

    Raises:
        OperationError: INVALID_REQUEST for any other frame.
        ConnectionClosedError: the subscriber is gone.
    """
    try:
        request = wire.SubscribeRequest.FromString(await connection.receive())
    except DecodeError as error:
        raise OperationError(
            error_pb2.ERROR_CODE_INVALID_REQUEST, f"a frame is not a SubscribeRequest: {error}"
        ) from error
    if request.WhichOneof("frame") != "start":
        raise OperationError(
            error_pb2.ERROR_CODE_INVALID_REQUEST, "the first frame of a subscription must be a start"
        )
    return request.start
