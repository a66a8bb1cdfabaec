"""Requests of one kind to any broker of the cluster; those to this broker skip the network."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

from ponor_kafka.errors import KafkaWireError
from ponor_kafka.message import Message
from ponor_runtime.network import ConnectionClosedError, FrameTooLargeError

from ponor_broker.peers.connection_pool import PeerConnections

Q = TypeVar("Q", bound=Message)
A = TypeVar("A", bound=Message)
REQUEST_S_MAX: Final = 10.0
"""Longest wait for an answer. It ends earlier if the broker is removed or fenced."""


class UnansweredError(Exception):
    """No answer arrived. The request may or may not have been processed."""


class RequestPort(Generic[Q, A]):
    """Sends all requests in one version.

    A broker that does not support the API or the version closes the connection, and `ask` raises
    `UnansweredError`.
    """

    def __init__(
        self,
        peers: PeerConnections,
        local: Callable[[Q], Awaitable[A]],
        *,
        node_id: int,
        version: int,
        answer: type[A],
    ) -> None:
        self._peers = peers
        self._local = local
        self._node_id = node_id
        self._version = version
        self._answer = answer

    async def ask(self, node_id: int, build: Callable[[], Q | None]) -> A | None:
        """Send a request and wait for its answer. `build` is called when the connection is open, in the
        event-loop turn that sends the request; if it returns None, nothing is sent.

        Raises:
            PeerUnavailableError, PeerGoneError: there is no connection; `build` was not called.
            UnansweredError: the request is too large, or it was sent and no valid answer arrived.
        """
        connection = None if node_id == self._node_id else await self._peers.connection(node_id)
        request = build()
        if request is None:
            return None
        try:
            if connection is None:
                async with asyncio.timeout(REQUEST_S_MAX):
                    return await self._local(request)
            return await connection.ask(request, self._version, self._answer, timeout_s=REQUEST_S_MAX)
        except (ConnectionClosedError, FrameTooLargeError, KafkaWireError, TimeoutError) as error:
            raise UnansweredError(f"broker {node_id}: {error}") from error
