"""A journal on a disk that is full: it acknowledges nothing, loses nothing, and goes on when there is space."""

from __future__ import annotations

import asyncio
import errno

import pytest
from ponor_journal.errors import JournalFailedError
from ponor_journal.journal import Journal
from ponor_runtime.disk import SECTOR_BYTES
from ponor_simulation.disk import DiskFault, SimDisk
from ponor_simulation.simulation import Simulation

from libs.journal.tests.journal_rig import DIRECTORY, SETTINGS, append_each, open_journal, read_all

PER_SEGMENT = (SETTINGS.segment_bytes // SECTOR_BYTES - 2) // 3
"""Entries of 1,000 bytes that fit into a segment, a frame each."""

LIVE = "spare-"
"""Part of the name under which the newest segment was opened; it has another one since."""


async def fill_up(journal: Journal, disk: SimDisk) -> tuple[list[bytes], asyncio.Future[None]]:
    """Append until the disk is full: what was acknowledged, and the append that waits for space."""
    disk.capacity_bytes = 2 * SETTINGS.segment_bytes
    entries: list[bytes] = []
    while True:
        entries.append(b"%04d" % len(entries) * 250)
        _, durable = journal.append([entries[-1]])
        await asyncio.wait([durable], timeout=30)
        if not durable.done():
            return entries, durable
        durable.result()


@pytest.mark.parametrize("power_loss", [False, True])
def test_it_goes_on_by_itself_when_there_is_space(*, power_loss: bool) -> None:
    simulation = Simulation(1)

    async def run() -> None:
        disk = simulation.disk("disk")
        journal = await open_journal(disk)
        entries, waiting = await fill_up(journal, disk)
        assert len(entries) == 2 * PER_SEGMENT + 1
        entries.append(b"behind it")
        behind = journal.append([entries[-1]])[1]
        await asyncio.sleep(60)
        assert not waiting.done(), "nothing is acknowledged that is not durable"
        assert not behind.done()
        assert waits_for_space(journal)
        assert disk.state.used_bytes() <= 2 * SETTINGS.segment_bytes, "attempts leave nothing behind"
        disk.capacity_bytes = None
        await waiting
        await behind
        assert not waits_for_space(journal)
        disk.crash(power_loss=power_loss)
        journal = await open_journal(disk)
        assert [entry for _, entry in await read_all(journal)] == entries
        await journal.close()

    simulation.run(run())


def waits_for_space(journal: Journal) -> bool:
    """Asked anew each time: a property that was true once need not stay so."""
    return journal.waits_for_space


def test_a_trim_is_space_too() -> None:
    simulation = Simulation(2)

    async def run() -> None:
        disk = simulation.disk("disk")
        journal = await open_journal(disk)
        entries, waiting = await fill_up(journal, disk)
        journal.trim(PER_SEGMENT)
        await waiting
        await journal.close()
        journal = await open_journal(disk)
        assert [entry for _, entry in await read_all(journal)] == entries[PER_SEGMENT:]
        await journal.close()

    simulation.run(run())


def test_a_close_does_not_wait_for_space() -> None:
    simulation = Simulation(3)

    async def run() -> None:
        disk = simulation.disk("disk")
        journal = await open_journal(disk)
        entries, waiting = await fill_up(journal, disk)
        await journal.close()
        with pytest.raises(JournalFailedError, match="No space left"):
            await waiting
        disk.capacity_bytes = None
        journal = await open_journal(disk)
        assert [entry for _, entry in await read_all(journal)] == entries[:-1]
        await journal.close()

    simulation.run(run())


@pytest.mark.parametrize("operation", ["write", "sync"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_live_segment_without_space_is_left_for_another(operation: str, number: int) -> None:
    """Overwriting may need space where blocks are shared or thin. What the failed call left behind nobody knows, so nobody looks."""
    simulation = Simulation(4)

    async def run() -> None:
        disk = simulation.disk("disk")
        journal = await open_journal(disk)
        entries = [b"before"]
        await journal.append([b"before"])[1]
        disk.faults.append(DiskFault(operation, number, path_part=LIVE))
        several = [journal.append([b"during %d" % index]) for index in range(5)]
        entries += [b"during %d" % index for index in range(5)]
        for _, durable in several:
            await durable
        entries.append(b"after")
        await journal.append([b"after"])[1]
        segments = [name for name in await disk.list(DIRECTORY) if name.startswith("segment")]
        assert len(segments) == 2
        disk.crash(power_loss=False)
        journal = await open_journal(disk)
        assert [entry for _, entry in await read_all(journal)] == entries
        assert [sequence for sequence, _ in await read_all(journal)] == list(range(len(entries)))
        await journal.close()

    simulation.run(run())


def test_spares_without_space_are_tried_again() -> None:
    simulation = Simulation(5)

    async def run() -> None:
        disk = simulation.disk("disk")
        journal = await open_journal(disk)
        entries = [b"%04d" % index * 250 for index in range(PER_SEGMENT + 1)]
        await append_each(journal, entries[:-1])
        disk.faults.append(DiskFault("write", errno.ENOSPC, path_part=LIVE, count=3))
        await append_each(journal, entries[-1:])
        assert disk.faults[0].count == 0
        await journal.close()
        journal = await open_journal(disk)
        assert [entry for _, entry in await read_all(journal)] == entries
        await journal.close()

    simulation.run(run())


def test_an_error_of_the_disk_itself_ends_the_journal() -> None:
    simulation = Simulation(6)

    async def run() -> None:
        disk = simulation.disk("disk")
        journal = await open_journal(disk)
        disk.faults.append(DiskFault("sync", errno.EIO, path_part=LIVE))
        with pytest.raises(JournalFailedError):
            await journal.append([b"x"])[1]
        with pytest.raises(JournalFailedError):
            journal.append([b"y"])
        await journal.close()

    simulation.run(run())
