"""Limits of concurrent calls: reduced when a store asks to slow down, raised when it recovers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from ponor_runtime.disk import Buffer
from ponor_runtime.object_store import (
    ObjectAlreadyExistsError,
    ObjectStoreSlowDownError,
    ObjectStoreUnavailableError,
)
from s3stream.stores.congestion import ConcurrencyLimit, CongestionWindow
from s3stream.stores.policy import PolicyObjectStore

from libs.s3stream.tests.store_rig import MemoryObjectStore


class RefusingStore(MemoryObjectStore):
    """Let all concurrent calls fail with "slow down"."""

    async def put(self, key: str, buffers: Sequence[Buffer]) -> None:
        await asyncio.sleep(0.001)
        raise ObjectStoreSlowDownError(f"503 for {key}, {len(buffers)} buffers")


async def call(window: CongestionWindow, error: Exception | None = None) -> None:
    async with window.place():
        if error is not None:
            raise error


async def slowed(window: CongestionWindow) -> None:
    with pytest.raises(ObjectStoreSlowDownError):
        await call(window, ObjectStoreSlowDownError("503"))


async def test_slow_down_halves_the_limit_and_a_window_of_answers_adds_one() -> None:
    window = CongestionWindow(32)
    limits = []
    for _ in range(7):
        await slowed(window)
        limits.append(window.limit)
    assert limits == [16, 8, 4, 2, 1, 1, 1]
    for _ in range(1_000):
        await call(window)
    assert window.limit == 32


async def test_other_failures_do_not_change_the_limit() -> None:
    window = CongestionWindow(8)
    for error in (ObjectStoreUnavailableError("timeout"), ObjectAlreadyExistsError("taken")):
        with pytest.raises(type(error)):
            await call(window, error)
    assert window.limit == 8


async def test_concurrent_slow_downs_halve_the_limit_once() -> None:
    limit = ConcurrencyLimit(writes_in_flight_max=8)
    limited, window = PolicyObjectStore(RefusingStore(), [limit]), limit.writes
    puts = [limited.put(str(number), [b"x"]) for number in range(8)]
    outcomes = await asyncio.gather(*puts, return_exceptions=True)
    assert all(isinstance(each, ObjectStoreSlowDownError) for each in outcomes)
    assert window.limit == 4
    outcomes = await asyncio.gather(*[limited.put("again", [b"x"]) for _ in range(4)], return_exceptions=True)
    assert window.limit == 2


async def test_places_are_granted_in_order_and_a_cancelled_call_keeps_none() -> None:
    window = CongestionWindow(1)
    order: list[int] = []
    release = asyncio.Event()

    async def hold(number: int) -> None:
        async with window.place():
            order.append(number)
            await release.wait()

    calls = [asyncio.create_task(hold(number)) for number in range(4)]
    await asyncio.sleep(0)
    calls[1].cancel()
    await asyncio.sleep(0)
    assert window.in_flight == 1
    release.set()
    await asyncio.gather(*calls, return_exceptions=True)
    assert order == [0, 2, 3]
    assert window.in_flight == 0
