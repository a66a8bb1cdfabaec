"""Planted bug: a session whose Hello is not welcomed leaves its connection open."""

from __future__ import annotations

import pytest
from ponor_rpc.methods import SESSION
from ponor_runtime.network import Connection
from ponor_simulation.network import SimNetwork


class _KeptUntilHeard:
    """A connection that is closed only if the other end said something."""

    def __init__(self, inner: Connection) -> None:
        self._inner = inner
        self._heard = False

    async def send(self, frame: bytes) -> None:
        await self._inner.send(frame)

    def try_send(self, frame: bytes) -> bool:
        return self._inner.try_send(frame)

    async def receive(self) -> bytes:
        frame = await self._inner.receive()
        self._heard = True
        return frame

    async def close(self) -> None:
        if self._heard:
            await self._inner.close()


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""
    connect = SimNetwork.connect

    async def careless(self: SimNetwork, address: str, method: str) -> Connection:
        connection = await connect(self, address, method)
        return _KeptUntilHeard(connection) if method == SESSION else connection

    monkeypatch.setattr(SimNetwork, "connect", careless)
