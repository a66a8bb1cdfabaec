"""A storage node in temporary trouble: a full disk, a store that is down or slow, clocks that jump.

Clients append all the time. No acknowledged record is lost, memory and log stay within their bounds, and
refused clients get a retriable error. When the trouble ends, the node continues without a restart.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
from ponor_runtime.runtime import Runtime
from ponor_simulation.object_store import StoreFaults
from ponor_simulation.process import wait_until
from s3stream.client import StreamClient
from s3stream.errors import AppendBackpressureError
from s3stream.settings import KIB, StorageSettings
from s3stream.stream import Stream

from tests.simulation.storage_world import SETTINGS, World

STORY_SEEDS = max(int(os.environ.get("PONOR_SEEDS", "200")) // 200, 1)
PAYLOAD_BYTES = 2 * KIB
IN_FLIGHT_MAX = 16
"""Unacknowledged appends of one client."""

DISK = "ponor_journal_retained_bytes"
MEMORY = "ponor_log_cache_bytes"


class SteadyWorld(World):
    """Clients that append all the time, and a check of the bounds."""

    def __init__(self, seed: int, settings: StorageSettings = SETTINGS) -> None:
        super().__init__(seed, settings)
        self.refused = 0
        self.highest = {DISK: 0.0, MEMORY: 0.0}
        self.client: StreamClient | None = None

    @property
    def acknowledged(self) -> int:
        return sum(len(history.acknowledged) for history in self.histories.values())

    @property
    def waiting(self) -> int:
        """Appends that are neither acknowledged nor refused."""
        return sum(len(history.appended) for history in self.histories.values()) - self.acknowledged

    async def work(self, runtime: Runtime, client: StreamClient, streams: list[Stream]) -> None:
        self.client = client
        client.on_upload(streams[0].stream_id, partial(self.snapshot, streams[0], streams[-1]))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.watch(runtime))
            for stream in streams[:-1]:
                tasks.create_task(self.produce(runtime, stream))
        for stream in streams:
            await self.check(stream)

    async def produce(self, runtime: Runtime, stream: Stream) -> None:
        number = 0
        in_flight: list[asyncio.Future[None]] = []
        while not self.stop:
            number += 1
            payload = f"{self.lives}/{stream.stream_id}/{number}/".encode().ljust(PAYLOAD_BYTES, b".")
            try:
                future = stream.append(payload, count=1, max_timestamp=-1)
            except AppendBackpressureError:
                self.refused += 1
                await runtime.clock.sleep(0.1)
                continue
            history = self.histories[stream.stream_id]
            history.appended.append(payload)
            future.add_done_callback(lambda _, p=payload, h=history: h.acknowledged.add(p))  # type: ignore[misc]
            in_flight = [each for each in in_flight if not each.done()] + [future]
            while len(in_flight) >= IN_FLIGHT_MAX and not self.stop:
                await asyncio.wait([in_flight.pop(0)], timeout=0.2)
            await runtime.clock.sleep(self.chance.uniform(0, 0.02))

    async def watch(self, runtime: Runtime) -> None:
        while not self.stop:
            for name, highest in self.highest.items():
                ((_, value),) = runtime.telemetry.gauges(name)
                self.highest[name] = max(highest, value)
            await runtime.clock.sleep(0.02)

    async def started(self) -> None:
        self.process.start()
        await wait_until(lambda: self.ready)
        await asyncio.sleep(3)
        assert self.acknowledged > 100

    async def ended(self) -> None:
        """Read, compare and close everything; after a power loss there is nothing to recover."""
        self.stop = True
        await wait_until(lambda: self.process.finished or not self.process.running, timeout_s=120)
        assert self.process.failure is None, repr(self.process.failure)
        assert self.waiting == 0
        # By design one hook's record may exceed the budget, and one group in flight may exceed the window.
        assert self.highest[MEMORY] <= self.settings.log_cache_bytes_max + 4 * KIB
        assert self.highest[DISK] <= self.settings.wal_bytes_max + self.settings.wal_segment_bytes

    async def goes_on(self, count: int, *, within_s: float) -> None:
        """Wait until `count` more appends are acknowledged."""
        aim = self.acknowledged + count
        await wait_until(lambda: self.acknowledged >= aim, timeout_s=within_s)


def tell(story: Callable[[SteadyWorld], object], settings: StorageSettings = SETTINGS) -> None:
    for seed in range(STORY_SEEDS):
        world = SteadyWorld(seed, settings)

        async def run(world: SteadyWorld = world) -> None:
            await story(world)  # type: ignore[misc]

        world.simulation.run(run())


def test_a_log_with_all_segments_works_on_a_full_disk() -> None:
    async def story(world: SteadyWorld) -> None:
        await world.started()
        world.process.disk.capacity_bytes = world.process.disk.state.used_bytes()
        before = world.refused
        await world.goes_on(1_000, within_s=60)
        assert world.refused == before == 0
        await world.ended()

    tell(story)


def test_a_full_disk_holds_appends_back_until_there_is_space() -> None:
    """The store is down too, so the log must grow. Then only the disk is full. Then all faults end."""

    async def story(world: SteadyWorld) -> None:
        await world.started()
        disk = world.process.disk
        world.store.faults = StoreFaults(down=True)
        disk.capacity_bytes = disk.state.used_bytes()
        await asyncio.sleep(30)
        before = world.acknowledged
        operations: list[str] = []
        disk.watch = lambda operation, _: operations.append(operation)
        await asyncio.sleep(60)
        assert world.acknowledged == before, "every acknowledged record is in the log"
        assert world.waiting > 0
        assert operations, "it tries again"
        assert len(operations) < 200, "and does not spin"
        disk.capacity_bytes = None
        await world.goes_on(100, within_s=30)
        world.store.faults = StoreFaults()
        await world.goes_on(1_000, within_s=60)
        await world.ended()

    tell(story)


def test_a_log_on_a_small_disk_frees_its_own_space() -> None:
    """The disk is smaller than the log's window. Durable records are uploaded early, and their
    segments are reused.
    """

    async def story(world: SteadyWorld) -> None:
        world.process.disk.capacity_bytes = 3 * world.settings.wal_segment_bytes
        await world.started()
        await world.goes_on(1_000, within_s=240)
        await world.ended()

    tell(story, replace(SETTINGS, upload_size_bytes_max=0, upload_interval_ms=3_600_000))


@pytest.mark.parametrize("power_loss", [False, True])
def test_a_node_that_crashes_on_a_full_disk_recovers_everything(*, power_loss: bool) -> None:
    async def story(world: SteadyWorld) -> None:
        await world.started()
        disk = world.process.disk
        world.store.faults = StoreFaults(down=True)
        disk.capacity_bytes = disk.state.used_bytes()
        await asyncio.sleep(30)
        world.process.crash(power_loss=power_loss)
        world.store.faults = StoreFaults()
        for history in world.histories.values():  # unacknowledged records may be stored or not
            history.appended = [each for each in history.appended if each in history.acknowledged]
        disk.capacity_bytes = None
        world.ready = False
        world.process.start()
        await wait_until(lambda: world.ready)
        await world.goes_on(100, within_s=60)
        await world.ended()

    tell(story)


def test_a_store_that_is_down_for_a_minute_costs_no_record() -> None:
    """Appends succeed until the log's window or the cache is full, then get a retriable error, and
    finally all is uploaded.
    """

    async def story(world: SteadyWorld) -> None:
        await world.started()
        world.store.faults = StoreFaults(down=True)
        await world.goes_on(50, within_s=5)
        await asyncio.sleep(60)
        assert world.refused > 0
        refused_before = world.refused
        world.store.faults = StoreFaults()
        await world.goes_on(1_000, within_s=60)
        await asyncio.sleep(5)
        refused_after = world.refused
        await asyncio.sleep(5)
        assert world.refused == refused_after, f"still refused, {refused_before} before"
        await world.ended()

    tell(story)


def test_a_store_ten_times_slower_is_waited_for() -> None:
    async def story(world: SteadyWorld) -> None:
        await world.started()
        world.store.faults = StoreFaults(latency_s=(0.5, 6.0))
        await world.goes_on(1_000, within_s=240)
        world.store.faults = StoreFaults()
        await world.goes_on(1_000, within_s=60)
        await world.ended()

    tell(story)


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_wall_clock_that_is_set_changes_nothing(hours: int) -> None:
    """Ages, leases and retries use the monotonic clock: the same seed gives the same trace."""

    def digest_of(offset_ms: int) -> str:
        world = SteadyWorld(7)

        async def story() -> None:
            await world.started()
            world.process.clock.jump_wall(offset_ms)
            await world.goes_on(500, within_s=60)
            await world.ended()

        world.simulation.run(story())
        return world.simulation.trace.digest

    assert digest_of(hours * 3_600_000) == digest_of(0)


def test_a_machine_that_was_suspended_for_an_hour_prepares_anew() -> None:
    """Its prepared ids expired: uploads start again under new ids, and due timers fire late."""

    async def story(world: SteadyWorld) -> None:
        await world.started()
        world.store.faults = StoreFaults(latency_s=(2.0, 3.0))  # an upload is in progress
        await asyncio.sleep(2)
        prepared_before = world.store.bucket.calls["put"]
        world.process.clock.leap(3_600)
        world.store.faults = StoreFaults()
        await world.goes_on(1_000, within_s=60)
        assert world.store.bucket.calls["put"] > prepared_before
        assert world.client is not None
        await world.client.force_upload()
        await world.ended()

    settings = replace(SETTINGS, upload_interval_ms=60_000)
    tell(story, settings)
