"""The unanswered operations of a session, in the order of their ids. Bounds them, assigns ids, and encodes
frames.

It does no I/O and reads no clock; `session` drives it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from ponor.controller.v1.session_service_pb2 import Operation, OperationBatch, OperationResult, SessionRequest
from ponor_rpc.joined_messages import joined_messages, message_head, number_field

ENVELOPE_BYTES: Final = 32
"""Upper bound of the bytes of a frame without its operations, and of the bytes that an operation takes for
its id and length."""
OPERATIONS: Final = SessionRequest.OPERATIONS_FIELD_NUMBER
FIRST_INCOMPLETE_ID: Final = OperationBatch.FIRST_INCOMPLETE_ID_FIELD_NUMBER
OPERATION: Final = OperationBatch.OPERATIONS_FIELD_NUMBER
REQUEST_ID: Final = Operation.REQUEST_ID_FIELD_NUMBER


def encoded_operation(operation: Operation) -> bytes:
    """Encode an operation without its id. The frame contains the id before this encoding."""
    if operation.request_id:
        unnamed = Operation()
        unnamed.CopyFrom(operation)
        unnamed.ClearField("request_id")
        operation = unnamed
    return operation.SerializeToString()


@dataclass(slots=True, eq=False)
class PendingOperation:
    """An unanswered operation: its id, which is unique in this process, and its encoding without the id.

    `sent`: it was sent at least once, so it may have been executed.
    """

    request_id: int
    encoded: bytes
    answer: asyncio.Future[OperationResult]
    sent: bool = False

    @property
    def size_bytes(self) -> int:
        """Bytes that the operation counts against the limit of the window."""
        return len(self.encoded) + ENVELOPE_BYTES


@dataclass(slots=True, eq=False)
class _Place:
    """An operation that waits for room in the window."""

    encoded: bytes
    admitted: asyncio.Future[PendingOperation]


@dataclass(slots=True)
class OperationWindow:
    """At most `operations_max` operations with `bytes_max` bytes in total. Further ones wait in a queue.

    A frame has at most `frame_bytes_max` bytes, unless it contains a single larger operation.
    """

    operations_max: int
    bytes_max: int
    frame_bytes_max: int
    _pending: dict[int, PendingOperation] = field(default_factory=dict)
    _unsent: deque[PendingOperation] = field(default_factory=deque)
    _line: deque[_Place] = field(default_factory=deque)
    _size_bytes: int = 0
    _next_id: int = 1

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def size_bytes(self) -> int:
        """Bytes of the operations in the window."""
        return self._size_bytes

    @property
    def first_incomplete_id(self) -> int:
        """The lowest id of an unanswered operation, or the next id. All lower ids are complete."""
        return next(iter(self._pending), self._next_id)

    async def admit(self, encoded: bytes) -> PendingOperation:
        """Wait for room, then assign an id to an operation (from `encoded_operation`) and queue it for the
        next frame.
        """
        size_bytes = len(encoded) + ENVELOPE_BYTES
        assert size_bytes <= self.bytes_max, "the operation is larger than the window"
        if not self._line and self._has_room(size_bytes):
            return self._enter(encoded)
        place = _Place(encoded, asyncio.get_running_loop().create_future())
        self._line.append(place)
        try:
            return await place.admitted
        except asyncio.CancelledError:
            if place in self._line:
                self._line.remove(place)
                self._issue_next()
            elif place.admitted.done() and not place.admitted.cancelled():
                self.abandon(place.admitted.result())
            raise

    def complete(self, request_id: int) -> PendingOperation | None:
        """Remove an answered operation; return None if it was removed before (after a reconnect an answer may
        arrive twice).
        """
        pending = self._pending.pop(request_id, None)
        if pending is None:
            return None
        self._size_bytes -= pending.size_bytes
        self._issue_next()
        return pending

    def abandon(self, pending: PendingOperation) -> None:
        """Give up an operation. If it was sent, it stays in the window until its answer arrives, because the
        controller may execute it.
        """
        if not pending.sent and pending.request_id in self._pending:
            self._unsent.remove(pending)
            self.complete(pending.request_id)

    def send_again(self, request_id: int) -> None:
        """Queue an operation again, under the same id, because the controller did not accept it."""
        pending = self._pending.get(request_id)
        if pending is not None and pending not in self._unsent:
            self._unsent.append(pending)

    def send_all_again(self) -> None:
        """Queue all unanswered operations again, in order, for a new connection."""
        self._unsent = deque(self._pending.values())

    def next_frame(self) -> bytes | None:
        """Return an encoded `SessionRequest` with as many operations as fit; None if there is nothing to
        send.

        The encodings made by `encoded_operation` are copied, not made again.
        """
        if not self._unsent:
            return None
        parts = [number_field(FIRST_INCOMPLETE_ID, self.first_incomplete_id)]
        room = self.frame_bytes_max - ENVELOPE_BYTES
        while self._unsent and (self._unsent[0].size_bytes <= room or len(parts) == 1):
            pending = self._unsent.popleft()
            pending.sent = True
            room -= pending.size_bytes
            named = number_field(REQUEST_ID, pending.request_id)
            parts += (message_head(OPERATION, len(named) + len(pending.encoded)), named, pending.encoded)
        return joined_messages(OPERATIONS, sum(map(len, parts)), parts)

    def fail_all(self, error: Exception) -> None:
        """Fail all operations."""
        for pending in self._pending.values():
            if not pending.answer.done():
                pending.answer.set_exception(error)
        for place in self._line:
            if not place.admitted.done():
                place.admitted.set_exception(error)
        self._pending.clear()
        self._unsent.clear()
        self._line.clear()
        self._size_bytes = 0

    def _has_room(self, size_bytes: int) -> bool:
        return len(self._pending) < self.operations_max and self._size_bytes + size_bytes <= self.bytes_max

    def _enter(self, encoded: bytes) -> PendingOperation:
        request_id = self._next_id
        self._next_id += 1
        pending = PendingOperation(request_id, encoded, asyncio.get_running_loop().create_future())
        self._pending[request_id] = pending
        self._size_bytes += pending.size_bytes
        self._unsent.append(pending)
        return pending

    def _issue_next(self) -> None:
        """Admit waiting operations in order while there is room. Small operations do not overtake a large
        one.
        """
        while self._line and self._has_room(len(self._line[0].encoded) + ENVELOPE_BYTES):
            place = self._line.popleft()
            if not place.admitted.done():
                place.admitted.set_result(self._enter(place.encoded))
