"""A Kafka client's connection on the simulated network: frames, headers and correlation ids."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple, TypeVar, cast

from ponor_kafka.codec import decode_as, encode, response_class
from ponor_kafka.headers import decode_response_header, encode_request_header
from ponor_kafka.message import Message
from ponor_runtime.network import Connection, ConnectionClosedError
from ponor_runtime.runtime import Runtime

from ponor_cluster_simulation.cluster.kafka_frontend import KAFKA

M = TypeVar("M", bound=Message)


class _Request(NamedTuple):
    """An unanswered request."""

    correlation_id: int
    api_key: int
    version: int
    answer: asyncio.Future[Message]
    arrived: Callable[[Message], None] | None


class KafkaClient:
    """One connection. Many requests may be in flight; a broken connection fails them all."""

    def __init__(self, connection: Connection, name: str) -> None:
        self._wire = connection
        self._name = name
        self._correlation_id = 0
        self._pending: deque[_Request] = deque()
        self._closed = False
        self._reader = asyncio.get_running_loop().create_task(self._read())

    @classmethod
    async def connect(cls, runtime: Runtime, address: str, name: str) -> KafkaClient:
        """Open a connection.

        Raises:
            ConnectionClosedError: no listener, or no answer.
        """
        return cls(await runtime.network.connect(address, KAFKA), name)

    @classmethod
    @asynccontextmanager
    async def connected(cls, runtime: Runtime, address: str, name: str) -> AsyncIterator[KafkaClient]:
        """Open a connection for the block; the errors are those of `connect`."""
        client = await cls.connect(runtime, address, name)
        try:
            yield client
        finally:
            await client.close()

    @property
    def under_way(self) -> int:
        """Number of unanswered requests."""
        return len(self._pending)

    @property
    def is_closed(self) -> bool:
        """Whether the connection was closed here or has broken."""
        return self._closed

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

        `arrived` is called when the answer arrives, in the order of the requests. Waiting tasks may
        wake in any order.

        Raises:
            ConnectionClosedError: the connection broke, or the answer timed out and the connection
                was closed.
        """
        self._correlation_id += 1
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        call = cast("Callable[[Message], None] | None", arrived)
        self._pending.append(_Request(self._correlation_id, request.API_KEY, version, answer, call))
        header = encode_request_header(request.API_KEY, version, self._correlation_id, self._name)
        try:
            async with asyncio.timeout(timeout_s):
                await self._wire.send(header + encode(request, version))
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
        self._correlation_id += 1
        header = encode_request_header(request.API_KEY, version, self._correlation_id, self._name)
        await self._wire.send(header + encode(request, version))

    async def close(self) -> None:
        """Close the connection; unanswered requests fail."""
        if not self._closed:
            self._closed = True
            self._reader.cancel()
            await self._wire.close()
            self._fail_all()

    async def _read(self) -> None:
        with suppress(ConnectionClosedError):
            while True:
                self._take(await self._wire.receive())
        self._closed = True
        await self._wire.close()
        self._fail_all()

    def _take(self, frame: bytes) -> None:
        request = self._pending.popleft()
        answered, position = decode_response_header(request.api_key, request.version, frame)
        assert answered == request.correlation_id, "answers come in the order of the requests"
        response, _ = decode_as(response_class(request.api_key), request.version, frame, position)
        if not request.answer.done():
            try:
                if request.arrived is not None:
                    request.arrived(response)
            except AssertionError as error:  # a failed check of the scenario: raise it in the waiting task
                request.answer.set_exception(error)
            else:
                request.answer.set_result(response)

    def _fail_all(self) -> None:
        while self._pending:
            answer = self._pending.popleft().answer
            if not answer.done():
                answer.set_exception(ConnectionClosedError("the connection broke"))
                answer.exception()
