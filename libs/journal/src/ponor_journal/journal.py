"""The journal's public interface: open, read recovered entries, append, trim, close."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import PurePath

from ponor_runtime.clock import Clock
from ponor_runtime.disk import Buffer, Disk, DiskLock
from ponor_runtime.telemetry import Telemetry

from ponor_journal.entry_queue import OnDurable, QueuedEntry
from ponor_journal.errors import EntryTooLargeError, JournalClosedError, JournalFullError
from ponor_journal.format import IDENTITY_BYTES
from ponor_journal.instruments import JournalInstruments
from ponor_journal.recovery import Recovered, RecoveryReport, Segment, read_entries, recover
from ponor_journal.segment_files import SegmentFiles
from ponor_journal.settings import JournalSettings
from ponor_journal.writer import JournalWriter


class Journal:
    """Entries numbered from 0 without gaps, durable in append order. Create it with `open`.

    The directory is locked while the journal is open.
    """

    def __init__(
        self,
        disk: Disk,
        identity: bytes,
        settings: JournalSettings,
        recovered: Recovered,
        files: SegmentFiles,
        writer: JournalWriter,
        lock: DiskLock,
    ) -> None:
        self._disk = disk
        self._identity = identity
        self._settings = settings
        self._files = files
        self._writer = writer
        self._lock = lock
        self._loop = asyncio.get_running_loop()
        self._next_sequence = recovered.report.next_sequence
        self._appended = False
        self._closed = False
        self.recovery: RecoveryReport = recovered.report

    @classmethod
    async def open(
        cls,
        disk: Disk,
        directory: PurePath,
        *,
        identity: bytes,
        settings: JournalSettings,
        telemetry: Telemetry,
        clock: Clock | None = None,
    ) -> Journal:
        """Verify the journal in the directory, or create one; truncate a torn tail durably.

        Args:
            disk: the disk port.
            directory: used by this journal only; created if missing. Its name is the journal's label in
                metrics.
            identity: 16 bytes, unique to this journal; should be random and unknown to clients.
            settings: sizes and limits.
            telemetry: receives the metrics.
            clock: measures the duration of syncs; default: the event loop's clock.

        Raises:
            JournalCorruptError: damage before the newest proof of sync; nothing was changed.
            JournalIdentityError: the directory holds another journal.
            BlockingIOError: another process has opened the journal.
            OSError: the disk failed.
        """
        assert len(identity) == IDENTITY_BYTES
        await disk.make_directories(directory)
        lock = disk.lock(directory)
        files = SegmentFiles(disk, directory, settings.segment_bytes, settings.spares_max)
        writer = None
        try:
            recovered = await recover(disk, await files.adopt(), identity)
            instruments = JournalInstruments(telemetry, directory.name)
            writer = JournalWriter(disk, files, identity, settings, recovered, instruments, clock)
            await writer.start()
        except BaseException:
            try:
                if writer is not None:
                    await writer.abandon()
                await files.abandon()
            finally:
                lock.release()  # last: no background work may run after the release
            raise
        journal = cls(disk, identity, settings, recovered, files, writer, lock)
        journal._show(telemetry, directory.name)
        return journal

    @property
    def next_sequence(self) -> int:
        """Sequence of the next entry."""
        return self._next_sequence

    @property
    def synced_sequence(self) -> int:
        """Every entry with a smaller sequence is durable."""
        return self._writer.synced_sequence

    @property
    def queued_bytes(self) -> int:
        """Bytes of accepted entries that are not durable yet."""
        return self._writer.queue.queued_bytes

    @property
    def retained_bytes(self) -> int:
        """Bytes on disk from the oldest retained segment to the end."""
        return self._writer.retained_bytes

    @property
    def waits_for_space(self) -> bool:
        """Whether entries wait because the disk is full; a trim frees segments."""
        return self._files.waits_for_space

    def when_full(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever the journal needs a segment and the disk is full."""
        self._files.on_full = callback

    async def entries(self, from_sequence: int = 0) -> AsyncIterator[tuple[int, memoryview]]:
        """Yield every recovered entry from `from_sequence` on, before the first append.

        A view keeps its whole segment in memory.

        Raises:
            JournalCorruptError: the disk returned different data than when the journal was opened.
        """
        if self._appended:
            raise RuntimeError("the entries of a journal can be read only before the first append")
        async for entry in read_entries(
            self._disk, self._recovered_segments(), self._identity, from_sequence
        ):
            yield entry

    def append(self, buffers: Sequence[Buffer]) -> tuple[int, asyncio.Future[None]]:
        """Append an entry; entries appended in one iteration of the loop share a write.

        Returns: The entry's sequence, and a future that completes once the entry and all entries before it
            are durable. Futures complete in order. Cancelling the future does not cancel the append.
        """
        durable: asyncio.Future[None] = self._loop.create_future()
        sequence = self._take(buffers, partial(_settle, durable))
        self._loop.call_soon(self._writer.advance)
        return sequence, durable

    def append_nowait(self, buffers: Sequence[Buffer], on_durable: OnDurable) -> int:
        """Append one entry, given as consecutive buffers that must not change before `on_durable` is called.

        The write starts immediately if no other write is in progress, so join several small entries first.

        Args:
            buffers: the entry's bytes; a memoryview must have byte items.
            on_durable: called once, from the loop and never from within this call, in entry order: with None
                when the entry and all entries before it are durable, or with a `JournalFailedError`. It may
                append; it must not raise.

        Returns:
            The entry's sequence.

        Raises:
            JournalFullError: `queue_bytes_max` bytes are queued; the entry was not accepted.
            EntryTooLargeError: larger than `entry_bytes_max`.
            JournalFailedError: a write or sync has failed.
            JournalClosedError: `close` was called.
        """
        sequence = self._take(buffers, on_durable)
        self._writer.advance()
        return sequence

    def trim(self, before_sequence: int) -> None:
        """Release entries before `before_sequence`.

        Segments with only such entries are recycled in the background.

        A crash may restore some of them.
        """
        assert before_sequence <= self._writer.synced_sequence, "only durable entries can be trimmed"
        segments = self._writer.segments
        while len(segments) > 1 and segments[1].first_sequence <= before_sequence:
            oldest = segments.pop(0)
            self._files.recycle(oldest.path, oldest.segment_bytes)

    async def close(self) -> None:
        """Make all appended entries durable, write and sync a proof, and release the directory.

        Idempotent.
        """
        if self._closed:
            return
        self._closed = True
        try:
            await self._writer.close()
            await self._files.close()
        finally:
            self._lock.release()

    def _take(self, buffers: Sequence[Buffer], on_durable: OnDurable) -> int:
        writer = self._writer
        if writer.error is not None:
            raise writer.error
        if self._closed:
            raise JournalClosedError(f"the journal in {self._files.directory} was closed")
        size_bytes = sum(map(len, buffers))
        if size_bytes > self._settings.entry_limit_bytes:
            raise EntryTooLargeError(
                f"an entry of {size_bytes} bytes exceeds the limit of"
                f" {self._settings.entry_limit_bytes} bytes; raise entry_bytes_max and segment_bytes"
            )
        if not writer.queue.has_room(size_bytes):
            raise JournalFullError(
                f"{writer.queue.queued_bytes} bytes are queued for the disk, and the limit is"
                f" {self._settings.queue_bytes_max}; try again later"
            )
        self._appended = True
        sequence = self._next_sequence
        self._next_sequence = sequence + 1
        writer.queue.put(QueuedEntry(buffers, size_bytes, on_durable))
        return sequence

    def _recovered_segments(self) -> list[Segment]:
        return list(self._writer.segments) if self.recovery.entries else []

    def _show(self, telemetry: Telemetry, role: str) -> None:
        report = self.recovery
        telemetry.gauge("ponor_journal_queued_bytes", lambda: self.queued_bytes, journal=role)
        telemetry.gauge("ponor_journal_retained_bytes", lambda: self.retained_bytes, journal=role)
        telemetry.gauge(
            "ponor_journal_segments", lambda: len(self._writer.segments), journal=role, state="live"
        )
        telemetry.gauge(
            "ponor_journal_segments", lambda: self._files.spare_count, journal=role, state="spare"
        )
        telemetry.gauge(
            "ponor_journal_waits_for_space", lambda: int(self._files.waits_for_space), journal=role
        )
        telemetry.gauge("ponor_journal_recovered_entries", lambda: report.entries, journal=role)
        telemetry.gauge("ponor_journal_torn_bytes", lambda: report.torn_bytes, journal=role)


def _settle(durable: asyncio.Future[None], error: BaseException | None) -> None:
    if durable.done():
        return
    if error is None:
        durable.set_result(None)
    else:
        durable.set_exception(error)
