"""Deletion of slots: delayed, in small batches, and as fast as slots are trimmed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise

from ponor_runtime.identity import NodeEpoch, NodeId
from ponor_runtime.tasks import BackgroundTasks, report_to_loop
from ponor_runtime.telemetry import Telemetry
from s3stream.object_wal.slot_deletion import KEYS_PER_CALL_MIN, LINGER_S, SlotDeletion, keys_per_call
from s3stream.ports import WalName

from libs.s3stream.tests.store_rig import InstantClock, MemoryObjectStore

CALL_S = 0.2


class SlowStore(MemoryObjectStore):
    """A store whose deletions take time. It records when each deletion began."""

    def __init__(self, clock: InstantClock) -> None:
        super().__init__()
        self._clock = clock
        self.deletes: list[tuple[float, int]] = []

    async def delete(self, keys: Sequence[str]) -> None:
        self.deletes.append((self._clock.now_ns / 1e9, len(keys)))
        await self._clock.sleep(CALL_S)


class World:
    def __init__(self) -> None:
        self.clock = InstantClock()
        self.store = SlowStore(self.clock)
        self.tasks = BackgroundTasks(report_to_loop)
        name = WalName("ns", NodeId(1), NodeEpoch(1))
        self.deletion = SlotDeletion(self.store, name, self.tasks, Telemetry(), self.clock)

    async def settle(self) -> None:
        while len(self.tasks):
            await asyncio.sleep(0)


async def test_deletion_starts_a_second_after_an_upload_in_small_batches_with_pauses() -> None:
    world = World()
    world.deletion.delete_below(50)
    await world.settle()
    counts = [count for _, count in world.store.deletes]
    assert counts == [KEYS_PER_CALL_MIN, KEYS_PER_CALL_MIN, 50 - 2 * KEYS_PER_CALL_MIN]
    times = [at for at, _ in world.store.deletes]
    assert times[0] >= LINGER_S
    assert all(after - before >= 4 * CALL_S for before, after in pairwise(times))


async def test_slots_of_a_closed_log_are_deleted_without_pauses() -> None:
    world = World()
    world.deletion.delete_below(500)
    await world.deletion.finish()
    assert world.store.deletes == [(0.0, 500)]


def test_a_long_queue_is_deleted_in_eight_calls() -> None:
    assert keys_per_call(7) == 7
    assert keys_per_call(100) == KEYS_PER_CALL_MIN
    assert keys_per_call(4_000) == 500
    assert keys_per_call(100_000) == 1_000
