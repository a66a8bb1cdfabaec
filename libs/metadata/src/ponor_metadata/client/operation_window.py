"""The operations of one session that have no answer yet: bounded, in the order of their ids.

What lives here: admission, ids, and which operations the next frame carries. No I/O and no time; `session` drives it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from ponor.controller.v1.session_service_pb2 import Operation, OperationBatch, OperationResult, SessionRequest
from ponor_rpc.joined_messages import joined_messages, message_head, number_field

ENVELOPE_BYTES: Final = 32
"""Upper bound of what a frame adds around its operations, and of what one operation adds for its id and length."""
OPERATIONS: Final = SessionRequest.OPERATIONS_FIELD_NUMBER
FIRST_INCOMPLETE_ID: Final = OperationBatch.FIRST_INCOMPLETE_ID_FIELD_NUMBER
OPERATION: Final = OperationBatch.OPERATIONS_FIELD_NUMBER
REQUEST_ID: Final = Operation.REQUEST_ID_FIELD_NUMBER


def encoded_operation(operation: Operation) -> bytes:
    """An operation without its id, which leads it in a frame."""
    if operation.request_id:
        unnamed = Operation()
        unnamed.CopyFrom(operation)
        unnamed.ClearField("request_id")
        operation = unnamed
    return operation.SerializeToString()


@dataclass(slots=True, eq=False)
class PendingOperation:
    """An operation without an answer: its id in this process, and its encoding without the id. `sent`: it left at least once, so it may have been carried out."""

    request_id: int
    encoded: bytes
    answer: asyncio.Future[OperationResult]
    sent: bool = False

    @property
    def size_bytes(self) -> int:
        """What it takes of the window."""
        return len(self.encoded) + ENVELOPE_BYTES


@dataclass(slots=True, eq=False)
class _Place:
    """A place in the line of those who wait for room."""

    encoded: bytes
    admitted: asyncio.Future[PendingOperation]


@dataclass(slots=True)
class OperationWindow:
    """At most `operations_max` operations and `bytes_max` bytes; whoever comes later waits in line.

    A frame has at most `frame_bytes_max` bytes, unless it carries one operation alone.
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
        """Every operation below has been answered, or never left."""
        return next(iter(self._pending), self._next_id)

    async def admit(self, encoded: bytes) -> PendingOperation:
        """Wait for room, in line; then give the operation, encoded by `encoded_operation`, its id and put it up for the next frame."""
        size_bytes = len(encoded) + ENVELOPE_BYTES
        assert size_bytes <= self.bytes_max, "an operation that will never have room"
        if not self._line and self._has_room(size_bytes):
            return self._enter(encoded)
        place = _Place(encoded, asyncio.get_running_loop().create_future())
        self._line.append(place)
        try:
            return await place.admitted
        except asyncio.CancelledError:
            if place in self._line:
                self._line.remove(place)
                self._call_next()
            elif place.admitted.done() and not place.admitted.cancelled():
                self.abandon(place.admitted.result())
            raise

    def complete(self, request_id: int) -> PendingOperation | None:
        """The operation was answered and leaves; None if it had left before (an answer may come twice after a reconnect)."""
        pending = self._pending.pop(request_id, None)
        if pending is None:
            return None
        self._size_bytes -= pending.size_bytes
        self._call_next()
        return pending

    def abandon(self, pending: PendingOperation) -> None:
        """The caller gave up. What never left is forgotten; what left stays until its answer, because its id is in use."""
        if not pending.sent and pending.request_id in self._pending:
            self._unsent.remove(pending)
            self.complete(pending.request_id)

    def send_again(self, request_id: int) -> None:
        """The controller could not take the operation: put it up for a later frame, under the same id."""
        pending = self._pending.get(request_id)
        if pending is not None and pending not in self._unsent:
            self._unsent.append(pending)

    def send_all_again(self) -> None:
        """The connection is a new one: everything without an answer goes again, in order."""
        self._unsent = deque(self._pending.values())

    def next_frame(self) -> bytes | None:
        """An encoded `SessionRequest` with as many operations as fit; None when there is nothing to send. Nothing is encoded again: an operation is its id and what was encoded when it came."""
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
        """Nothing will be answered any more."""
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

    def _call_next(self) -> None:
        """Admit from the head of the line as long as there is room; nobody overtakes a large operation."""
        while self._line and self._has_room(len(self._line[0].encoded) + ENVELOPE_BYTES):
            place = self._line.popleft()
            if not place.admitted.done():
                place.admitted.set_result(self._enter(place.encoded))
