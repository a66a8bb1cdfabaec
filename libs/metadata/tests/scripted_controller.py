"""A scripted controller on a real network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

from ponor_runtime.network import Connection, ConnectionClosedError, Listener, Network

Request = TypeVar("Request")
PATIENCE_SECONDS = 90.0
"""Long enough for a busy machine; only a hanging test reaches it."""


async def nothing_left() -> None:
    """Wait until all tasks of a test have ended, which depends on gRPC's threads too."""
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while left := [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]:
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"tasks outlive the test: {left}") from None


class ScriptedConnection(Generic[Request]):
    """The controller's end of a connection."""

    def __init__(self, connection: Connection, parse: Callable[[bytes], Request]) -> None:
        self._connection = connection
        self._parse = parse
        self.over = asyncio.Event()

    async def receive(self) -> Request:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return self._parse(await self._connection.receive())

    async def receive_raw(self) -> bytes:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self._connection.receive()

    async def send(self, message: Any) -> None:
        await self._connection.send(message.SerializeToString())

    async def wait_closed(self) -> None:
        """Read until the client closes the connection."""
        with suppress(ConnectionClosedError):
            while True:
                await self.receive()

    def hang_up(self) -> None:
        self.over.set()


class ScriptedController(Generic[Request]):
    """Accepts connections of one method and passes them to the test."""

    def __init__(self, network: Network, method: str, parse: Callable[[bytes], Request]) -> None:
        self._network = network
        self._method = method
        self._parse = parse
        self._arrived: asyncio.Queue[ScriptedConnection[Request]] = asyncio.Queue()
        self._accepted: list[ScriptedConnection[Request]] = []
        self._listener: Listener | None = None

    @property
    def address(self) -> str:
        assert self._listener is not None
        return self._listener.address

    async def start(self) -> None:
        self._listener = await self._network.listen("127.0.0.1:0", {self._method: self._serve})

    async def _serve(self, connection: Connection) -> None:
        scripted = ScriptedConnection(connection, self._parse)
        self._arrived.put_nowait(scripted)
        await scripted.over.wait()

    async def accept(self) -> ScriptedConnection[Request]:
        async with asyncio.timeout(PATIENCE_SECONDS):
            scripted = await self._arrived.get()
        self._accepted.append(scripted)
        return scripted

    async def close(self) -> None:
        for scripted in self._accepted:
            scripted.hang_up()
        while not self._arrived.empty():
            self._arrived.get_nowait().hang_up()
        assert self._listener is not None
        await self._listener.close()
