"""One client's requests in their order: what may overlap, what must wait, and in which order answers leave.

What lives here: the queue of one connection, without sockets. Kafka promises answers in request order and clients rely on each request
seeing the effect of those before it; so one request is in process at a time, with one exception that costs nothing of this: a Produce may
start while earlier Produces of the connection still wait for the disk. Their appends were taken in order, their answers are sent in order.

A request that may start at once, as nearly all do, is never queued, and its answer needs no future: the handler gives back a `PendingAnswer`,
which is the request's place in the order. Measured: futures and their callbacks were 8 of the 28 us of a small Produce.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from ponor_kafka.api import ApiKey
from ponor_kafka.errors import KafkaWireError
from ponor_runtime.budgets import BudgetExceededError
from ponor_runtime.disk import Buffer

from ponor_broker.requests.request_flow import RequestFlow

Response: TypeAlias = Sequence[Buffer] | None
"""Buffers of one response frame; None: the request has no answer (acks=0)."""

QUEUED_REQUESTS_MAX: Final = 16
QUEUED_BYTES_MAX: Final = 1 << 20
QUEUED_OVERHEAD_BYTES: Final = 96
"""What a queued frame is charged beyond its bytes: the smallest requests are smaller than the object that holds them."""
PIPELINED_PRODUCES_MAX: Final = 64
_PRODUCE: Final = int(ApiKey.PRODUCE).to_bytes(2, "big")


class CloseConnectionError(Exception):
    """This connection must end, without an answer; the message says why. Other connections are not affected."""


@dataclass(slots=True)
class ConnectionContext:
    """What is known of a client, for handlers and log lines."""

    peer: str
    client_software_name: str = "unknown"
    client_software_version: str = "unknown"

    @property
    def host(self) -> str:
        """The client's address without its port."""
        return self.peer.rpartition(":")[0] or self.peer


class PendingAnswer:
    """The place of a request whose answer comes later. Whoever works on it calls `answer` once, in the loop's thread."""

    __slots__ = ("connection", "frame_bytes", "is_answered", "response")

    def __init__(self) -> None:
        self.connection: ClientConnection | None = None
        """Set while somebody waits for the answer."""
        self.frame_bytes = 0
        self.is_answered = False
        self.response: Response = None

    def answer(self, response: Response) -> None:
        """The request is done; its answer leaves when those before it have left."""
        assert not self.is_answered, "a request has one answer"
        self.response = response
        self.is_answered = True
        if self.connection is not None:
            self.connection.answered(self)

    def abandon(self) -> None:
        """The client is gone: nobody waits for the answer any more."""
        self.connection = None


Answer: TypeAlias = "Response | asyncio.Future[Response] | PendingAnswer"
"""What starting a request gives: its response at once, or a promise of it."""


class RequestDispatcher(Protocol):
    """What turns a request frame into a response."""

    def dispatch(self, frame: bytearray, connection: ConnectionContext, received_ns: int) -> Answer:
        """Start a request that was received at this monotonic time.

        Raises:
            KafkaWireError: malformed.
            CloseConnectionError: the protocol answers this by closing.
        """
        ...


class ConnectionOutput(Protocol):
    """Where a connection's answers and wishes go: the socket, or a simulated one."""

    def send(self, buffers: Sequence[Buffer]) -> None:
        """Write response frames: their buffers one after the other."""
        ...

    def want_reading(self, *, wanted: bool) -> None:
        """Whether more requests are welcome."""
        ...

    def end(self, reason: str | BaseException) -> None:
        """Close the connection, saying why in one line; an exception that is no protocol error is a bug and is shown in full."""
        ...


class _FutureAnswer(PendingAnswer):
    """The place of a request that a coroutine works on."""

    __slots__ = ("_work",)

    def __init__(self, work: asyncio.Future[Response]) -> None:
        super().__init__()
        self._work = work
        work.add_done_callback(self._worked)

    def _worked(self, work: asyncio.Future[Response]) -> None:
        error = CloseConnectionError("the request was cancelled") if work.cancelled() else work.exception()
        if self.connection is None:
            return
        if error is not None:
            self.connection.failed(error)
        else:
            self.answer(work.result())

    def abandon(self) -> None:
        super().abandon()
        self._work.cancel()


