"""The journal as its owner sees it: open, read what is there, append, trim, close."""

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
    """Entries numbered from 0 without holes, durable in the order they were appended. Build it with `open`.

    One owner, one process: the directory is locked while the journal is open.
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
        """Verify what is in the directory, or begin a journal in it; cut off a torn tail durably.

        Args:
            disk: where.
            directory: of this journal alone; made if it is not there. Its name is the journal's label in metrics.
            identity: 16 bytes that tell this journal from every other; best random and not known to clients.
            settings: sizes.
            telemetry: where it counts.
            clock: measures syncs; without one the event loop's time is good enough.

        Raises:
            JournalCorruptError: damage below the newest proof of sync; nothing was changed.
            JournalIdentityError: the directory holds another journal.
            BlockingIOError: another process has the journal open.
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
                lock.release()  # last: the next owner must not meet work of this one
            raise
        journal = cls(disk, identity, settings, recovered, files, writer, lock)
        journal._show(telemetry, directory.name)
        return journal

    @property
    def next_sequence(self) -> int:
        """The number of the next entry."""
        return self._next_sequence

    @property
    def synced_sequence(self) -> int:
        """Every entry below is durable."""
        return self._writer.synced_sequence

    @property
    def queued_bytes(self) -> int:
        """Bytes of entries taken and not yet durable."""
        return self._writer.queue.queued_bytes

    @property
    def retained_bytes(self) -> int:
        """Bytes on disk from the oldest segment that is still needed to the end."""
        return self._writer.retained_bytes

    @property
    def waits_for_space(self) -> bool:
        """Whether entries wait because the disk is full; a trim gives segments back."""
        return self._files.waits_for_space

    def when_full(self, callback: Callable[[], None]) -> None:
        """Call whenever the disk is found full and a segment is needed."""
        self._files.on_full = callback

    def try_room(self, size_bytes: int) -> bool:
        """Whether `append` would take an entry of this size now. An empty queue takes any entry."""
        return self._writer.queue.has_room(size_bytes)

    async def entries(self, from_sequence: int = 0) -> AsyncIterator[tuple[int, memoryview]]:
        """Every recovered entry from a sequence on. Only before the first append. A view keeps its whole segment in memory.

        Raises:
            JournalCorruptError: the disk returns other bytes than it did when the journal was opened.
        """
        if self._appended:
            raise RuntimeError("the entries of a journal are read before the first append")
        async for entry in read_entries(
            self._disk, self._recovered_segments(), self._identity, from_sequence
        ):
            yield entry

    def append(self, buffers: Sequence[Buffer]) -> tuple[int, asyncio.Future[None]]:
        """`append_nowait` for those who wait; what is appended in one turn of the loop is written together.

        Returns:
            The entry's sequence, and a future that is done once the entry and all before it are durable. Futures complete in order.
            Cancelling it takes nothing back.
        """
        durable: asyncio.Future[None] = self._loop.create_future()
        sequence = self._take(buffers, partial(_settle, durable))
        self._loop.call_soon(self._writer.advance)
        return sequence, durable

    def append_nowait(self, buffers: Sequence[Buffer], on_durable: OnDurable) -> int:
        """Hand over one entry, the buffers one after the other; they must not change until `on_durable` is called.

        It is written at once if nothing is being written, so whoever has several small entries joins them first.

        Args:
            buffers: of the entry; a memoryview is one of bytes.
            on_durable: called once, from the loop and never from within this call, in the order of the entries: with None when the entry and
                all before it are durable, or with a `JournalFailedError`. It may append; it must not raise.

        Returns:
            The entry's sequence.

        Raises:
            JournalFullError: `queue_bytes_max` bytes are queued; the entry was not taken.
            EntryTooLargeError: larger than `entry_bytes_max`.
            JournalFailedError: a write or sync failed before.
            JournalClosedError: `close` was called.
        """
        sequence = self._take(buffers, on_durable)
        self._writer.advance()
        return sequence

    def trim(self, before_sequence: int) -> None:
        """Entries below are not needed any more: segments that hold only such are recycled in the background.

        A crash may bring some of them back.
        """
        assert before_sequence <= self._writer.synced_sequence, "only durable entries can be trimmed"
        segments = self._writer.segments
        while len(segments) > 1 and segments[1].first_sequence <= before_sequence:
            oldest = segments.pop(0)
            self._files.recycle(oldest.path, oldest.segment_bytes)

    async def close(self) -> None:
        """Make everything that was appended durable, write the synced proof of it, and let go of the directory. Idempotent."""
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
                f"an entry of {size_bytes} bytes is larger than {self._settings.entry_limit_bytes}: "
                "raise entry_bytes_max, and segment_bytes with it"
            )
        if not writer.queue.has_room(size_bytes):
            raise JournalFullError(
                f"{writer.queue.queued_bytes} bytes wait for the disk and {self._settings.queue_bytes_max} may: try again later"
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
