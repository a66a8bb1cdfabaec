"""The record log on disk: a journal of what Raft must not forget, and snapshots that let its old part go.

What lives here: what is written in which order, what a restart may trust, and when segments are given back. Nothing here applies a record and nothing here
decides: the core says what to persist, the owner of the image says when a snapshot is due.
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
"""Pieces that become durable together are cut into journal entries of about this size."""

OnDurable = Callable[[BaseException | None], None]


@dataclass(frozen=True, slots=True)
class RecordLogSettings:
    """Sizes of the log on disk.

    Attributes:
        segment_bytes: of a segment of the journal.
        queue_bytes_max: taken and not yet durable.
        trailing_entries: kept behind a snapshot, so that a follower which was away for a moment needs no snapshot.
        trailing_bytes_max: bound of the same in bytes.
    """

    segment_bytes: int
    queue_bytes_max: int
    trailing_entries: int = 20_000
    trailing_bytes_max: int = 16 * 1024 * 1024


class RecordLog:
    """Open with `open`, read once with `recover`, then persist.

    Attributes:
        snapshot: where the image begins (None: empty). Set to None once it is decoded: a body may be large.
        newest: its header, or that of a newer one.
        tail_begin: the older snapshot, from which on entries are still there.
        snapshots: the files.
        directory: of the controller.
    """

    def __init__(
        self,
        directory: PurePath,
        snapshots: SnapshotFiles,
        journal: Journal,
        settings: RecordLogSettings,
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
        """Verify and open what is on disk; the directory exists and is locked by the caller.

        Raises:
            RecordLogCorruptError: a snapshot or the journal is damaged.
            WrongDirectoryError: the journal is another directory's.
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
        """Bytes that the journal holds."""
        return self._journal.retained_bytes

    @property
    def waits_for_space(self) -> bool:
        """Whether the disk is full: what was handed over waits for space, nothing of it is lost."""
        return self._journal.waits_for_space

    async def recover(self, initial: Membership) -> StoredState:
        """What the core goes on from. Once, before anything is persisted.

        Args:
            initial: who takes part at index 0, before any snapshot or entry.

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
        if begin is not None:  # a crash came between the received snapshot and this
            self._append([encode_begin(begin)], begin.index, _ignore)
        return stored

    def persist(self, hard_state: HardState | None, entries: Sequence[Entry], on_durable: OnDurable) -> None:
        """Write, in this order, and tell when it is durable; those told are told in the order of the calls. At least one of the two is given.

        Raises:
            JournalFailedError: the disk failed before; the process must stop.
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
        """The entries after the result, up to a snapshot at `index`, are worth keeping for followers that lag."""
        settings = self._settings
        by_bytes = self._positions.index_before_bytes(settings.trailing_bytes_max)
        return max(0, min(index, max(index - settings.trailing_entries, by_bytes)))

    async def write_snapshot(
        self, header: SnapshotHeader, pieces: Iterable[bytes], clock: Clock
    ) -> SnapshotHeader:
        """Make a snapshot of committed entries durable, then give back what neither a restart nor a lagging follower needs.

        Returns:
            The complete header (see `SnapshotFiles.write`).

        Raises:
            OSError: the disk failed; the process must stop.
        """
        previous = self.newest
        complete = await self.snapshots.write(header, pieces, clock)
        if self.newest is not previous:
            return complete  # meanwhile another controller's newer one was installed
        self.newest = complete
        self.tail_begin = previous
        if previous is not None:
            self._trim(min(previous.index, self.trailing_index(complete.index)))
        await self.snapshots.drop_old()
        return complete

    def begin_after(self, header: SnapshotHeader) -> None:
        """A received snapshot is durable: the log goes on behind it, whatever it held. Until this is durable too, a restart concludes the same by itself."""
        self.newest, self.tail_begin = header, None
        pieces = [encode_hard_state(self._hard_state), encode_begin(Begin(header.index, header.term))]
        sequence = self._journal.next_sequence

        def durable(error: BaseException | None) -> None:
            if error is None:
                self._journal.trim(sequence)

        self._append(pieces, header.index, durable)
        self._positions.forget_before_sequence(sequence)

    def skip_to(self, header: SnapshotHeader) -> None:
        """A received snapshot is durable, and the log holds its last entry and goes on behind it."""
        self.newest, self.tail_begin = header, None

    async def close(self) -> None:
        """Wait for what is being written, write the proof of sync, release files."""
        await self._journal.close()

    def _append(self, buffers: Sequence[Buffer], last_index: int, on_durable: OnDurable) -> int:
        sequence = self._journal.append_nowait(buffers, on_durable)
        self._positions.add(sequence, last_index, sum(map(len, buffers)))
        return sequence

    def _trim(self, through_index: int) -> None:
        self._trim_to(self._positions.forget(through_index))

    def _trim_to(self, before_sequence: int | None) -> None:
        if before_sequence is None:
            return

        def durable(error: BaseException | None) -> None:
            if error is None:
                self._journal.trim(before_sequence)

        # What goes may hold the only copy of term and vote.
        self._append([encode_hard_state(self._hard_state)], 0, durable)


def _ignore(_: BaseException | None) -> None:
    """A later piece of the same call tells; a failure fails every later append too."""
