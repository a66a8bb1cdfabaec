"""The client's side of one Kafka connection: pipelined requests over the network port."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar, cast

from ponor_kafka.client_requests import ClientRequests
from ponor_kafka.errors import KafkaWireError
from ponor_kafka.message import Message
from ponor_runtime.network import Connection, ConnectionClosedError, FrameTooLargeError

M = TypeVar("M", bound=Message)
IN_FLIGHT_MAX: Final = 1_000
"""Unanswered requests of one connection; further ones wait."""


class _Request(NamedTuple):
    """The caller's side of an unanswered request."""

    answer: asyncio.Future[Message]
    arrived: Callable[[Message], None] | None


class KafkaConnection:
    """One connection. A request that times out closes it, because answers come in the order of the requests:
    later answers would wait for the missing one. A broken connection fails all requests.
    """

    def __init__(self, wire: Connection, client_id: str, *, in_flight_max: int = IN_FLIGHT_MAX) -> None:
        self._wire = wire
        self._requests: ClientRequests[_Request] = ClientRequests(client_id)
        self._slots = asyncio.Semaphore(in_flight_max)
        self._end: Exception | None = None
        self._reader = asyncio.get_running_loop().create_task(self._read(), name="Kafka answers")

    @property
    def under_way(self) -> int:
        """Number of unanswered requests."""
        return len(self._requests)

    @property
    def is_closed(self) -> bool:
        """Whether the connection was closed here or has broken."""
        return self._end is not None

    async def ask(
        self,
        request: Message,
        version: int,
        expected: type[M],
        *,
        timeout_s: float,
        arrived: Callable[[M], None] | None = None,
    ) -> M:
        """Send a request and wait for its answer; requests leave in the order of the calls.

        `arrived` is called when the answer arrives, in the order of the requests; callers may resume in any
        order.

        Raises:
            ConnectionClosedError: the connection broke, or the answer timed out and the connection
                was closed.
            KafkaWireError: an answer violated the protocol, and the connection was closed.
            FrameTooLargeError: the request is too large; other requests are not affected.
        """
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        call = cast("Callable[[Message], None] | None", arrived)
        try:
            async with asyncio.timeout(timeout_s):
                await self._acquire_slot()
                await self._send_or_forget(self._requests.ask(request, version, _Request(answer, call)))
                result = await answer
        except TimeoutError as error:
            await self.close()
            raise ConnectionClosedError(f"no answer within {timeout_s} s") from error
        assert isinstance(result, expected)
        return result

    async def tell(self, request: Message, version: int) -> None:
        """Send a request without an answer, such as Produce with acks 0.

        Raises:
            ConnectionClosedError: the connection broke before the request was sent.
        """
        await self._send(self._requests.tell(request, version))

    async def close(self) -> None:
        """Close the connection; unanswered requests fail. Idempotent."""
        self._break(ConnectionClosedError("this broker closed the connection"))
        await self._wire.close()

    async def wait_closed(self) -> None:
        """Return when the connection was closed or has broken."""
        await asyncio.wait((self._reader,))

    async def _acquire_slot(self) -> None:
        await self._slots.acquire()
        if self._end is not None:
            self._slots.release()  # so that the next waiting caller fails as well
            raise self._end

    async def _send_or_forget(self, frame: bytes) -> None:
        """Send the frame of the newest request. If it is too large, no answer will arrive."""
        try:
            await self._send(frame)
        except FrameTooLargeError:
            self._requests.forget_newest()
            self._slots.release()
            raise

    async def _send(self, frame: bytes) -> None:
        try:
            await self._wire.send(frame)
        except asyncio.CancelledError:
            # The frame may have been sent or not: the order of later answers is unknown.
            self._break(ConnectionClosedError("a request was cancelled while it was sent"))
            raise

    async def _read(self) -> None:
        try:
            while True:
                self._take(await self._wire.receive())
        except (ConnectionClosedError, KafkaWireError) as error:
            self._break(error)
        finally:
            await self._wire.close()

    def _take(self, frame: bytes) -> None:
        request, response = self._requests.answer(frame)
        self._slots.release()
        if not request.answer.done():
            try:
                if request.arrived is not None:
                    request.arrived(response)
            except Exception as error:  # noqa: BLE001 - the caller's own error: raise it in its task
                request.answer.set_exception(error)
            else:
                request.answer.set_result(response)

    def _break(self, error: Exception) -> None:
        if self._end is not None:
            return
        self._end = error
        if asyncio.current_task() is not self._reader:
            self._reader.cancel()
        for request in self._requests.give_up():
            if not request.answer.done():
                request.answer.set_exception(error)
                request.answer.exception()  # a caller that timed out does not read it
        self._slots.release()
