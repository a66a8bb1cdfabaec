"""Frames on their way to one node.

What lives here: results gathered over one turn of the loop into as few frames as the size limit allows, a heartbeat when there is nothing to say,
and the last word when a session is refused. Bounded by the operations in flight: every result answers one of them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from ponor.common.v1 import error_pb2
from ponor.controller.v1 import session_service_pb2 as wire
from ponor_rpc.joined_messages import joined_messages, message_head
from ponor_runtime.network import Connection

RESULT_FRAME_BYTES = 256 * 1024
"""Target size of a frame of results; a larger single result goes alone."""

RESULTS: Final = wire.SessionResponse.RESULTS_FIELD_NUMBER
RESULT: Final = wire.ResultBatch.RESULTS_FIELD_NUMBER


class Outbox:
    """Sends in the order given; `refuse` is the last."""

    def __init__(
        self, connection: Connection, heartbeat: Callable[[], wire.Heartbeat], heartbeat_seconds: float
    ) -> None:
        self._connection = connection
        self._heartbeat = heartbeat
        self._heartbeat_seconds = heartbeat_seconds
        self._results: deque[tuple[bytes, int]] = deque()
        self.on_sent: Callable[[int, int], None] = lambda _count, _bytes: None
        """Told how many results a frame had that was handed to the network, and the bytes of the operations that they answer."""
        self._refusal: error_pb2.Error | None = None
        self._filled = asyncio.Event()

    def put(self, result: bytes, operation_bytes: int) -> None:
        """Send the encoded result of an operation of this size."""
        self._results.append((result, operation_bytes))
        self._filled.set()

    def refuse(self, error: error_pb2.Error) -> None:
        """Send why the session is over, then end; results still waiting are dropped: the node asks again elsewhere."""
        if self._refusal is None:
            self._refusal = error
        self._filled.set()

    async def run(self) -> None:
        """Send until refused.

        Raises:
            ConnectionClosedError: the node is gone.
        """
        while self._refusal is None:
            try:
                async with asyncio.timeout(self._heartbeat_seconds):
                    await self._filled.wait()
            except TimeoutError:
                await self._connection.send(
                    wire.SessionResponse(heartbeat=self._heartbeat()).SerializeToString()
                )
                continue
            self._filled.clear()
            while self._results and self._refusal is None:
                await self._send_results()
        await self._connection.send(wire.SessionResponse(refused=self._refusal).SerializeToString())

    async def _send_results(self) -> None:
        parts: list[bytes] = []
        size_bytes = answered = answered_bytes = 0
        while self._results:
            result, operation_bytes = self._results[0]
            head = message_head(RESULT, len(result))
            if answered and size_bytes + len(head) + len(result) > RESULT_FRAME_BYTES:
                break
            self._results.popleft()
            parts += (head, result)
            size_bytes += len(head) + len(result)
            answered += 1
            answered_bytes += operation_bytes
        await self._connection.send(joined_messages(RESULTS, size_bytes, parts))
        self.on_sent(answered, answered_bytes)
