"""Send frames to one node: results, heartbeats, and the reason for the end of the session.

Results of one turn of the event loop share frames up to a size limit. If the network does not accept a frame
at once, `run` sends it and the following ones. Every result answers one operation, so the limit of operations
in flight bounds the queue.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from ponor.common.v1 import error_pb2
from ponor.controller.v1 import session_service_pb2 as wire
from ponor_rpc.joined_messages import joined_messages, message_head
from ponor_runtime.network import Connection


class AnswerTurn:
    """Calls the added callbacks when `end` is called, or else at the end of this turn of the event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._due: list[Callable[[], None]] = []

    def add(self, flush: Callable[[], None]) -> None:
        """Call `flush` once at the end of the turn. `flush` must not raise."""
        if not self._due:
            self._loop.call_soon(self.end)
        self._due.append(flush)

    def end(self) -> None:
        """Call the callbacks now."""
        due, self._due = self._due, []
        for flush in due:
            flush()


RESULT_FRAME_BYTES = 256 * 1024
"""Target size of a frame of results; a larger result gets its own frame."""

RESULTS: Final = wire.SessionResponse.RESULTS_FIELD_NUMBER
RESULT: Final = wire.ResultBatch.RESULTS_FIELD_NUMBER


class _Frame(NamedTuple):
    """An encoded frame of results, the number of results, and the bytes of the answered operations."""

    encoded: bytes
    answered: int
    answered_bytes: int


class Outbox:
    """Sends frames in order. The last frame is the reason that `refuse` passes."""

    def __init__(
        self,
        connection: Connection,
        turn: AnswerTurn,
        heartbeat: Callable[[], wire.Heartbeat],
        heartbeat_seconds: float,
    ) -> None:
        self._connection = connection
        self._turn = turn
        self._heartbeat = heartbeat
        self._heartbeat_seconds = heartbeat_seconds
        self._results: deque[tuple[bytes, int]] = deque()
        self.on_sent: Callable[[int, int], None] = lambda _count, _bytes: None
        """Called with the number of results in a sent frame, and the bytes of the operations that they
        answer.
        """
        self._refusal: error_pb2.Error | None = None
        self._filled = asyncio.Event()
        self._flushes = False
        self._waits: _Frame | None = None
        """The frame that the network did not accept at once."""

    def put(self, result: bytes, operation_bytes: int) -> None:
        """Send the encoded result of an operation of `operation_bytes`."""
        self._results.append((result, operation_bytes))
        if not self._flushes:
            self._flushes = True
            self._turn.add(self._flush)

    def refuse(self, error: error_pb2.Error) -> None:
        """Send the reason for the end of the session, then stop. Unsent results are dropped; the node repeats
        these operations.
        """
        if self._refusal is None:
            self._refusal = error
        self._filled.set()

    async def run(self) -> None:
        """Send until refused.

        Raises:
            ConnectionClosedError: the connection was closed.
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
            while (frame := self._next_frame()) is not None:
                self._waits = frame
                await self._connection.send(frame.encoded)
                self._waits = None
                self.on_sent(frame.answered, frame.answered_bytes)
        await self._connection.send(wire.SessionResponse(refused=self._refusal).SerializeToString())

    def _flush(self) -> None:
        self._flushes = False
        if self._waits is None and (frame := self._next_frame()) is not None:
            if self._connection.try_send(frame.encoded):
                self.on_sent(frame.answered, frame.answered_bytes)
            else:
                self._waits = frame
        if self._waits is not None or self._results:
            self._filled.set()

    def _next_frame(self) -> _Frame | None:
        if self._refusal is not None:
            return None
        if self._waits is not None:
            return self._waits
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
        return (
            _Frame(joined_messages(RESULTS, size_bytes, parts), answered, answered_bytes) if parts else None
        )