class ClientConnection:
    """See the module's docstring."""

    __slots__ = (
        "_admission",
        "_alone",
        "_closed",
        "_dispatcher",
        "_flow",
        "_flush_is_due",
        "_output",
        "_places",
        "_queue",
        "_queued_bytes",
        "_turn_is_due",
        "_wants_reading",
        "_writable",
        "context",
    )

    def __init__(
        self,
        dispatcher: RequestDispatcher,
        output: ConnectionOutput,
        context: ConnectionContext,
        flow: RequestFlow,
    ) -> None:
        self.context = context
        self._dispatcher = dispatcher
        self._output = output
        self._flow = flow
        self._queue: list[bytearray] = []  # nearly always empty, and a list is an order smaller than a deque
        self._queued_bytes = 0
        self._places: deque[PendingAnswer] | None = None  # made with the first answer that comes later
        self._alone = False  # the newest request in process is no Produce: nothing may start beside it
        self._admission: asyncio.Task[None] | None = None
        self._writable = True
        self._wants_reading = True
        self._flush_is_due = False
        self._turn_is_due = False
        self._closed = False

    @property
    def is_busy(self) -> bool:
        """Whether a request waits or is in process."""
        return bool(self._places or self._queue)

    # Requests

    def frames_received(self, frames: Sequence[bytearray]) -> None:
        """Whole requests arrived, in this order."""
        self._flow.note_read()
        for number, frame in enumerate(frames):
            if not self._queue and number < PIPELINED_PRODUCES_MAX and self._admits(frame):
                self._start(frame)
            else:
                self._enqueue(frame)
        if len(frames) > PIPELINED_PRODUCES_MAX:
            self._take_turn()  # its first ones may be answered already: nobody else would start the others

    def set_writable(self, *, writable: bool) -> None:
        """The client reads its answers fast enough, or not: then nothing new is started for it."""
        self._writable = writable
        if writable:
            self._take_turn()

    def closed(self) -> None:
        """The socket is gone: stop what can be stopped. Appends that were taken go on; their answers are dropped."""
        if self._closed:
            return
        self._closed = True
        self._flow.waiting.release(self._queued_bytes)
        self._queue.clear()
        self._queued_bytes = 0
        if self._admission is not None:
            self._admission.cancel()
        while self._places:
            place = self._places.popleft()
            self._flow.in_flight.release(place.frame_bytes)
            place.abandon()

    def _enqueue(self, frame: bytearray) -> None:
        if self._closed:
            return
        self._queue.append(frame)
        charge_bytes = len(frame) + QUEUED_OVERHEAD_BYTES
        self._queued_bytes += charge_bytes
        self._flow.waiting.charge(charge_bytes)
        self._apply_room()

    def _take_turn(self) -> None:
        if self._queue and not self._turn_is_due:
            self._turn_is_due = True
            self._flow.take_turn(self._start_queued)

    def _start_queued(self, starts_max: int) -> int:
        """Our turn. What cannot start now is tried again after an answer."""
        self._turn_is_due = False
        started = 0
        while self._queue and started < starts_max and self._admits(self._queue[0]):
            self._start(self._dequeue())
            started += 1
        if started == starts_max:
            self._take_turn()
        self._apply_room()
        return started

    def _dequeue(self) -> bytearray:
        frame = self._queue.pop(0)
        charge_bytes = len(frame) + QUEUED_OVERHEAD_BYTES
        self._queued_bytes -= charge_bytes
        self._flow.waiting.release(charge_bytes)
        return frame

    def _apply_room(self) -> None:
        has_room = len(self._queue) < QUEUED_REQUESTS_MAX and self._queued_bytes < QUEUED_BYTES_MAX
        if self._queue and self._flow.waiting.is_full:
            has_room = False
        if has_room != self._wants_reading and not self._closed:
            self._wants_reading = has_room
            self._output.want_reading(wanted=has_room)

    def _admits(self, frame: bytearray) -> bool:
        """Whether the request may start now; if so its bytes are charged."""
        if self._closed or not self._writable or self._admission is not None:
            return False
        places = self._places
        if places and (
            self._alone or len(places) >= PIPELINED_PRODUCES_MAX or not frame.startswith(_PRODUCE)
        ):
            return False
        if self._flow.in_flight.try_acquire(len(frame)):
            return True
        self._admission = asyncio.get_running_loop().create_task(self._wait_for_room(len(frame)))
        return False

    async def _wait_for_room(self, size_bytes: int) -> None:
        """Wait until other connections' requests are answered, for the request at the front of the queue."""
        try:
            await self._flow.in_flight.acquire(size_bytes)
        except BudgetExceededError as error:
            self._admission = None
            self.failed(error)
            return
        self._admission = None
        if self._closed:
            self._flow.in_flight.release(size_bytes)
        else:
            self._start(self._dequeue())
            self._take_turn()

    def _start(self, frame: bytearray) -> None:
        """Begin a request whose bytes are charged."""
        self._alone = not frame.startswith(_PRODUCE)
        flow = self._flow
        try:
            answer = self._dispatcher.dispatch(frame, self.context, flow.read_ns)
        except Exception as error:  # noqa: BLE001 - whatever it is, it ends this connection and no other
            flow.in_flight.release(len(frame))
            self.failed(error)
            return
        if isinstance(answer, PendingAnswer):  # nearly always; `_place`, without a call
            answer.connection = self
            answer.frame_bytes = len(frame)
            places = self._places
            if places is None:
                places = self._places = deque()
            places.append(answer)
            if answer.is_answered:
                self.answered(answer)
        elif isinstance(answer, asyncio.Future):
            self._place(_FutureAnswer(answer), len(frame))
        elif self._places:
            place = PendingAnswer()
            place.answer(answer)
            self._place(place, len(frame))
        else:
            flow.in_flight.release(len(frame))
            if answer is not None:
                self._output.send(answer)

    def _place(self, place: PendingAnswer, frame_bytes: int) -> None:
        place.connection = self
        place.frame_bytes = frame_bytes
        if self._places is None:
            self._places = deque()
        self._places.append(place)
        if place.is_answered:
            self.answered(place)

    # Answers

    def answered(self, place: PendingAnswer) -> None:
        """A request in process is answered; what may leave leaves at the end of this turn of the loop."""
        assert self._places, "an answer has a place"
        if self._places[0] is place and not self._flush_is_due:
            self._flush_is_due = True
            self._flow.flush_later(self._flush)

    def failed(self, error: BaseException) -> None:
        """A request ends this connection."""
        if self._closed:
            return
        expected = isinstance(error, KafkaWireError | CloseConnectionError | BudgetExceededError)
        self._output.end(str(error) if expected else error)
        self.closed()

    def _flush(self) -> None:
        self._flush_is_due = False
        places = self._places
        buffers: list[Buffer] = []
        answered_bytes = 0
        while places and places[0].is_answered:
            place = places.popleft()
            answered_bytes += place.frame_bytes
            if place.response is not None:
                buffers += place.response
        self._flow.in_flight.release(answered_bytes)
        if buffers:
            self._output.send(buffers)
        if self._queue:
            self._take_turn()
