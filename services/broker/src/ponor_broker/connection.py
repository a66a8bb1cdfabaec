"""One client's requests in their order: what may overlap, what must wait, and in which order answers leave.

What lives here: the queue of one connection, without sockets. Kafka promises answers in request order and clients rely on each request
seeing the effect of those before it; so one request is in process at a time, with one exception that costs nothing of this: a Produce may
start while earlier Produces of the connection still wait for the disk. Their appends were taken in order, their answers are sent in order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol, TypeAlias

from ponor_kafka.api import ApiKey
from ponor_kafka.errors import KafkaWireError
from ponor_runtime.budgets import BudgetExceededError, ByteBudget
from ponor_runtime.disk import Buffer

Response: TypeAlias = Sequence[Buffer] | None
"""Buffers of one response frame; None: the request has no answer (acks=0)."""

QUEUED_REQUESTS_MAX: Final = 16
QUEUED_BYTES_MAX: Final = 1 << 20
PIPELINED_PRODUCES_MAX: Final = 64


class CloseConnectionError(Exception):
    """This connection must end, without an answer; the message says why. Other connections are not affected."""


@dataclass(slots=True)
class ConnectionContext:
    """What is known of a client, for handlers and log lines."""

    peer: str
    client_software_name: str = "unknown"
    client_software_version: str = "unknown"


class RequestDispatcher(Protocol):
    """What turns a request frame into a response."""

    def dispatch(
        self, frame: bytearray, connection: ConnectionContext
    ) -> Response | asyncio.Future[Response]:
        """Start a request.

        Raises:
            KafkaWireError: malformed.
            CloseConnectionError: the protocol answers this by closing.
        """
        ...


class ConnectionOutput(Protocol):
    """Where a connection's answers and wishes go: the socket, or a simulated one."""

    def send(self, buffers: Sequence[Buffer]) -> None:
        """Write one response frame."""
        ...

    def want_reading(self, *, wanted: bool) -> None:
        """Whether more requests are welcome."""
        ...

    def end(self, reason: str | BaseException) -> None:
        """Close the connection, saying why in one line; an exception that is no protocol error is a bug and is shown in full."""
        ...


@dataclass(slots=True)
class _Slot:
    """A request in process; `response` counts once `done`."""

    frame_bytes: int
    done: bool = False
    response: Response = None
    work: asyncio.Future[Response] | None = field(default=None, repr=False)


class ClientConnection:
    """See the module's docstring. `in_flight` is charged with a request's bytes until its answer was handed over."""

    def __init__(
        self,
        dispatcher: RequestDispatcher,
        output: ConnectionOutput,
        context: ConnectionContext,
        in_flight: ByteBudget,
    ) -> None:
        self.context = context
        self._dispatcher = dispatcher
        self._output = output
        self._budget = in_flight
        self._queue: deque[bytearray] = deque()
        self._queued_bytes = 0
        self._slots: deque[_Slot] = deque()
        self._alone = False  # the newest slot is no Produce: nothing may start beside it
        self._admission: asyncio.Task[None] | None = None
        self._writable = True
        self._closed = False
        self._advancing = False

    @property
    def is_busy(self) -> bool:
        """Whether a request waits or is in process."""
        return bool(self._slots or self._queue)

    def frame_received(self, frame: bytearray) -> None:
        """A whole request arrived."""
        self._queue.append(frame)
        self._queued_bytes += len(frame)
        self._advance()

    def set_writable(self, *, writable: bool) -> None:
        """The client reads its answers fast enough, or not: then nothing new is started for it."""
        self._writable = writable
        if writable:
            self._advance()

    def closed(self) -> None:
        """The socket is gone: stop what can be stopped. Appends that were taken go on; their answers are dropped."""
        if self._closed:
            return
        self._closed = True
        self._queue.clear()
        if self._admission is not None:
            self._admission.cancel()
        for slot in self._slots:
            if slot.work is not None:
                slot.work.cancel()
            if slot.done:
                self._budget.release(slot.frame_bytes)

    def _advance(self) -> None:
        if self._advancing:
            return  # a request that was answered at once: the loop below goes on
        self._advancing = True
        try:
            while self._may_start():
                frame = self._queue[0]
                if not self._budget.try_acquire(len(frame)):
                    self._admission = asyncio.get_running_loop().create_task(self._admit(len(frame)))
                    break
                self._start_next()
        finally:
            self._advancing = False
        if not self._closed:
            has_room = len(self._queue) < QUEUED_REQUESTS_MAX and self._queued_bytes < QUEUED_BYTES_MAX
            self._output.want_reading(wanted=has_room)

    def _may_start(self) -> bool:
        if not self._queue or self._closed or not self._writable or self._admission is not None:
            return False
        if not self._slots:
            return True
        return not self._alone and _is_produce(self._queue[0]) and len(self._slots) < PIPELINED_PRODUCES_MAX

    async def _admit(self, size_bytes: int) -> None:
        """Wait until other connections' requests are answered."""
        try:
            await self._budget.acquire(size_bytes)
        except BudgetExceededError as error:
            self._admission = None
            self._end(error)
            return
        self._admission = None
        if self._closed:
            self._budget.release(size_bytes)
        else:
            self._start_next()
            self._advance()

    def _start_next(self) -> None:
        frame = self._queue.popleft()
        self._queued_bytes -= len(frame)
        self._alone = not _is_produce(frame)
        slot = _Slot(len(frame))
        self._slots.append(slot)
        try:
            answer = self._dispatcher.dispatch(frame, self.context)
        except Exception as error:  # noqa: BLE001 - whatever it is, it ends this connection and no other
            slot.done = True
            self._end(error)
            return
        if isinstance(answer, asyncio.Future):
            slot.work = answer
            answer.add_done_callback(partial(self._worked, slot))
        else:
            self._answer(slot, answer)

    def _worked(self, slot: _Slot, work: asyncio.Future[Response]) -> None:
        if work.cancelled():
            error: BaseException | None = CloseConnectionError("the request was cancelled")
        else:
            error = work.exception()
        slot.work = None
        if self._closed:
            slot.done = True
            self._budget.release(slot.frame_bytes)
        elif error is not None:
            slot.done = True
            self._end(error)
        else:
            self._answer(slot, work.result())

    def _answer(self, slot: _Slot, response: Response) -> None:
        slot.done = True
        slot.response = response
        while self._slots and self._slots[0].done and not self._closed:
            first = self._slots.popleft()
            self._budget.release(first.frame_bytes)
            if first.response is not None:
                self._output.send(first.response)
        self._advance()

    def _end(self, reason: BaseException) -> None:
        expected = isinstance(reason, KafkaWireError | CloseConnectionError | BudgetExceededError)
        self._output.end(str(reason) if expected else reason)
        self.closed()


def _is_produce(frame: bytearray) -> bool:
    return int.from_bytes(frame[:2], "big") == ApiKey.PRODUCE
