"""The one writer of a journal: group commit, rotation, proof of sync.

What lives here: everything that writes frames. There is no linger: while a sync is in flight, entries gather, and the next group takes
them all. One write is in flight at a time, so that only the last group can ever be torn.
"""

from __future__ import annotations

import asyncio
from typing import Final

from ponor_runtime.clock import Clock
from ponor_runtime.disk import Disk, DiskFile

from ponor_journal.entry_queue import EntryQueue
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
from ponor_journal.group import encode_group, group_room_bytes
from ponor_journal.instruments import JournalInstruments
from ponor_journal.recovery import Recovered, Segment
from ponor_journal.segment_files import SegmentFiles
from ponor_journal.settings import JournalSettings

DATA_FRAME_BYTES_MIN: Final = aligned(1)


class JournalWriter:
    """Writes groups from the queue until it is closed or the disk fails."""

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
        self._last_write = 0.0
        self._idle: asyncio.Future[None] | None = None
        self._closing = False
        self._task: asyncio.Task[None] | None = None

    @property
    def retained_bytes(self) -> int:
        """Bytes in live segments, up to the end of what was written."""
        return sum(segment.end for segment in self.segments[:-1]) + self._position

    @property
    def _tail_bytes(self) -> int:
        return self.segments[-1].segment_bytes if self.segments else 0

    async def start(self) -> None:
        """Open a new generation: behind the last accepted frame, or in a new segment. Durable when it returns.

        The opening frame cuts off a torn tail for good: whatever stands behind it is of an older generation, and whatever is written
        from now on names the opening frame as its predecessor.
        """
        self._files.saw_number(self._generation)
        if self.segments:
            await self._reopen(self.segments[-1])
        if self._position + DATA_FRAME_BYTES_MIN + PROOF_FRAME_BYTES > self._tail_bytes:
            await self._rotate()
        self._files.maintain()
        self._task = self._loop.create_task(self._run(), name="journal-writer")

    def wake(self) -> None:
        """There is something to do."""
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    async def close(self) -> None:
        """Write what is queued and a synced proof, and let go of the file."""
        self._closing = True
        self.wake()
        if self._task is not None:
            await asyncio.wait([self._task])
        if self._proof_timer is not None:
            self._proof_timer.cancel()
        if self._file is not None:
            await self._file.close()
            self._file = None

    async def _run(self) -> None:
        try:
            while True:
                if self.queue:
                    await self._write_group()
                elif self._unproven and (self._proof_due or self._closing):
                    await self._write_proof(sync=self._closing)
                elif self._closing:
                    return
                else:
                    self._idle = self._loop.create_future()
                    await self._idle
        except OSError as error:
            self._fail(error)
        except Exception as error:
            self._fail(error)
            raise

    def _fail(self, error: Exception) -> None:
        # After a failed sync the kernel may call the lost pages clean: no later sync may be believed, so nothing is retried.
        self.error = JournalFailedError(
            f"the journal in {self._files.directory} failed ({error}): the process must stop, its next start recovers"
        )
        self.error.__cause__ = error
        self.queue.fail(self.error)

    async def _write_group(self) -> None:
        if self.queue.first_cost_bytes() > self._group_room_bytes():
            await self._rotate()
        entries = self.queue.take_group(self._group_room_bytes())
        group = encode_group(
            entries,
            self._seed,
            generation=self._generation,
            first_sequence=self.synced_sequence,
            synced_through=self._synced_through,
            previous_crc=self._chain_crc,
        )
        started_ns = self._now_ns()
        assert self._file is not None
        await self._file.write_sync(self._position, group.buffers)
        self._last_write = self._loop.time()
        self._position += group.frame_bytes
        self._synced_through = self._position
        self._chain_crc = group.crc
        self.synced_sequence += len(entries)
        self._instruments.group_committed(len(entries), group.frame_bytes, self._now_ns() - started_ns)
        self.queue.group_is_durable()
        self._proof_is_needed()

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
        # One timer for many groups: it looks when the last one was, instead of being moved by every group.
        self._proof_timer = None
        if not self._unproven:
            return
        rest = self._last_write + self._settings.proof_delay_ms / 1000 - self._loop.time()
        if rest > 0:
            self._proof_timer = self._loop.call_later(rest, self._proof_timer_fired)
        else:
            self._proof_due = True
            self.wake()

    async def _write_proof(self, *, sync: bool) -> None:
        """Say on disk that everything before has been synced. The proof itself may get lost: then the next frame proves it."""
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
        await (self._file.write_sync if sync else self._file.write)(self._position, frame)
        self._position += PROOF_FRAME_BYTES
        self._unproven = self._proof_due = False

    async def _rotate(self) -> None:
        spare = await self._files.take_spare()
        generation = self._files.draw_number()
        previous = self.segments[-1] if self.segments else None
        file = await self._disk.open(spare)
        # Synced before it gets its name: a live segment always has an intact opening frame.
        previous_generation = previous.generation if previous else 0
        crc = await self._write_opening(
            file, 0, generation, previous_generation, self._settings.segment_bytes
        )
        path = await self._files.make_live(spare, generation)
        if previous is not None and self._file is not None:
            previous.end = self._position
            await self._file.close()
        self._file = file
        self.segments.append(
            Segment(path, generation, self.synced_sequence, self._settings.segment_bytes, OPENING_FRAME_BYTES)
        )
        self._begin_generation(generation, crc, OPENING_FRAME_BYTES)
        self._files.maintain()

    async def _reopen(self, tail: Segment) -> None:
        self._file = await self._disk.open(tail.path)
        # What was accepted may be in the kernel's memory only, if the last process died before its sync. If that sync failed, these
        # pages may even look clean: only writing them again makes the kernel write them at all.
        await self._file.write_sync(tail.end - len(self._unproven_bytes), [self._unproven_bytes])
        self._unproven_bytes = b""
        self._position = tail.end
        if tail.end + OPENING_FRAME_BYTES > tail.segment_bytes:
            return
        generation = self._files.draw_number()
        crc = await self._write_opening(self._file, tail.end, generation, 0, tail.segment_bytes)
        self._begin_generation(generation, crc, tail.end + OPENING_FRAME_BYTES)

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
        # An opening frame is a proof itself.
        self._unproven = self._proof_due = False
