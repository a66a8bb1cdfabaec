"""A store that asks to slow down is asked for less, and for more again when it has recovered."""

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
    """Everybody is told to slow down, all at the same time."""

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


async def test_slow_down_halves_down_to_one_and_answers_add_one_a_window() -> None:
    window = CongestionWindow(32)
    limits = []
    for _ in range(7):
        await slowed(window)
        limits.append(window.limit)
    assert limits == [16, 8, 4, 2, 1, 1, 1]
    for _ in range(1_000):
        await call(window)
    assert window.limit == 32


async def test_other_failures_say_nothing_about_the_load() -> None:
    window = CongestionWindow(8)
    for error in (ObjectStoreUnavailableError("timeout"), ObjectAlreadyExistsError("taken")):
        with pytest.raises(type(error)):
            await call(window, error)
    assert window.limit == 8


async def test_calls_that_were_in_flight_together_halve_it_once() -> None:
    limit = ConcurrencyLimit(writes_in_flight_max=8)
    limited, window = PolicyObjectStore(RefusingStore(), [limit]), limit.writes
    puts = [limited.put(str(number), [b"x"]) for number in range(8)]
    outcomes = await asyncio.gather(*puts, return_exceptions=True)
    assert all(isinstance(each, ObjectStoreSlowDownError) for each in outcomes)
    assert window.limit == 4
    outcomes = await asyncio.gather(*[limited.put("again", [b"x"]) for _ in range(4)], return_exceptions=True)
    assert window.limit == 2


async def test_places_are_given_in_order_and_a_cancelled_call_keeps_none() -> None:
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
