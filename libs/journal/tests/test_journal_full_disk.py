"""A journal on a full disk acknowledges nothing, loses nothing and continues when space is freed."""

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
"""Number of 1,000-byte entries that fit into a segment, one per frame."""

LIVE = "spare-"
"""Part of the name under which the newest segment was opened; it was renamed later."""


async def fill_up(journal: Journal, disk: SimDisk) -> tuple[list[bytes], asyncio.Future[None]]:
    """Append until the disk is full; return the acknowledged entries and the append that waits for space."""
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
def test_journal_continues_when_space_is_freed(*, power_loss: bool) -> None:
    simulation = Simulation(1)

    async def run() -> None:
        disk = simulation.disk("disk")
        journal = await open_journal(disk)
        entries, waiting = await fill_up(journal, disk)
        assert len(entries) == 2 * PER_SEGMENT + 1
        entries.append(b"behind it")
        behind = journal.append([entries[-1]])[1]
        await asyncio.sleep(60)
        assert not waiting.done(), "acknowledged before it was durable"
        assert not behind.done()
        assert waits_for_space(journal)
        assert disk.state.used_bytes() <= 2 * SETTINGS.segment_bytes, "failed attempts left files behind"
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
    """A function, so that type checkers do not narrow a property that changes."""
    return journal.waits_for_space


def test_trim_frees_space() -> None:
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


def test_close_does_not_wait_for_space() -> None:
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
def test_live_segment_without_space_is_replaced(operation: str, number: int) -> None:
    """Overwriting may need space on shared or thin-provisioned blocks.

    The failed call leaves undefined data, which is never read.
    """
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


def test_failed_spares_are_retried() -> None:
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


def test_disk_error_fails_the_journal() -> None:
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
