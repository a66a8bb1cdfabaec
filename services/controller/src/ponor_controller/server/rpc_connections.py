"""Serve connections on which tools send requests.

The requests of a connection are handled one after another. The number of connections and their idle time are
bounded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from ponor.common.v1 import error_pb2
from ponor_rpc.errors import OperationError
from ponor_runtime.network import Connection, ConnectionClosedError

CONNECTIONS_MAX: Final = 64
IDLE_SECONDS_MAX: Final = 60.0
"""An idle connection is closed after this time, so that hanging tools do not use up all connections."""


class RpcConnections:
    """The connections of one service."""

    def __init__(self, answer: Callable[[bytes], Awaitable[bytes]]) -> None:
        self._answer = answer
        self._connections = 0

    async def serve(self, connection: Connection) -> None:
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

    def require_room(self) -> None:
        """Refuse a request while too many callers are connected.

        Raises:
            OperationError: OVERLOADED.
        """
        if self._connections > CONNECTIONS_MAX:
            raise OperationError(
                error_pb2.ERROR_CODE_OVERLOADED,
                f"{CONNECTIONS_MAX} callers are connected to this service; try again later",
            )
