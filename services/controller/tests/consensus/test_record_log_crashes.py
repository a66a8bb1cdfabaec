"""The record log on a disk that loses unsynced data: a restart finds a state from after some write,
and never from before a durable one.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from functools import cache
from pathlib import PurePosixPath

import pytest
from ponor_controller.consensus.record_log import RecordLog, RecordLogSettings
from ponor_controller.consensus.snapshot_format import SnapshotHeader
from ponor_metadata.image.image import MetadataImage
from ponor_metadata.image.snapshot import begin_snapshot
from ponor_raft.entry import Entry, HardState
from ponor_raft.membership import ReplicaId
from ponor_raft.stored import StoredState
from ponor_runtime.runtime import Runtime
from ponor_runtime.telemetry import Telemetry
from ponor_simulation.simulation import Simulation

from services.controller.tests.log_writer import DIRECTORY_ID, MEMBERSHIP, entry_of

DATA = PurePosixPath("/controller")
SETTINGS = RecordLogSettings(segment_bytes=8 * 1024, queue_bytes_max=1024 * 1024, trailing_entries=8)
SEEDS = 24
LIVES = 8


@dataclass(frozen=True)
class LogState:
    """State of the log after some write. Entries at or below the newest snapshot are not compared."""

    hard_state: HardState = field(default_factory=HardState)
    entries: tuple[Entry, ...] = ()


class Workload:
    """Writes to a log as Raft does, and records every state of the log."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.states = [LogState()]
        self.durable = 0
        self.bases = [0]
        """Possible indices of the newest snapshot: the last durable one, and one in progress."""
        self.snapshots = 0
        self.replaced = 0
        self.trimmed = 0

    def found(self, stored: StoredState) -> None:
        """Check that the recovered state is one of those since the last durable one. It is the only
        possible state from now on.
        """
        possible = [state for state in self.states[self.durable :] if self._is(state, stored)]
        assert possible, f"found {stored.hard_state}, base {stored.base.index}, {len(stored.entries)} entries"
        self.states, self.durable, self.bases = [possible[-1]], 0, [stored.base.index]
        if stored.entries and stored.entries[0].index > 1:
            self.trimmed += 1

    def _is(self, state: LogState, stored: StoredState) -> bool:
        base = stored.base.index
        behind = [entry for entry in stored.entries if entry.index > base]
        expected = [entry for entry in state.entries if entry.index > base]
        return base in self.bases and (stored.hard_state, behind) == (state.hard_state, expected)

    def note(self, state: LogState) -> int:
        """Record a submitted write."""
        self.states.append(state)
        return len(self.states) - 1

    async def live(self, runtime: Runtime) -> None:
        """One life: open, compare, write until the power loss."""
        await runtime.disk.make_directories(DATA)
        log = await RecordLog.open(runtime.disk, DATA, DIRECTORY_ID, SETTINGS, Telemetry())
        self.found(await log.recover(MEMBERSHIP))
        log.snapshot = None
        while True:
            if self.chance.random() < 0.08:
                await self._snapshot(log, runtime)
            else:
                self._persist(log)
            if self.chance.random() < 0.5:
                await runtime.clock.sleep(self.chance.random() * 0.01)

    def _persist(self, log: RecordLog) -> None:
        present = self.states[-1]
        term = present.hard_state.term
        entries = list(present.entries)
        hard_state = None
        if term == 0 or self.chance.random() < 0.15:
            voted = self.chance.choice((None, ReplicaId(3_001, b"v" * 16)))
            hard_state = HardState(term + 1, voted)
            first = self.chance.randint(self.bases[-1] + 1, len(entries) + 1)
            self.replaced += first <= len(entries)
        else:
            first = len(entries) + 1
        new_term = (hard_state or present.hard_state).term
        new = [
            entry_of(index, new_term, self.chance.randbytes(self.chance.choice((5, 300))))
            for index in range(first, first + self.chance.randint(0 if hard_state else 1, 5))
        ]
        if new:
            del entries[first - 1 :]
        state = LogState(hard_state or present.hard_state, (*entries, *new))
        number = self.note(state)

        def durable(error: BaseException | None) -> None:
            assert error is None
            self.durable = max(self.durable, number)

        log.persist(hard_state, new, durable)

    async def _snapshot(self, log: RecordLog, runtime: Runtime) -> None:
        """Snapshot a durable state, as all committed states are."""
        present = self.states[-1]
        count = min(len(self.states[self.durable].entries), len(present.entries))
        same = [
            one == two for one, two in zip(self.states[self.durable].entries, present.entries, strict=False)
        ][:count]
        index = same.index(False) if False in same else count
        if index <= self.bases[-1]:
            return
        image = MetadataImage()
        for entry in present.entries[:index]:
            image.apply_committed(entry.data)
        header = SnapshotHeader(
            index,
            present.entries[index - 1].term,
            0,
            image.cluster_time_ms,
            image.digest,
            bytes(16),
            0,
            MEMBERSHIP,
        )
        self.bases.append(index)
        await log.write_snapshot(header, begin_snapshot(image), runtime.clock)
        self.bases = [index]
        self.snapshots += 1


@cache
def run_log(seed: int) -> Workload:
    """Run several lives on one disk. Each seed runs once for all tests."""
    simulation = Simulation(seed)
    workload = Workload(seed)
    process = simulation.process("log", workload.live)

    async def story() -> None:
        for _ in range(LIVES):
            process.start()
            await asyncio.sleep(simulation.chance.uniform(0.02, 0.6))
            assert process.failure is None, repr(process.failure)
            process.crash(power_loss=simulation.chance.random() < 0.8)

    simulation.run(story())
    return workload


@pytest.mark.parametrize("first", range(0, SEEDS, 8))
def test_durable_states_are_recovered_and_no_others(first: int) -> None:
    for seed in range(first, first + 8):
        run_log(seed)


def test_the_workload_covers_its_cases() -> None:
    runs = [run_log(seed) for seed in range(8)]
    assert sum(run.snapshots for run in runs) > 20
    assert sum(run.replaced for run in runs) > 20
    assert sum(run.trimmed for run in runs) > 5
