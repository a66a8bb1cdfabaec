"""One client's connections to brokers, and the coordinators that it has looked up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

from ponor_kafka.errors import ErrorCode
from ponor_kafka.message import Message
from ponor_kafka.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ponor_runtime.network import ConnectionClosedError
from ponor_runtime.runtime import Runtime

from ponor_cluster_simulation.workload.kafka_client import KafkaClient

M = TypeVar("M", bound=Message)
GROUP: Final = 0
TRANSACTION: Final = 1
"""Key types of FindCoordinator."""
ANSWER_S_MAX: Final = 4.0


class NotSentError(Exception):
    """A request was not sent: its receiver is unknown or accepts no connection."""


class Connections:
    """Connections that are opened on demand; a broken one is replaced at the next request."""

    def __init__(self, name: str, bootstrap: Sequence[str]) -> None:
        self._name = name
        self._bootstrap = tuple(bootstrap)
        self._open: dict[str, KafkaClient] = {}
        self._coordinators: dict[tuple[int, str], str] = {}

    async def ask(
        self,
        runtime: Runtime,
        address: str,
        request: Message,
        version: int,
        expected: type[M],
        *,
        timeout_s: float = ANSWER_S_MAX,
    ) -> M:
        """Send a request to a broker.

        Raises:
            NotSentError: the broker accepts no connection.
            ConnectionClosedError: no answer; the broker may have executed the request.
        """
        client = self._open.get(address)
        if client is None or client.is_closed:
            client = await self._connect(runtime, address)
        return await client.ask(request, version, expected, timeout_s=timeout_s)

    async def ask_any(self, runtime: Runtime, request: Message, version: int, expected: type[M]) -> M:
        """Send a request to any broker; the errors are those of `ask`."""
        address = self._bootstrap[runtime.randomness.below(len(self._bootstrap))]
        return await self.ask(runtime, address, request, version, expected)

    async def ask_coordinator(
        self,
        runtime: Runtime,
        key_type: int,
        key: str,
        request: Message,
        version: int,
        expected: type[M],
        *,
        timeout_s: float = ANSWER_S_MAX,
    ) -> M:
        """Send a request to the coordinator of a group or transactional id.

        Raises:
            NotSentError: the coordinator is unknown, or accepts no connection.
            ConnectionClosedError: no answer; the coordinator may have executed the request.
        """
        address = self._coordinators.get((key_type, key))
        if address is None:
            address = await self._find(runtime, key_type, key)
            self._coordinators[key_type, key] = address
        return await self.ask(runtime, address, request, version, expected, timeout_s=timeout_s)

    def forget_coordinators(self) -> None:
        """Look up coordinators again, after an error."""
        self._coordinators.clear()

    async def close(self) -> None:
        """Close all connections."""
        for client in list(self._open.values()):
            await client.close()
        self._open.clear()

    async def _connect(self, runtime: Runtime, address: str) -> KafkaClient:
        try:
            client = await KafkaClient.connect(runtime, address, self._name)
        except ConnectionClosedError as error:
            raise NotSentError(str(error)) from error
        other = self._open.get(address)
        if other is not None and not other.is_closed:  # opened by another task in the meantime
            await client.close()
            return other
        self._open[address] = client
        if other is not None:
            await other.close()
        return client

    async def _find(self, runtime: Runtime, key_type: int, key: str) -> str:
        request = FindCoordinatorRequest(key=key, key_type=key_type)
        try:
            found = await self.ask_any(runtime, request, 3, FindCoordinatorResponse)
        except ConnectionClosedError as error:
            raise NotSentError(str(error)) from error
        if found.error_code != ErrorCode.NONE:
            raise NotSentError(f"no coordinator of {key}: {ErrorCode(found.error_code).name}")
        return f"{found.host}:{found.port}"
