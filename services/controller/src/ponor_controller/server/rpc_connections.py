"""Tools that ask a controller one question after the other: the same door for every service that answers them.

What lives here: the bounds on callers, and that each is answered one by one, in order. What a question means is the service's.
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
"""Who asks nothing for so long is let go: callers that hang must not keep operators out."""


class Callers:
    """Whoever is connected to one service."""

    def __init__(self, answer: Callable[[bytes], Awaitable[bytes]]) -> None:
        self._answer = answer
        self._connections = 0

    async def serve(self, connection: Connection) -> None:
        """Answer until the caller goes."""
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
        """Refuse one caller too many.

        Raises:
            OperationError: OVERLOADED.
        """
        if self._connections > CONNECTIONS_MAX:
            raise OperationError(
                error_pb2.ERROR_CODE_OVERLOADED,
                f"{CONNECTIONS_MAX} callers ask this service already; try again later",
            )
