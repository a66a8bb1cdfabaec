"""The single writer of a journal: group commit, rotation, proof of sync."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import PurePath
from typing import Any, Final

from ponor_runtime.clock import Clock
from ponor_runtime.disk import Disk, DiskFile

from ponor_journal.entry_queue import EntryQueue, QueuedEntry
from ponor_journal.errors import JournalError, JournalFailedError
from ponor_journal.format import (
    FORMAT_VERSION,
    OPENING_FRAME_BYTES,
    PROOF_FRAME_BYTES,
    FrameKind,
    Opening,
    aligned,
    encode_header,
    encode_opening_frame,
    frame_seed,
)
from ponor_journal.group import EncodedGroup, encode_group, group_room_bytes
from ponor_journal.instruments import JournalInstruments
from ponor_journal.recovery import Recovered, Segment
from ponor_journal.segment_files import NO_SPACE, SegmentFiles
from ponor_journal.settings import JournalSettings

DATA_FRAME_BYTES_MIN: Final = aligned(1)


class JournalWriter:
    """Writes groups from the queue until it is closed or the disk fails.

    There is no linger: entries that arrive during a sync form the next group. Only one write is in flight, so
    only the last group can be torn.
    """

    def __init__(
        self,
        disk: Disk,
        files: SegmentFiles,
        identity: bytes,
        settings: JournalSettings,
        recovered: Recovered,
        instruments: JournalInstruments,
        clock: Clock | None,
    ) -> None:
        self._disk = disk
        self._files = files
        self._identity = identity
        self._settings = settings
        self._instruments = instruments
        self._loop = asyncio.get_running_loop()
        self._now_ns = clock.monotonic_ns if clock is not None else self._loop_time_ns
        self.queue = EntryQueue(settings.queue_bytes_max, settings.group_bytes_max)
        self.segments = recovered.segments
        self.synced_sequence = recovered.report.next_sequence
        self.error: JournalError | None = None
        self._chain_crc = recovered.chain_crc
        self._generation = recovered.generation
        self._unproven_bytes = recovered.unproven
        self._seed = 0
        self._file: DiskFile | None = None
        self._position = 0
        self._synced_through = 0
        self._unproven = False
        self._proof_due = False
        self._proof_timer: asyncio.TimerHandle | None = None
        self._last_write_ns = 0
        self._started_ns = 0
        self._group: EncodedGroup | None = None
        self._tail_is_lost = False
        self._step: asyncio.Task[None] | None = None
        self._closing = False
        self._settled = asyncio.Event()
        self.busy = True
        """Whether a write is in progress, or `start` has not finished."""

    @property
    def retained_bytes(self) -> int:
        """Bytes in live segments, up to the end of the written data."""
        return sum(segment.end for segment in self.segments[:-1]) + self._position

    @property
    def _tail_bytes(self) -> int:
        return self.segments[-1].segment_bytes if self.segments else 0

    async def start(self) -> None:
        """Start a new generation after the last accepted frame or in a new segment; durable on return.

        The opening frame truncates a torn tail for good: old data after it has an older generation, and the
        previous-frame CRC of all later frames leads back to the opening frame.
        """
        self._files.saw_number(self._generation)
        if self.segments:
            await self._reopen(self.segments[-1])
        if self._tail_is_lost or self._position + DATA_FRAME_BYTES_MIN + PROOF_FRAME_BYTES > self._tail_bytes:
            await self._rotate()
        self._files.maintain()
        self.busy = False

    def advance(self) -> None:
        """Start the next write unless one is in progress; its completion calls `advance` again."""
        if self.busy or self.error is not None:
            return
        if self.queue:
            self.busy = True
            if self._tail_is_lost or self.queue.first_cost_bytes() > self._group_room_bytes():
                self._begin(self._rotate())
            else:
                self._write_group()
        elif self._unproven and (self._proof_due or self._closing):
            self.busy = True
            self._begin(self._write_proof(sync=self._closing))
        elif self._closing:
            self._settled.set()

    async def close(self) -> None:
        """Write the queue and a synced proof, then close the file."""
        self._closing = True
        self._files.stop_waiting()
        self.advance()
        if self.error is None:
            await self._settled.wait()
        if self._step is not None:
            await asyncio.wait([self._step])
        if self._proof_timer is not None:
            self._proof_timer.cancel()
        if self._file is not None:
            await self._file.close()
            self._file = None

    async def abandon(self) -> None:
        """Close the file after a failed start."""
        if self._file is not None:
            await self._file.close()
            self._file = None

    # A group commit needs no task: the appender calls `_write_group`, and the loop calls `_group_written`
    # when the disk has completed the write.

    def _write_group(self) -> None:
        entries = self.queue.take_group(self._group_room_bytes())
        group = encode_group(
            entries,
            self._seed,
            generation=self._generation,
            first_sequence=self.synced_sequence,
            synced_through=self._synced_through,
            previous_crc=self._chain_crc,
        )
        self._group = group
        self._started_ns = self._now_ns()
        assert self._file is not None
        self._file.write_sync_then(self._position, group.buffers, self._group_written)

    def _group_written(self, error: BaseException | None) -> None:
        group, self._group = self._group, None
        assert group is not None
        if error is not None:
            self._group_failed(error)
            return
        self._position += group.frame_bytes
        self._synced_through = self._position
        self._chain_crc = group.crc
        now_ns = self._now_ns()
        self._last_write_ns = now_ns
        durable = self.queue.group_is_durable()
        self.synced_sequence += len(durable)
        self._instruments.group_committed(len(durable), group.frame_bytes, now_ns - self._started_ns)
        self._proof_is_needed()
        self.busy = False
        self.advance()  # start the next write before the callbacks run
        self._tell(durable, None)

    def _group_failed(self, error: BaseException) -> None:
        """Wait for space if the disk is full; fail the journal on any other error."""
        if isinstance(error, OSError) and error.errno in NO_SPACE:
            # The data after the last synced frame is undefined. So write no more to this segment; the next
            # segment's opening frame records where this one ended.
            self._tail_is_lost = True
            self.queue.group_returns()
            self.busy = False
            self.advance()
        else:
            self._fail(error)

    def _begin(self, step: Coroutine[Any, Any, None]) -> None:
        """Run a rare step in a task."""
        self._step = self._loop.create_task(step, name="journal-writer")
        self._step.add_done_callback(self._stepped)

    def _stepped(self, step: asyncio.Task[None]) -> None:
        self._step = None
        error = asyncio.CancelledError() if step.cancelled() else step.exception()
        if error is not None:
            self._fail(error)
        else:
            self.busy = False
            self.advance()

    def _fail(self, error: BaseException) -> None:
        # Do not retry a failed sync: the kernel may have marked the lost pages clean, so a later sync would
        # succeed without writing them.
        self.error = JournalFailedError(
            f"the journal in {self._files.directory} failed ({error}): the process must stop;"
            " its next start recovers the journal"
        )
        self.error.__cause__ = error
        self.busy = False
        self._settled.set()
        self._tell(self.queue.fail(), self.error)
        if not isinstance(error, OSError | asyncio.CancelledError):
            self._loop.call_exception_handler({"message": "journal writer", "exception": error})

    def _tell(self, entries: list[QueuedEntry], error: JournalError | None) -> None:
        """Run the entries' callbacks; an exception in one does not stop the others."""
        for entry in entries:
            try:
                entry.on_durable(error)
            except Exception as raised:  # noqa: BLE001 - reported
                self._loop.call_exception_handler(
                    {"message": "completion callback of a journal entry raised", "exception": raised}
                )

    def _loop_time_ns(self) -> int:
        return int(self._loop.time() * 1e9)

    def _group_room_bytes(self) -> int:
        return group_room_bytes(self._tail_bytes - PROOF_FRAME_BYTES - self._position)

    def _proof_is_needed(self) -> None:
        self._unproven = True
        self._proof_due = False
        if self._proof_timer is None:
            self._proof_timer = self._loop.call_later(
                self._settings.proof_delay_ms / 1000, self._proof_timer_fired
            )

    def _proof_timer_fired(self) -> None:
        # One timer serves many groups: it checks the time of the last group instead of being rescheduled by
        # every group.
        self._proof_timer = None
        if not self._unproven:
            return
        rest_s = self._settings.proof_delay_ms / 1e3 - (self._now_ns() - self._last_write_ns) / 1e9
        if rest_s > 0:
            self._proof_timer = self._loop.call_later(rest_s, self._proof_timer_fired)
        else:
            self._proof_due = True
            self.advance()

    async def _write_proof(self, *, sync: bool) -> None:
        """Write a frame which proves that everything before it has been synced.

        If this frame is lost, the next one proves the same.
        """
        assert self._position + PROOF_FRAME_BYTES <= self._tail_bytes
        header, _ = encode_header(
            FrameKind.PROOF,
            self._seed,
            generation=self._generation,
            first_sequence=self.synced_sequence,
            entry_count=0,
            body_bytes=0,
            synced_through=self._synced_through,
            previous_crc=self._chain_crc,
            body_crc=self._seed,
        )
        frame = [header.ljust(PROOF_FRAME_BYTES, b"\0")]
        assert self._file is not None
        self._unproven = self._proof_due = False
        try:
            await (self._file.write_sync if sync else self._file.write)(self._position, frame)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            self._tail_is_lost = True  # the proof is not on disk, which is harmless
        else:
            self._position += PROOF_FRAME_BYTES

    async def _rotate(self) -> None:
        previous = self.segments[-1] if self.segments else None
        generation, spare, file, crc = await self._open_spare(previous.generation if previous else 0)
        try:
            path = await self._files.make_live(spare, generation)
        except BaseException:
            await file.close()
            raise
        if previous is not None and self._file is not None:
            previous.end = self._position
            await self._file.close()
        self._file = file
        self.segments.append(
            Segment(path, generation, self.synced_sequence, self._settings.segment_bytes, OPENING_FRAME_BYTES)
        )
        self._begin_generation(generation, crc, OPENING_FRAME_BYTES)
        self._tail_is_lost = False
        self._files.maintain()

    async def _open_spare(self, previous_generation: int) -> tuple[int, PurePath, DiskFile, int]:
        """Take a spare, and write and sync its opening frame. Because this precedes the rename, every live
        segment has an intact opening frame.
        """
        failures = 0
        while True:
            spare = await self._files.take_spare()
            generation = self._files.draw_number()
            file = await self._disk.open(spare, uncached=True)
            try:
                crc = await self._write_opening(
                    file, 0, generation, previous_generation, self._settings.segment_bytes
                )
            except OSError as error:
                await file.close()
                self._files.return_spare(spare)
                await self._files.wait_for_space(error, failures)
                failures += 1
            except BaseException:
                await file.close()
                raise
            else:
                return generation, spare, file, crc

    async def _reopen(self, tail: Segment) -> None:
        self._file = await self._disk.open(tail.path, uncached=True)
        # If the last process died before a sync, accepted frames may exist only in the page cache. If a sync
        # had failed, their pages may be marked clean, and the kernel writes them to disk only if they are
        # written again.
        await self._write_unproven(self._file, tail.end - len(self._unproven_bytes))
        self._position = tail.end
        if tail.end + OPENING_FRAME_BYTES > tail.segment_bytes:
            return
        generation = self._files.draw_number()
        try:
            crc = await self._write_opening(self._file, tail.end, generation, 0, tail.segment_bytes)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            self._tail_is_lost = True
        else:
            self._begin_generation(generation, crc, tail.end + OPENING_FRAME_BYTES)

    async def _write_unproven(self, file: DiskFile, position: int) -> None:
        failures = 0
        while True:
            try:
                await file.write_sync(position, [self._unproven_bytes])
            except OSError as error:
                await self._files.wait_for_space(error, failures)
                failures += 1
            else:
                self._unproven_bytes = b""
                return

    async def _write_opening(
        self, file: DiskFile, position: int, generation: int, previous_generation: int, segment_bytes: int
    ) -> int:
        frame, crc = encode_opening_frame(
            Opening(self._identity, FORMAT_VERSION, segment_bytes, previous_generation),
            generation=generation,
            first_sequence=self.synced_sequence,
            synced_through=position,
            previous_crc=self._chain_crc,
        )
        await file.write_sync(position, [frame])
        return crc

    def _begin_generation(self, generation: int, crc: int, position: int) -> None:
        self._generation = generation
        self._seed = frame_seed(self._identity, generation)
        self._chain_crc = crc
        self._position = self._synced_through = position
        # An opening frame is also a proof.
        self._unproven = self._proof_due = False
