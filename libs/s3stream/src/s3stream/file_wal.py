"""The write-ahead log on a local disk: a journal whose entries are encoded stream records
(docs/formats/wal.md).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import PurePath
from typing import Final

from ponor_journal.errors import (
    EntryTooLargeError,
    JournalClosedError,
    JournalCorruptError,
    JournalFailedError,
    JournalFullError,
)
from ponor_journal.journal import Journal
from ponor_journal.settings import JournalSettings
from ponor_runtime.disk import Buffer, Disk
from ponor_runtime.telemetry import Telemetry

from s3stream.errors import ObjectCorruptError, StorageFailedError, WalCorruptError, WalFullError
from s3stream.records import StreamRecord, decode_records
from s3stream.settings import StorageSettings


class FileWal:
    """`WriteAheadLog` on a journal. Create it with `open`. Only one process can use a directory."""

    gathers = False
    trim_is_recorded = False

    def __init__(self, journal: Journal, directory: PurePath, settings: StorageSettings) -> None:
        self._journal = journal
        self._directory = directory
        self._window_bytes_max: Final = settings.wal_bytes_max
        self._queue_bytes_max: Final = settings.wal_queue_bytes_max
        self._pressure_bytes: Final = settings.wal_pressure_bytes
        self._carry_bytes_max: Final = settings.wal_carry_bytes_max
        self.record_bytes_max: Final = settings.append_bytes_max

    @classmethod
    async def open(
        cls,
        disk: Disk,
        directory: PurePath,
        *,
        identity: bytes,
        settings: StorageSettings,
        telemetry: Telemetry,
    ) -> FileWal:
        """Verify the existing log in a directory, or create one.

        Args:
            disk: disk of the directory.
            directory: used by this log only.
            identity: 16 bytes that identify the node and its cluster; a log with another identity is refused.
            settings: storage settings.
            telemetry: receives the journal's metrics.

        Raises:
            WalCorruptError: bytes below the newest proof of sync are damaged; nothing was changed.
            JournalIdentityError: the directory belongs to another node or cluster.
            BlockingIOError: another process uses the directory.
            OSError: the disk failed.
        """
        journal_settings = JournalSettings(
            segment_bytes=settings.wal_segment_bytes,
            # The log cache holds the queued entries, so its budget is the effective bound. Appends of
            # hooks may exceed that budget slightly.
            queue_bytes_max=2 * settings.log_cache_bytes_max,
            spares_max=settings.wal_spares_max,
        )
        try:
            journal = await Journal.open(
                disk, directory, identity=identity, settings=journal_settings, telemetry=telemetry
            )
        except JournalCorruptError as error:
            raise WalCorruptError(str(error)) from error
        return cls(journal, directory, settings)

    @property
    def created(self) -> bool:
        return self._journal.recovery.created

    @property
    def retained_bytes(self) -> int:
        return self._journal.retained_bytes

    @property
    def next_sequence(self) -> int:
        return self._journal.next_sequence

    @property
    def needs_upload(self) -> bool:
        return self._journal.retained_bytes >= self._pressure_bytes

    @property
    def may_carry(self) -> bool:
        return self._journal.retained_bytes <= self._carry_bytes_max

    @property
    def room_bytes(self) -> int:
        journal = self._journal
        queued_bytes = journal.queued_bytes
        window_room_bytes = self._window_bytes_max - journal.retained_bytes - queued_bytes
        if queued_bytes == 0:
            return window_room_bytes  # an entry larger than the queue is accepted when the queue is empty
        return min(window_room_bytes, self._queue_bytes_max - queued_bytes)

    @property
    def waits_for_space(self) -> bool:
        return self._journal.waits_for_space

    def when_full(self, callback: Callable[[], None]) -> None:
        self._journal.when_full(callback)

    def append(self, buffers: Sequence[Buffer], on_durable: Callable[[BaseException | None], None]) -> int:
        try:
            return self._journal.append_nowait(buffers, on_durable)
        except JournalFullError as error:
            raise WalFullError(f"{self._directory}: {error}") from error
        except (JournalFailedError, JournalClosedError, EntryTooLargeError) as error:
            raise StorageFailedError(f"{self._directory}: {error}") from error

    def hurry(self) -> None:
        """Do nothing: the log writes as soon as the previous write ends."""

    async def recover(self) -> AsyncIterator[tuple[int, StreamRecord]]:
        try:
            async for sequence, entry in self._journal.entries():
                for record in decode_records(entry, source=f"{self._directory}, entry {sequence}"):
                    yield sequence, record
        except (JournalCorruptError, ObjectCorruptError) as error:
            raise WalCorruptError(str(error)) from error

    def trim(self, before_sequence: int, *, recorded_sequence: int = 0) -> None:
        del recorded_sequence  # no other node reads this log
        self._journal.trim(before_sequence)

    async def close(self, *, unneeded: bool = False) -> None:
        del unneeded  # the next start opens this log again in any case
        await self._journal.close()
