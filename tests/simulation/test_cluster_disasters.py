"""A cluster in temporary trouble: a store that is down or slow, a full disk, wall clocks that are set.

No process is restarted: the services continue when the trouble ends. `cluster_world` checks at the
end, and after a power loss, that every acknowledged record is there once and in order, that all
images are equal, and that the store holds exactly the objects of committed rows.
`tests/acceptance/test_disasters.py` does the same with real processes.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Final

import pytest
from ponor_metadata.nouns.objects import OBJECTS, ObjectState
from ponor_simulation.object_store import StoreFaults

from tests.simulation.cluster_world import ClusterWorld

SEEDS: Final = max(int(os.environ.get("PONOR_SEEDS", "25")) // 25, 1)
HOUR_MS: Final = 3_600_000
PROGRESS_S_MAX: Final = 60.0
SLOW_S: Final = (0.2, 0.9)
"""Latency of a store that is ten times slower than usual."""

every_seed = pytest.mark.parametrize("seed", range(0, 2 * SEEDS, 2))  # even seeds have a bucket


class Story:
    """A running world, and the progress of its producers."""

    def __init__(self, seed: int) -> None:
        self.world = ClusterWorld(seed)
        self.processes = self.world.cluster.processes
        assert self.world.cluster.store is not None
        self.store = self.world.cluster.store

    def tell(self, trouble: Callable[[], Awaitable[None]]) -> None:
        """Start, run the trouble, and check. No process may end or restart before that."""

        async def run() -> None:
            await self.world.start()
            await asyncio.sleep(3.0)
            lives = {name: process.runtime for name, process in self.processes.items()}
            await trouble()
            await self.goes_on(20)
            self.world.cluster.check_alive()
            assert lives == {name: process.runtime for name, process in self.processes.items()}
            await self.world.judge()

        with self.world.cluster.watch.on():
            self.world.simulation.run(run())

    @property
    def acknowledged(self) -> int:
        return len(self.world.history.acknowledged)

    async def goes_on(self, records: int) -> None:
        """Wait until `count` more records are acknowledged."""
        aim = self.acknowledged + records
        deadline = self.world.simulation.loop.time() + PROGRESS_S_MAX
        while self.acknowledged < aim:
            self.world.cluster.check_alive()
            assert self.world.simulation.loop.time() < deadline, f"{aim - self.acknowledged} records missing"
            await asyncio.sleep(0.05)

    def in_state(self, state: ObjectState) -> int:
        """Number of objects in a state at the controller."""
        controller = self.world.cluster.watch.controller
        assert controller is not None
        return sum(row.state is state for row in controller.image[OBJECTS])


@every_seed
def test_an_unavailable_store_holds_producers_back_and_loses_nothing(seed: int) -> None:
    story = Story(seed)

    async def trouble() -> None:
        story.store.faults = StoreFaults(down=True)
        await asyncio.sleep(5.0)
        held_back = story.acknowledged
        await asyncio.sleep(5.0)
        assert story.acknowledged == held_back, "the caches are bounded"
        story.store.faults = StoreFaults()

    story.tell(trouble)


@every_seed
def test_a_slow_store_slows_producers_down_and_stops_no_process(seed: int) -> None:
    story = Story(seed)

    async def trouble() -> None:
        story.store.faults = StoreFaults(latency_s=SLOW_S)
        for _ in range(4):
            await asyncio.sleep(2.0)
            await story.goes_on(1)
        story.store.faults = StoreFaults()

    story.tell(trouble)


@every_seed
def test_a_full_disk_holds_producers_back_and_loses_nothing(seed: int) -> None:
    story = Story(seed)

    async def trouble() -> None:
        disk = story.processes["broker"].disk
        disk.capacity_bytes = disk.state.used_bytes()
        await story.goes_on(20)
        story.store.faults = StoreFaults(down=True)  # now the log cannot reuse its segments either
        await asyncio.sleep(15.0)
        disk.capacity_bytes = None
        story.store.faults = StoreFaults()

    story.tell(trouble)


@every_seed
@pytest.mark.parametrize("who", ["broker", "controller", "all"])
def test_wall_clock_jumps_of_an_hour_change_nothing(seed: int, who: str) -> None:
    """Uploads are slow, so that some prepared ids are uncommitted whenever a clock jumps."""
    story = Story(seed)

    async def trouble() -> None:
        story.store.faults = StoreFaults(latency_s=SLOW_S)
        prepared_seen = 0
        names = list(story.processes) if who == "all" else [who]
        for jump_ms in (HOUR_MS, -HOUR_MS, -HOUR_MS, 2 * HOUR_MS, -HOUR_MS):
            for _ in range(10):
                prepared_seen += story.in_state(ObjectState.PREPARED)
                await asyncio.sleep(0.05)
            for name in names:
                story.processes[name].clock.jump_wall(jump_ms)
            await asyncio.sleep(0.5)
            await story.goes_on(5)
        assert prepared_seen > 0, "the precondition of the story"
        story.store.faults = StoreFaults()

    story.tell(trouble)
