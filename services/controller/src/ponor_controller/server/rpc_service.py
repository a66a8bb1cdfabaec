"""Serve the requests of tools.

The requests of a connection are handled one after another. The number of connections and their idle time are
bounded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

from google.protobuf.message import DecodeError, Message
from ponor.common.v1 import error_pb2
from ponor.metadata.v1 import records_pb2
from ponor_rpc.errors import OperationError
from ponor_runtime.network import Connection, ConnectionClosedError

from ponor_controller.kernel.decisions import invalid
from ponor_controller.kernel.leading import Leading, confirm_refusals, not_leading
from ponor_controller.kernel.proposer import Proposer

A = TypeVar("A", bound=Message)

CONNECTIONS_MAX: Final = 64
IDLE_SECONDS_MAX: Final = 60.0
"""An idle connection is closed after this time, so that hanging tools do not use up all connections."""


class RpcService(Generic[A]):
    """Base class of the services for tools. The requests of a connection are handled one after another.

    `handlers`: by request kind. With `leader_only`, other controllers refuse all requests.
    """

    def __init__(
        self,
        request: Any,
        response: type[A],
        handlers: Mapping[str, Callable[[Any], Awaitable[A]]],
        leading: Leading,
        proposer: Proposer,
        *,
        leader_only: bool,
    ) -> None:
        self._request = request
        self._response: Any = response
        self._handlers = handlers
        self._leading = leading
        self._proposer = proposer
        self._leader_only = leader_only
        self._connections = 0

    async def handle(self, connection: Connection) -> None:
        """Answer requests until the caller disconnects."""
        self._connections += 1
        try:
            while True:
                async with asyncio.timeout(IDLE_SECONDS_MAX):
                    frame = await connection.receive()
                response = await self._answer(frame)
                async with asyncio.timeout(IDLE_SECONDS_MAX):
                    await connection.send(response)
        except (ConnectionClosedError, TimeoutError):
            return
        finally:
            self._connections -= 1
            await connection.close()

    async def _answer(self, frame: bytes) -> bytes:
        try:
            if self._connections > CONNECTIONS_MAX:
                raise OperationError(
                    error_pb2.ERROR_CODE_OVERLOADED,
                    f"{CONNECTIONS_MAX} callers are connected to this service; try again later",
                )
            request = self._decode(frame)
            kind = request.WhichOneof("kind")
            if kind is None:
                raise invalid("the request has an unknown kind; upgrade the controller first")
            if self._leader_only:
                self._require_leading(kind)
            work = self._handlers[kind](getattr(request, kind))
            response = await confirm_refusals(work, self._leading, self._confirmed)
        except OperationError as error:
            response = self._response(error=error.to_proto())
        answer: bytes = response.SerializeToString()
        return answer

    def _decode(self, frame: bytes) -> Any:
        try:
            return self._request.FromString(frame)
        except DecodeError as error:
            raise invalid(f"a frame is not a {self._request.DESCRIPTOR.name}: {error}") from error

    def _require_leading(self, what: str) -> None:
        if not self._leading.is_leading:
            raise not_leading(self._leading, what)

    async def _room(self, what: str) -> None:
        """Wait for room. Call this before reading the view, because other proposals may change the view in
        the meantime.
        """
        self._require_leading(what)
        await self._proposer.room()
        self._require_leading(what)

    async def _commit(self, records: Sequence[records_pb2.Record]) -> int:
        """Commit the records and return their index. Without records, nothing changes: see `_confirmed`."""
        if not records:
            return await self._confirmed()
        index = self._proposer.propose(records)
        await self._proposer.commits.reached(index)
        return index

    async def _confirmed(self) -> int:
        """Return the newest index, when it is committed and a majority has confirmed this leader."""
        index = self._proposer.last_index
        await self._proposer.commits.reached(index)
        await self._leading.read_index()
        return index
