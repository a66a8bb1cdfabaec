"""The journal's interface: on the real disk where that matters, on the simulated one for time and faults."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from ponor_journal.errors import (
    EntryTooLargeError,
    JournalClosedError,
    JournalCorruptError,
    JournalFailedError,
    JournalFullError,
    JournalIdentityError,
)
from ponor_journal.journal import Journal
from ponor_journal.settings import JournalSettings
from ponor_runtime.disk import SECTOR_BYTES
from ponor_runtime.settings import SettingError
from ponor_runtime.system_disk import SystemDisk
from ponor_runtime.telemetry import Telemetry
from ponor_simulation.disk import DiskFault
from ponor_simulation.simulation import Simulation

from libs.journal.tests.journal_rig import DIRECTORY, IDENTITY, SETTINGS, append_each, open_journal, read_all

SMALL = replace(SETTINGS, segment_bytes=8 * SECTOR_BYTES)


@pytest.fixture
async def disk() -> AsyncIterator[SystemDisk]:
    disk = SystemDisk()
    yield disk
    disk.close()


def _note(order: list[int], sequence: int, _: object) -> None:
    order.append(sequence)


async def opened(disk: SystemDisk, directory: Path, settings: JournalSettings = SMALL) -> Journal:
    return await Journal.open(disk, directory, identity=IDENTITY, settings=settings, telemetry=Telemetry())


async def test_acknowledged_entries_are_readable_after_a_restart(disk: SystemDisk, tmp_path: Path) -> None:
    journal = await opened(disk, tmp_path / "wal")
    assert journal.recovery.created
    entries = [bytes([number]) * (number * 37 % 1500) for number in range(60)]
    handed_over = [journal.append([entry[:10], memoryview(entry)[10:]]) for entry in entries]
    assert [sequence for sequence, _ in handed_over] == list(range(60))
    await asyncio.gather(*[durable for _, durable in handed_over])
    assert journal.synced_sequence == journal.next_sequence == 60
    assert journal.queued_bytes == 0
    await journal.close()

    journal = await opened(disk, tmp_path / "wal")
    assert not journal.recovery.created
    assert journal.recovery.entries == 60
    assert journal.recovery.bytes == sum(map(len, entries))
    assert journal.recovery.torn_bytes == 0
    assert await read_all(journal) == list(enumerate(entries))
    assert await read_all(journal, 41) == list(enumerate(entries))[41:]
    await journal.append([b"next"])[1]
    with pytest.raises(RuntimeError, match="before the first append"):
        await read_all(journal)
    await journal.close()


async def test_entries_appended_together_share_one_sync(disk: SystemDisk, tmp_path: Path) -> None:
    telemetry = Telemetry()
    journal = await Journal.open(
        disk,
        tmp_path / "wal",
        identity=IDENTITY,
        settings=JournalSettings(segment_bytes=1 << 20),
        telemetry=telemetry,
    )
    order: list[int] = []
    futures = []
    for _ in range(500):
        sequence, durable = journal.append([b"entry"])
        durable.add_done_callback(partial(_note, order, sequence))
        futures.append(durable)
    await asyncio.gather(*futures)
    assert order == list(range(500))
    assert telemetry.counter("ponor_journal_frames_total", journal="wal").value == 1
    assert telemetry.counter("ponor_journal_entries_total", journal="wal").value == 500
    await journal.close()


async def test_trimmed_segments_are_recycled(disk: SystemDisk, tmp_path: Path) -> None:
    journal = await opened(disk, tmp_path / "wal")
    for number in range(200):
        await journal.append([bytes(700)])[1]
        journal.trim(max(0, number - 3))
    assert journal.retained_bytes <= 5 * SMALL.segment_bytes
    await journal.close()
    files = sorted(path.name for path in (tmp_path / "wal").iterdir())
    assert len(files) <= 6
    journal = await opened(disk, tmp_path / "wal")
    entries = await read_all(journal)
    assert entries[0][0] <= 196
    assert entries[-1] == (199, bytes(700))
    await journal.close()


async def test_second_owner_is_refused(disk: SystemDisk, tmp_path: Path) -> None:
    journal = await opened(disk, tmp_path / "wal")
    with pytest.raises(BlockingIOError, match="wal"):
        await opened(disk, tmp_path / "wal")
    await journal.close()
    await (await opened(disk, tmp_path / "wal")).close()


async def test_journal_of_another_owner_is_refused(disk: SystemDisk, tmp_path: Path) -> None:
    await (await opened(disk, tmp_path / "wal")).close()
    with pytest.raises(JournalIdentityError, match="another node or cluster"):
        await Journal.open(disk, tmp_path / "wal", identity=bytes(16), settings=SMALL, telemetry=Telemetry())


async def test_segment_size_may_change_between_starts(disk: SystemDisk, tmp_path: Path) -> None:
    written: list[bytes] = []
    for segment_bytes in (4096, 8192, 2048, 65536):
        settings = replace(SMALL, segment_bytes=segment_bytes)
        journal = await opened(disk, tmp_path / "wal", settings)
        assert [entry for _, entry in await read_all(journal)] == written
        entries = [bytes([number]) * 900 for number in range(10)]
        await append_each(journal, entries)
        written += entries
        await journal.close()


async def test_limits_are_named_in_errors(disk: SystemDisk, tmp_path: Path) -> None:
    settings = replace(SMALL, queue_bytes_max=2000, entry_bytes_max=1000)
    journal = await opened(disk, tmp_path / "wal", settings)
    with pytest.raises(EntryTooLargeError, match="1001 bytes exceeds the limit of 1000"):
        journal.append([bytes(1001)])
    futures = [journal.append([bytes(1000)])[1] for _ in range(2)]
    with pytest.raises(JournalFullError, match="2000 bytes are queued"):
        journal.append([b"x"])
    await asyncio.gather(*futures)
    assert journal.append([b""])[0] == 2
    await journal.close()
    await journal.close()
    with pytest.raises(JournalClosedError):
        journal.append([b"x"])
    with pytest.raises(SettingError, match="raise segment_bytes"):
        replace(SMALL, entry_bytes_max=SMALL.segment_bytes)
    with pytest.raises(SettingError, match="multiple of 512"):
        replace(SMALL, segment_bytes=5000)


async def test_largest_entry_fits_into_an_empty_segment(disk: SystemDisk, tmp_path: Path) -> None:
    journal = await opened(disk, tmp_path / "wal")
    largest = bytes(range(256)) * (SMALL.entry_room_bytes // 256) + bytes(SMALL.entry_room_bytes % 256)
    await append_each(journal, [b"small", largest, largest, b"small"])
    await journal.close()
    journal = await opened(disk, tmp_path / "wal")
    assert [entry for _, entry in await read_all(journal)] == [b"small", largest, largest, b"small"]
    await journal.close()


async def test_cancelled_future_does_not_cancel_the_append(disk: SystemDisk, tmp_path: Path) -> None:
    journal = await opened(disk, tmp_path / "wal")
    _, abandoned = journal.append([b"abandoned"])
    _, awaited = journal.append([b"awaited"])
    abandoned.cancel()
    await awaited
    await journal.close()
    journal = await opened(disk, tmp_path / "wal")
    assert [entry for _, entry in await read_all(journal)] == [b"abandoned", b"awaited"]
    await journal.close()


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_failed_write_or_sync_fails_the_journal_permanently(operation: str) -> None:
    simulation = Simulation(1)

    async def run() -> None:
        disk = simulation.disk("disk")
        journal = await open_journal(disk)
        await append_each(journal, [b"safe"])
        await asyncio.sleep(1)  # the background task is done, so the fault hits the next group
        disk.faults.append(DiskFault(operation, number=errno.EIO))
        futures = [journal.append([b"lost"])[1] for _ in range(3)]
        for durable in futures:
            with pytest.raises(JournalFailedError, match="must stop"):
                await durable
        with pytest.raises(JournalFailedError, match="must stop"):
            journal.append([b"refused"])
        assert journal.synced_sequence == 1
        await journal.close()

    simulation.run(run())


def test_proof_of_sync_is_written_after_the_last_group() -> None:
    simulation = Simulation(3)

    async def run() -> None:
        disk = simulation.disk("disk")
        journal = await open_journal(disk)
        before = journal.retained_bytes
        await append_each(journal, [b"one", b"two"])
        assert journal.retained_bytes == before + 2 * SECTOR_BYTES
        await asyncio.sleep(1)
        assert journal.retained_bytes == before + 3 * SECTOR_BYTES
        await asyncio.sleep(1)
        assert journal.retained_bytes == before + 3 * SECTOR_BYTES
        await journal.close()
        assert journal.retained_bytes == before + 3 * SECTOR_BYTES

    simulation.run(run())


def test_missing_segment_is_damage() -> None:
    simulation = Simulation(4)

    async def run() -> None:
        disk = simulation.disk("disk")
        journal = await open_journal(disk)
        await append_each(journal, [bytes(2000)] * 20)
        await journal.close()
        segments = [name for name in await disk.list(DIRECTORY) if name.startswith("segment")]
        await disk.remove(DIRECTORY / segments[1])
        with pytest.raises(JournalCorruptError, match=r"preceding segment of generation \d+ is missing"):
            await open_journal(disk)

    simulation.run(run())
