"""Tests of a compactor's pace under a constant load: the backlog levels off at every load within the bounds,
and copying is even.

A simple rule replaces the controller: data older than a minute is offered when it fills half a task, up to a
full task.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from ponor_compactor.pace import Pace
from ponor_compactor.settings import MIB, CompactorSettings
from ponor_runtime.rate_limit import NS
from ponor_runtime.telemetry import Telemetry

from libs.s3stream.tests.store_rig import InstantClock

SETTINGS = CompactorSettings()
TASK_BYTES_MAX = 1024 * MIB
ITERATION_BYTES, READ_BYTES, PART_BYTES = 64 * MIB, 4 * MIB, 16 * MIB
POLL_S = 2.0
LEVEL_FACTOR = 1.25


@dataclass
class SteadyLoad:
    """One compactor under a constant rate of bytes that become old enough to compact."""

    arriving_per_s: int
    backlog_bytes: list[int] = field(default_factory=list)
    """Bytes waiting before each request for a task."""
    moved: list[tuple[int, int]] = field(default_factory=list)
    """Time (ns) and size of each transfer."""
    taken_bytes: int = 0

    def __post_init__(self) -> None:
        self.clock = InstantClock()
        self.pace = Pace(self.clock, SETTINGS, Telemetry())

    async def run(self, seconds: int) -> None:
        """Request and copy tasks for the given time."""
        until_ns = self.clock.now_ns + seconds * NS
        while self.clock.now_ns < until_ns:
            waiting = self.arriving_per_s * self.clock.now_ns // NS - self.taken_bytes
            self.backlog_bytes.append(waiting)
            if waiting * 2 < TASK_BYTES_MAX:
                await self.clock.sleep(POLL_S)
                continue
            task_bytes = min(waiting, TASK_BYTES_MAX)
            self.taken_bytes += task_bytes
            with self.pace.working():
                for _ in range(0, task_bytes, ITERATION_BYTES):
                    await self._iteration()

    async def _iteration(self) -> None:
        for _ in range(0, ITERATION_BYTES, READ_BYTES):
            await self.pace.before_read(READ_BYTES)
            self.moved.append((self.clock.now_ns, READ_BYTES))
        for _ in range(0, ITERATION_BYTES, PART_BYTES):
            await self.pace.before_write(PART_BYTES)
            self.moved.append((self.clock.now_ns, PART_BYTES))

    def most_in(self, seconds: int) -> int:
        """Return the most bytes transferred within a window of that many seconds."""
        most = first = held = 0
        for at_ns, size_bytes in self.moved:
            held += size_bytes
            while self.moved[first][0] <= at_ns - seconds * NS:
                held -= self.moved[first][1]
                first += 1
            most = max(most, held)
        return most


async def test_no_burst_at_twenty_megabytes_a_second() -> None:
    load = SteadyLoad(20_000_000)
    await load.run(1_800)
    assert load.most_in(1) <= 64 * MIB + PART_BYTES
    assert load.most_in(10) <= 10 * 64 * MIB
    assert max(load.backlog_bytes) <= TASK_BYTES_MAX


@pytest.mark.parametrize("arriving_mib_per_s", [1, 20, 60, 110])
async def test_steady_load_is_copied_little_faster_than_it_arrives(arriving_mib_per_s: int) -> None:
    load = SteadyLoad(arriving_mib_per_s * MIB)
    await load.run(1_200)
    rates: list[float] = []
    for _ in range(20):
        await load.run(30)
        rates.append(load.pace.bytes_per_s)
    least = SETTINGS.compactor_bytes_per_s_min
    mean = sum(rates) / len(rates)
    needed = 2 * load.arriving_per_s
    assert needed <= mean <= max(1.2 * least, 1.5 * needed)


@pytest.mark.parametrize("arriving_mib_per_s", [5, 24, 48, 115])
async def test_backlog_levels_off_at_every_load_below_the_bounds(arriving_mib_per_s: int) -> None:
    load = SteadyLoad(arriving_mib_per_s * MIB)
    highest: list[int] = []
    for _ in range(3):
        load.backlog_bytes.clear()
        await load.run(1_200)
        highest.append(max(load.backlog_bytes))
    assert max(highest) <= 150 * load.arriving_per_s + TASK_BYTES_MAX, "150 seconds' worth, and a task"
    assert highest[2] <= LEVEL_FACTOR * highest[1]


async def test_backlog_of_an_outage_is_cleared() -> None:
    load = SteadyLoad(20_000_000)
    await load.clock.sleep(3_600)
    await load.run(1_200)
    assert load.backlog_bytes[0] > 60 * TASK_BYTES_MAX
    load.backlog_bytes.clear()
    await load.run(600)
    assert max(load.backlog_bytes) <= TASK_BYTES_MAX
    assert load.pace.bytes_per_s <= 64 * MIB, "the rate falls again afterwards"
