"""A journal under crashes: producers append, an owner trims, and a history checks every restart.

The invariants at each open:

    1. An acknowledged entry that was not trimmed is in the log with its bytes.
    2. Every entry was appended under its sequence by the newest life that used it.
    3. Sequences have no gaps.
    4. An entry that one recovery reported is in every later one.
    5. Without bit rot no open is refused.
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import PurePath

from ponor_journal.errors import JournalError, JournalFullError
from ponor_journal.journal import Journal
from ponor_journal.settings import JournalSettings
from ponor_runtime.runtime import Runtime
from ponor_simulation.disk import DiskFault
from ponor_simulation.process import SimProcess, wait_until
from ponor_simulation.simulation import Simulation

DIRECTORY = PurePath("/data/journal")
IDENTITY = bytes(range(16))


@dataclass
class JournalHistory:
    """What the owners of the journal appended, and what was acknowledged."""

    appended: dict[int, bytes] = field(default_factory=dict)
    acknowledged: dict[int, None] = field(default_factory=dict)
    trimmed: int = 0
    opens: int = 0
    torn: int = 0
    recycled: int = 0
    full: int = 0

    def check(self, recovered: list[tuple[int, bytes]], journal: Journal) -> None:
        """Check the result of a recovery, and continue from it."""
        report = journal.recovery
        sequences = [sequence for sequence, _ in recovered]
        assert sequences == list(range(report.first_sequence, report.next_sequence)), (
            "holes between sequences"
        )
        assert report.first_sequence <= max(self.trimmed, 0), f"entries from {self.trimmed} on are needed"
        found = dict(recovered)
        for sequence in self.acknowledged:
            if sequence >= self.trimmed:
                assert sequence in found, (
                    f"acknowledged entry {sequence} is lost (the log ends at {report.next_sequence})"
                )
        for sequence, entry in found.items():
            assert self.appended.get(sequence) == entry, f"entry {sequence} was never appended like this"
        self.appended = found
        self.acknowledged = dict.fromkeys(found)
        self.opens += 1
        self.torn += report.torn_bytes > 0


@dataclass(frozen=True)
class Swarm:
    """Sizes and faults of one seed."""

    settings: JournalSettings
    producers: int
    entry_bytes_max: int
    lives: int
    power_loss: float
    faults: bool
    write_s: float

    @classmethod
    def draw(cls, chance: random.Random) -> Swarm:
        segment_bytes = chance.choice((2048, 4096, 8192, 32768))
        room = JournalSettings(segment_bytes=segment_bytes).entry_room_bytes
        return cls(
            settings=JournalSettings(
                segment_bytes=segment_bytes,
                queue_bytes_max=chance.choice((2000, 20000)),
                group_bytes_max=chance.choice((600, 3000, 100_000)),
                spares_max=chance.choice((1, 2)),
                proof_delay_ms=chance.choice((1, 20, 100)),
            ),
            producers=chance.choice((1, 3, 8)),
            entry_bytes_max=chance.choice((40, min(1500, room), room, room)),
            lives=chance.randrange(3, 8),
            power_loss=chance.choice((0.0, 0.5, 1.0)),
            faults=chance.random() < 0.3,
            write_s=chance.choice((0.0005, 0.01)),
        )


class JournalOwner:
    """The program of the simulated process."""

    def __init__(self, swarm: Swarm, history: JournalHistory) -> None:
        self._swarm = swarm
        self._history = history

    async def main(self, runtime: Runtime) -> None:
        journal = await Journal.open(
            runtime.disk,
            DIRECTORY,
            identity=IDENTITY,
            settings=self._swarm.settings,
            telemetry=runtime.telemetry,
        )
        recovered = [(sequence, bytes(entry)) async for sequence, entry in journal.entries()]
        self._history.check(recovered, journal)
        try:
            async with asyncio.TaskGroup() as tasks:
                for number in range(self._swarm.producers):
                    tasks.create_task(self._produce(runtime, journal, number))
                tasks.create_task(self._trim(runtime, journal))
        except* JournalError as errors:
            runtime.fail_stop("journal", errors)
        if runtime.randomness.below(2):
            await journal.close()

    async def _produce(self, runtime: Runtime, journal: Journal, number: int) -> None:
        chance = runtime.randomness
        for count in range(chance.below(60)):
            entry = f"{number}.{count}.".encode() + chance.token(
                chance.below(self._swarm.entry_bytes_max - 10)
            )
            cut = chance.below(len(entry))
            try:
                sequence, durable = journal.append([entry[:cut], memoryview(entry)[cut:]])
            except JournalFullError:
                await runtime.clock.sleep(0.002)
                continue
            assert sequence not in self._history.acknowledged
            self._history.appended[sequence] = entry
            durable.add_done_callback(partial(self._acknowledge, sequence))
            if chance.below(4):
                await durable
            if chance.below(10) == 0:
                await runtime.clock.sleep(chance.uniform(0, 0.3))

    def _acknowledge(self, sequence: int, done: asyncio.Future[None]) -> None:
        if not done.cancelled() and done.exception() is None:
            self._history.acknowledged[sequence] = None

    async def _trim(self, runtime: Runtime, journal: Journal) -> None:
        for _ in range(runtime.randomness.below(8)):
            await runtime.clock.sleep(runtime.randomness.uniform(0, 0.2))
            before = journal.retained_bytes
            self._history.trimmed = max(
                self._history.trimmed, journal.synced_sequence - runtime.randomness.below(20)
            )
            journal.trim(self._history.trimmed)
            self._history.recycled += journal.retained_bytes < before


def run_journal(seed: int, *, no_space: bool = False) -> tuple[JournalHistory, str]:
    """Run one seed: several lives with crashes between them. Return the history and the digest of the trace.

    With `no_space` the disk is full repeatedly, also within live segments, and has no other fault.
    No life may end because of that.
    """
    simulation = Simulation(seed)
    swarm = Swarm.draw(simulation.chance)
    history = JournalHistory()
    process = simulation.process("node", JournalOwner(swarm, history).main)
    process.disk.speed.write_s = (0.00005, swarm.write_s)
    if no_space:
        swarm = replace(swarm, faults=False)
        process.disk.faults = SpaceFaults(f"space {seed}")
    simulation.run(_lives(simulation, swarm, process, history))
    if isinstance(process.disk.faults, SpaceFaults):
        history.full = process.disk.faults.met
    return history, simulation.trace.digest


class SpaceFaults(list[DiskFault]):
    """ENOSPC for one to three writes or syncs in a row, repeatedly.

    A fault begins at an operation on a live segment or on one that is being created; spares are
    opened under their old names.
    """

    def __init__(self, seed: str) -> None:
        super().__init__()
        self._chance = random.Random(seed)
        self.met = 0

    def __iter__(self) -> Iterator[DiskFault]:
        self.met += sum(fault.count == 0 for fault in super().__iter__())
        self[:] = [fault for fault in super().__iter__() if fault.count > 0]
        if not self:
            chance = self._chance
            self.append(
                DiskFault(
                    chance.choice(("write", "sync")),
                    chance.choice((errno.ENOSPC, errno.EDQUOT)),
                    path_part=chance.choice(("", "filling-", "spare-", "spare-")),
                    skip=chance.randrange(30),
                    count=chance.choice((1, 1, 3)),
                )
            )
        return super().__iter__()


class CrashPoint:
    """The time at which a life ends: some time after a number of disk operations of one kind began."""

    def __init__(self, simulation: Simulation, process: SimProcess, swarm: Swarm) -> None:
        chance = simulation.chance
        self._loop = simulation.loop
        self._process = process
        self._life = process.runtime
        self._operation = chance.choice(
            ("write", "write", "write", "write", "sync", "rename", "sync_directory", "read")
        )
        self._left = chance.randrange(chance.choice((3, 20, 80)))
        self._delay_s = chance.choice((swarm.write_s, swarm.write_s, 0.003, 0.3)) * chance.random()
        self._power_loss = chance.random() < swarm.power_loss
        process.disk.watch = self._began

    def _began(self, operation: str, path: PurePath) -> None:
        if operation == self._operation and not path.name.startswith("filling"):
            self._left -= 1
            if self._left == 0:
                self._loop.call_later(self._delay_s, self._crash, context=self._loop.outside)

    def _crash(self) -> None:
        if self._process.running and self._process.runtime is self._life:
            self._process.crash(power_loss=self._power_loss)


async def _lives(simulation: Simulation, swarm: Swarm, process: SimProcess, history: JournalHistory) -> None:
    chance = simulation.chance
    for life in range(swarm.lives):
        last = life == swarm.lives - 1
        if swarm.faults and not last and chance.random() < 0.5:
            kind = chance.choice(("write", "sync", "rename", "sync_directory"))
            process.disk.faults = [DiskFault(kind, skip=chance.randrange(60))]
        elif not isinstance(process.disk.faults, SpaceFaults):
            process.disk.faults = []
        process.disk.watch = None
        opens = history.opens
        process.start()
        if not last:
            CrashPoint(simulation, process, swarm)
        await wait_until(lambda: not process.running, poll_s=0.005)
        if isinstance(process.failure, AssertionError):
            raise process.failure
        if process.failure is not None and (
            not process.disk.faults or isinstance(process.disk.faults, SpaceFaults)
        ):
            raise AssertionError(f"refused without a fault: {process.failure!r}") from process.failure
        if last:
            assert history.opens == opens + 1
