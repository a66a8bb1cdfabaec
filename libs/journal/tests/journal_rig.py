"""Journals on a simulated disk, for tests that damage written data."""

from __future__ import annotations

from pathlib import PurePath

from ponor_journal.journal import Journal
from ponor_journal.settings import JournalSettings
from ponor_runtime.disk import SECTOR_BYTES, Disk
from ponor_runtime.telemetry import Telemetry

DIRECTORY = PurePath("/data/wal")
IDENTITY = b"identity of a log"[:16]
SETTINGS = JournalSettings(segment_bytes=16 * SECTOR_BYTES, spares_max=1)


async def open_journal(
    disk: Disk, settings: JournalSettings = SETTINGS, identity: bytes = IDENTITY
) -> Journal:
    return await Journal.open(disk, DIRECTORY, identity=identity, settings=settings, telemetry=Telemetry())


async def read_all(journal: Journal, from_sequence: int = 0) -> list[tuple[int, bytes]]:
    return [(sequence, bytes(entry)) async for sequence, entry in journal.entries(from_sequence)]


async def append_each(journal: Journal, entries: list[bytes]) -> None:
    """Append entries, one group commit each."""
    for entry in entries:
        await journal.append([entry])[1]
