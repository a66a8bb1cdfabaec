"""The record log on disk: a journal with Raft's durable state, and snapshots that permit trimming the
journal.

The Raft core decides what to persist; the snapshotter decides when to write a snapshot.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

from ponor_journal.errors import JournalCorruptError, JournalIdentityError
from ponor_journal.journal import Journal
from ponor_journal.settings import JournalSettings
from ponor_raft.entry import Entry, HardState
from ponor_raft.membership import Membership
from ponor_raft.stored import StoredState
from ponor_runtime.clock import Clock
from ponor_runtime.disk import Buffer, Disk
from ponor_runtime.telemetry import Telemetry

from ponor_controller.consensus.errors import RESTORE_REMEDY, RecordLogCorruptError, WrongDirectoryError
from ponor_controller.consensus.log_assembly import LogAssembly
from ponor_controller.consensus.log_pieces import (
    Begin,
    PieceError,
    decode_pieces,
    encode_begin,
    encode_entry,
    encode_hard_state,
)
from ponor_controller.consensus.log_positions import LogPositions
from ponor_controller.consensus.log_recovery import stored_state
from ponor_controller.consensus.snapshot_files import Snapshot, SnapshotFiles
from ponor_controller.consensus.snapshot_format import SnapshotHeader

LOG_DIRECTORY: Final = "log"
SNAPSHOT_DIRECTORY: Final = "snapshots"
JOURNAL_ENTRY_BYTES: Final = 1024 * 1024
"""Target size of a journal entry; larger sets of pieces are divided."""

OnDurable = Callable[[BaseException | None], None]


@dataclass(frozen=True, slots=True)
class RecordLogSettings:
    """Sizes of the log on disk.

    Attributes:
        segment_bytes: size of a segment of the journal.
        queue_bytes_max: bound of bytes that are queued and not yet durable.
        trailing_entries: number of entries before a snapshot that are kept for followers that were briefly
            absent.
        trailing_bytes_max: bound of the bytes of these entries.
    """

    segment_bytes: int
    queue_bytes_max: int
    trailing_entries: int = 20_000
    trailing_bytes_max: int = 16 * 1024 * 1024


class RecordLog:
    """The record log. Open it with `open` and read it once with `recover` before anything is persisted.

    Attributes:
        snapshot: the newest snapshot with its body; None without one, and after recovery, to free memory.
        newest: the header of the newest snapshot.
        tail_begin: the header of the snapshot before `newest`; the log still has the entries after it.
        snapshots: the snapshot files.
        directory: the controller's data directory.
    """

    def __init__(
        self, directory: PurePath, snapshots: SnapshotFiles, journal: Journal, settings: RecordLogSettings
    ) -> None:
        self.directory = directory
        self._journal = journal
        self._settings = settings
        self._piece_bytes = min(JOURNAL_ENTRY_BYTES, settings.segment_bytes // 4)
        self._positions = LogPositions()
        self._hard_state = HardState()
        self._recovered = False
        self.snapshots = snapshots
        self.snapshot: Snapshot | None = None
        self.newest: SnapshotHeader | None = None
        self.tail_begin: SnapshotHeader | None = None

    @classmethod
    async def open(
        cls,
        disk: Disk,
        directory: PurePath,
        directory_id: uuid.UUID,
        settings: RecordLogSettings,
        telemetry: Telemetry,
    ) -> RecordLog:
        """Open and verify the log in a directory that exists and that the caller has locked.

        Raises:
            RecordLogCorruptError: a snapshot or the journal is damaged.
            WrongDirectoryError: the journal belongs to another directory.
        """
        snapshots = SnapshotFiles(disk, directory / SNAPSHOT_DIRECTORY)
        await snapshots.open()
        await snapshots.drop_old_partials()
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
        log = cls(directory, snapshots, journal, settings)
        log.snapshot = newest
        log.newest = newest.header if newest is not None else None
        log.tail_begin = older
        return log

    @property
    def retained_bytes(self) -> int:
        """Size of the journal on disk."""
        return self._journal.retained_bytes

    @property
    def waits_for_space(self) -> bool:
        """Whether the disk is full. Queued writes wait for space and are not lost."""
        return self._journal.waits_for_space

    async def recover(self, initial: Membership) -> StoredState:
        """The stored state for the Raft core. Called once, before anything is persisted.

        Args:
            initial: the membership at index 0.

        Raises:
            RecordLogCorruptError: an entry is damaged or missing, or log and snapshot do not belong together.
        """
        assert not self._recovered
        assembly = LogAssembly()
        sequence = 0
        try:
            async for sequence, view in self._journal.entries():
                data = bytes(view)
                last_index = 0
                for piece in decode_pieces(data):
                    assembly.add(piece)
                    if not isinstance(piece, HardState):
                        last_index = max(last_index, piece.index)
                self._positions.add(sequence, last_index, len(data))
            stored, begin = stored_state(assembly, self.newest, self.tail_begin, initial)
        except JournalCorruptError as error:
            raise RecordLogCorruptError(error.file, error.position, error.rule, RESTORE_REMEDY) from error
        except PieceError as error:
            raise RecordLogCorruptError(
                self.directory / LOG_DIRECTORY, sequence, f"entry {sequence} {error}", RESTORE_REMEDY
            ) from error
        self._hard_state = stored.hard_state
        self._recovered = True
        if begin is not None:  # a crash interrupted `begin_after`
            self._append([encode_begin(begin)], begin.index, _ignore)
        return stored

    def persist(self, hard_state: HardState | None, entries: Sequence[Entry], on_durable: OnDurable) -> None:
        """Write the hard state, then the entries. `on_durable` callbacks are called in the order of the
        writes.

        Raises:
            JournalFailedError: an earlier write failed; the process must stop.
        """
        assert self._recovered
        assert hard_state is not None or entries, "nothing to write"
        buffers: list[Buffer] = []
        size_bytes = last_index = 0
        if hard_state is not None:
            self._hard_state = hard_state
            buffers.append(encode_hard_state(hard_state))
            size_bytes = len(buffers[0])
        for entry in entries:
            head, data = encode_entry(entry)
            if buffers and size_bytes + len(head) + len(data) > self._piece_bytes:
                self._append(buffers, last_index, _ignore)
                buffers, size_bytes = [], 0
            buffers += (head, data)
            size_bytes += len(head) + len(data)
            last_index = entry.index
        self._append(buffers, last_index, on_durable)

    def trailing_index(self, index: int) -> int:
        """The index after which entries are kept for lagging followers, given a snapshot at `index`."""
        settings = self._settings
        by_bytes = self._positions.index_before_bytes(settings.trailing_bytes_max)
        return max(0, min(index, max(index - settings.trailing_entries, by_bytes)))

    async def write_snapshot(
        self, header: SnapshotHeader, pieces: Iterable[bytes], clock: Clock
    ) -> SnapshotHeader:
        """Make a snapshot of committed entries durable, then trim entries that are no longer needed.

        Returns:
            The complete header (see `SnapshotFiles.write`).

        Raises:
            OSError: the disk failed; the process must stop.
        """
        previous = self.newest
        complete = await self.snapshots.write(header, pieces, clock)
        if self.newest is not previous:
            return complete  # a newer received snapshot was installed in the meantime
        self.newest = complete
        self.tail_begin = previous
        if previous is not None:
            self._trim(min(previous.index, self.trailing_index(complete.index)))
        await self.snapshots.drop_old()
        return complete

    def begin_after(self, header: SnapshotHeader) -> None:
        """Restart the log after a received snapshot that is durable.

        If the process crashes before the restart is durable, recovery repeats the restart.
        """
        self.newest, self.tail_begin = header, None
        pieces = [encode_hard_state(self._hard_state), encode_begin(Begin(header.index, header.term))]
        sequence = self._journal.next_sequence

        def durable(error: BaseException | None) -> None:
            if error is None:
                self._journal.trim(sequence)

        self._append(pieces, header.index, durable)
        self._positions.trim_before_sequence(sequence)

    def skip_to(self, header: SnapshotHeader) -> None:
        """Note a received snapshot that is durable and whose last entry the log contains."""
        self.newest, self.tail_begin = header, None

    async def close(self) -> None:
        """Wait for writes in progress, write the journal's proof of sync, and close the files."""
        await self._journal.close()

    def _append(self, buffers: Sequence[Buffer], last_index: int, on_durable: OnDurable) -> int:
        sequence = self._journal.append_nowait(buffers, on_durable)
        self._positions.add(sequence, last_index, sum(map(len, buffers)))
        return sequence

    def _trim(self, through_index: int) -> None:
        self._trim_to(self._positions.trim(through_index))

    def _trim_to(self, before_sequence: int | None) -> None:
        if before_sequence is None:
            return

        def durable(error: BaseException | None) -> None:
            if error is None:
                self._journal.trim(before_sequence)

        # The trimmed entries may contain the only copy of term and vote.
        self._append([encode_hard_state(self._hard_state)], 0, durable)


def _ignore(_: BaseException | None) -> None:
    """Ignore the result of an append: only the last append of a call reports, and a failure also fails all
    later appends.
    """
