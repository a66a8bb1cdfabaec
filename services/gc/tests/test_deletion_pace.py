"""Tests of the deletion rate: additive increase, halving on "slow down"."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from ponor_gc.deletion_pace import KEYS_PER_S_FIRST, KEYS_PER_S_STEP, DeletionPace
from ponor_gc.settings import GcSettings
from ponor_runtime.object_store import ObjectStoreSlowDownError
from ponor_runtime.runtime import Runtime
from ponor_runtime.telemetry import Telemetry
from s3stream.stores.open_store import wrap_object_store
from s3stream.stores.policy import Operation, PolicyObjectStore

from libs.s3stream.tests.store_rig import Failure, InstantClock, MemoryObjectStore
from services.gc.tests.bucket_world import BucketWorld


def _pace(clock: InstantClock | None = None, **settings: Any) -> DeletionPace:
    return DeletionPace(clock or InstantClock(), GcSettings(**settings), Telemetry())


async def _take(pace: DeletionPace, keys: Sequence[int]) -> None:
    for number in keys:
        await pace.call(Operation("delete", "k", keys=number), _succeed)


async def _succeed() -> None:
    return None


async def _slow_down() -> None:
    await asyncio.sleep(0)
    raise ObjectStoreSlowDownError("503 Slow Down")


async def _slowed(pace: DeletionPace, calls: int = 1) -> None:
    attempts = [pace.call(Operation("delete", "k"), _slow_down) for _ in range(calls)]
    outcomes = await asyncio.gather(*attempts, return_exceptions=True)
    assert all(isinstance(outcome, ObjectStoreSlowDownError) for outcome in outcomes)


async def test_deletions_wait_for_earlier_keys() -> None:
    clock = InstantClock()
    pace = _pace(clock, delete_keys_per_s_min=100, delete_keys_per_s_max=100)
    await _take(pace, [50, 200, 1])
    assert clock.slept == [0.5, 2.0]


async def test_other_calls_pass() -> None:
    clock = InstantClock()
    pace = _pace(clock, delete_keys_per_s_min=1, delete_keys_per_s_max=1)
    await _take(pace, [100])
    await pace.call(Operation("put", "k"), _succeed)
    assert clock.slept == []


async def test_rate_rises_by_steps_and_halves_once_for_all_calls_in_flight() -> None:
    pace = _pace(delete_keys_per_s_max=1_000)
    assert pace.keys_per_s == KEYS_PER_S_FIRST
    await _take(pace, [1] * 4)
    assert pace.keys_per_s == KEYS_PER_S_FIRST + 4 * KEYS_PER_S_STEP == 700
    await asyncio.sleep(0)
    await _slowed(pace, calls=3)
    assert pace.keys_per_s == 350
    await _slowed(pace)
    assert pace.keys_per_s == 175


async def test_rate_stays_within_bounds() -> None:
    pace = _pace(delete_keys_per_s_min=40, delete_keys_per_s_max=600)
    await _take(pace, [1] * 50)
    assert pace.keys_per_s == 600
    for _ in range(10):
        await _slowed(pace)
    assert pace.keys_per_s == 40


async def test_store_gets_a_thousand_keys_per_call_and_slow_down_lowers_the_rate() -> None:
    inner = MemoryObjectStore()
    for number in range(2_500):
        await inner.put(f"{number}", [b"x"])
    pace = _pace()
    store = PolicyObjectStore(inner, [pace])
    inner.fail("delete", Failure(ObjectStoreSlowDownError("503 Slow Down")))
    keys = [f"{number}" for number in range(2_500)]
    with pytest.raises(ObjectStoreSlowDownError):
        await store.delete(keys)
    assert pace.keys_per_s == KEYS_PER_S_FIRST / 2
    await store.delete(keys)
    assert [call[3] for call in inner.calls if call[0] == "delete"] == [1_000, 1_000, 1_000, 500]
    assert inner.objects == {}
    assert pace.keys_per_s == KEYS_PER_S_FIRST / 2 + 3 * KEYS_PER_S_STEP


def test_pace_sees_every_slow_down_despite_retries() -> None:
    world = BucketWorld()

    async def story(runtime: Runtime) -> None:
        inner = MemoryObjectStore()
        await inner.put("a", [b"x"])
        pace = DeletionPace(runtime.clock, GcSettings(delete_keys_per_s_min=1), runtime.telemetry)
        store = wrap_object_store(inner, runtime=runtime, policy=pace)
        inner.fail("delete", *(Failure(ObjectStoreSlowDownError("503 Slow Down")) for _ in range(3)))
        await store.delete(["a"])
        assert inner.objects == {}
        assert pace.keys_per_s == KEYS_PER_S_FIRST / 8 + KEYS_PER_S_STEP
        requests = runtime.telemetry.counter(
            "ponor_object_store_requests_total", **{"op": "delete", "class": "delete"}
        )
        assert requests.value == 4

    world.play(story)
