"""The record log on disk: a journal of encoded record batches, and snapshots that let its old part go.

What lives here: the mapping of log indices to journal sequences, what a restart may trust, and when segments are given back. One journal
entry is one encoded RecordBatch. Nothing here applies a record: the owner of the image replays what `replay` yields.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import PurePath

from google.protobuf.message import DecodeError
from ponor.metadata.v1 import records_pb2
from ponor_journal.errors import JournalCorruptError, JournalIdentityError
from ponor_journal.journal import Journal
from ponor_journal.settings import JournalSettings
from ponor_runtime.disk import Disk
from ponor_runtime.telemetry import Telemetry

from ponor_controller.consensus.errors import RESTORE_REMEDY, RecordLogCorruptError, WrongDirectoryError
from ponor_controller.consensus.ports import LogEntry
from ponor_controller.consensus.snapshot_files import Snapshot, SnapshotFiles, SnapshotHeader

LOG_DIRECTORY = "log"
SNAPSHOT_DIRECTORY = "snapshots"


@dataclass(frozen=True, slots=True)
class RecordLogSettings:
    """Sizes of the log on disk, in bytes."""

    segment_bytes: int
    queue_bytes_max: int


class RecordLog:
    """Open with `open`, read once with `replay`, then append.

    `snapshot` is where the image begins (None: empty), `tail_begin` the older point from which entries are still there.
    """

    def __init__(self, directory: PurePath, snapshots: SnapshotFiles, journal: Journal) -> None:
        self._directory = directory
        self._snapshots = snapshots
        self._journal = journal
        self.snapshot: Snapshot | None = None
        self.tail_begin: SnapshotHeader | None = None
        self._last_index = 0
        self._replayed = False

    @classmethod
    async def open(
        cls,
        disk: Disk,
        directory: PurePath,
        directory_id: uuid.UUID,
        settings: RecordLogSettings,
        telemetry: Telemetry,
    ) -> RecordLog:
        """Verify and open what is on disk; the directory exists and is locked by the caller.

        Raises:
            RecordLogCorruptError: a snapshot or the journal is damaged.
            WrongDirectoryError: the journal is another directory's.
        """
        snapshots = SnapshotFiles(disk, directory / SNAPSHOT_DIRECTORY)
        await snapshots.open()
        newest = await snapshots.read(snapshots.indices[-1]) if snapshots.indices else None
        older = (await snapshots.read(snapshots.indices[-2])).header if len(snapshots.indices) > 1 else None
        log_directory = directory / LOG_DIRECTORY
        await disk.make_directories(log_directory)
        journal_settings = JournalSettings(
            segment_bytes=settings.segment_bytes, queue_bytes_max=settings.queue_bytes_max
        )
        try:
            journal = await Journal.open(
                disk,
                log_directory,
                identity=directory_id.bytes,
                settings=journal_settings,
                telemetry=telemetry,
            )
        except JournalCorruptError as error:
            raise RecordLogCorruptError(error.file, error.position, error.rule, RESTORE_REMEDY) from error
        except JournalIdentityError as error:
            raise WrongDirectoryError(f"{log_directory} does not belong to {directory}: {error}") from error
        log = cls(directory, snapshots, journal)
        log.snapshot = newest
        log.tail_begin = older
        return log

    @property
    def last_index(self) -> int:
        """Newest index that was replayed or appended."""
        return self._last_index

    @property
    def retained_bytes(self) -> int:
        """Bytes that the journal holds."""
        return self._journal.retained_bytes

    async def replay(self) -> AsyncIterator[LogEntry]:
        """Every entry after `tail_begin`, in order without a gap. Must be run to its end, once, before the first append.

        Raises:
            RecordLogCorruptError: an entry is damaged or missing.
        """
        assert not self._replayed
        begin = self.tail_begin.index if self.tail_begin is not None else 0
        expected = begin + 1
        offset: int | None = None
        try:
            async for sequence, data in self._journal.entries():
                entry = self._decode(sequence, bytes(data))
                if offset is not None and entry.index - sequence != offset:
                    raise self._broken(sequence, f"holds index {entry.index} instead of {sequence + offset}")
                offset = entry.index - sequence
                if entry.index < expected:
                    continue  # journals give back whole segments, so older entries may still be there
                if entry.index > expected:
                    raise self._broken(sequence, f"holds index {entry.index}, but {expected} is missing")
                expected += 1
                yield entry
        except JournalCorruptError as error:
            raise RecordLogCorruptError(error.file, error.position, error.rule, RESTORE_REMEDY) from error
        self._last_index = expected - 1
        if self.snapshot is not None and self.snapshot.header.index > self._last_index:
            raise self._broken(
                self._journal.next_sequence,
                f"the log ends at index {self._last_index}, before the snapshot at {self.snapshot.header.index}",
            )
        self._replayed = True

    def append(self, entry: LogEntry) -> asyncio.Future[None]:
        """Add the next entry; the future resolves when it is durable, in order.

        Raises:
            JournalFailedError: the disk failed before; the process must stop.
        """
        assert self._replayed
        assert entry.index == self._last_index + 1, "the log has no holes"
        _, durable = self._journal.append([entry.data])
        self._last_index = entry.index
        return durable

    async def write_snapshot(self, snapshot: Snapshot) -> None:
        """Make a snapshot of committed entries durable, then give back the log before the previous one.

        Raises:
            OSError: the disk failed; the process must stop.
        """
        previous = self.snapshot
        await self._snapshots.write(snapshot)
        self.snapshot = snapshot
        if previous is not None:
            self.tail_begin = previous.header
            self._journal.trim(self._sequence_of(previous.header.index + 1))
            await self._snapshots.drop_old()

    async def close(self) -> None:
        """Wait for appends, write the proof of sync, release files."""
        await self._journal.close()

    def _sequence_of(self, index: int) -> int:
        return self._journal.next_sequence - (self._last_index + 1 - index)

    def _decode(self, sequence: int, data: bytes) -> LogEntry:
        batch = records_pb2.RecordBatch()
        try:
            batch.ParseFromString(data)
        except DecodeError as error:
            raise self._broken(sequence, f"is not a record batch ({error})") from error
        return LogEntry(batch.index, batch, data)

    def _broken(self, sequence: int, rule: str) -> RecordLogCorruptError:
        return RecordLogCorruptError(
            self._directory / LOG_DIRECTORY, sequence, f"entry {sequence} {rule}", RESTORE_REMEDY
        )
