"""The files of a journal: live segments, spares, and the background work that keeps one spare ready.

What lives here: names and their durability. A file is filled with zeros once (overwriting allocated blocks costs a quarter of appending
to a file: docs/design/storage-and-write-path.md#one-journal) and then goes round: spare, live, spare. It is never filled again: the generation in every
CRC makes its old frames invalid.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
from collections import deque
from collections.abc import Callable
from pathlib import PurePath
from typing import Final

from ponor_runtime.disk import Disk, DiskFile

from ponor_journal.format import FILLING_PREFIX, live_generation, live_name, spare_name, spare_number

LOG = logging.getLogger(__name__)
NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
"""What passes when somebody frees space."""

SPACE_WAIT_S_FIRST: Final = 0.25
SPACE_WAIT_S_MAX: Final = 5.0
FILL_CHUNK_BYTES: Final = 1024 * 1024
"""Each chunk of zeros is synced alone, so that a group commit never waits behind a whole segment of them."""


class SegmentFiles:
    """Names in the journal's directory. Numbers (generations, spare names) are drawn here and never twice."""

    def __init__(self, disk: Disk, directory: PurePath, segment_bytes: int, spares_max: int) -> None:
        self._disk = disk
        self.directory = directory
        self._segment_bytes = segment_bytes
        self._spares_max = spares_max
        self._spares: deque[PurePath] = deque()
        self._recycling: deque[tuple[PurePath, bool]] = deque()
        self._number = 0
        self._maintenance: asyncio.Task[None] | None = None
        self._closed = False
        self._waits_no_more = False
        self.waits_for_space = False
        self.on_full: Callable[[], None] = _nobody
        """Called whenever the disk is found full and a segment is needed."""
        self._space_came = asyncio.Event()

    @property
    def spare_count(self) -> int:
        """Files ready for use."""
        return len(self._spares)

    def draw_number(self) -> int:
        """A number above all that this directory has seen."""
        self._number += 1
        return self._number

    def saw_number(self, number: int) -> None:
        """A number is in use."""
        self._number = max(self._number, number)

    async def adopt(self) -> list[tuple[int, PurePath]]:
        """Look at the directory after a start: keep fitting spares, drop leftovers; the live segments by generation."""
        live = []
        for name in await self._disk.list(self.directory):
            path = self.directory / name
            if (generation := live_generation(name)) is not None:
                self.saw_number(generation)
                live.append((generation, path))
            elif (number := spare_number(name)) is not None:
                self.saw_number(number)
                if len(self._spares) < self._spares_max and await self._has_size(path):
                    self._spares.append(path)
                else:
                    await self._disk.remove(path)
            elif name.startswith(FILLING_PREFIX):
                await self._disk.remove(path)
        # A rename of the last process may not be durable yet, although this one has seen it.
        await self._disk.sync_directory(self.directory)
        return sorted(live)

    async def take_spare(self) -> PurePath:
        """A file for the next segment; waits while one is being filled, and while the disk is full.

        Raises:
            OSError: none is there and none can be made.
        """
        failures = 0
        while not self._spares:
            self.maintain()
            maintenance = self._maintenance
            if maintenance is None:
                raise OSError(errno.ENOSPC, f"{self.directory} is being closed and has no spare segment")
            await asyncio.wait([maintenance])
            error = maintenance.exception()
            # What failed once may have been the background's own business; the second time it is ours.
            if isinstance(error, OSError) and (failures or error.errno in NO_SPACE):
                await self.wait_for_space(error, failures)
            failures += error is not None
        return self._spares.popleft()

    def return_spare(self, spare: PurePath) -> None:
        """It was not made live."""
        self._spares.appendleft(spare)

    async def wait_for_space(self, error: OSError, failures: int) -> None:
        """Pause before the next attempt, longer after every failure.

        Raises:
            OSError: the error itself, if it is not the lack of space, or if the journal is being closed.
        """
        if error.errno not in NO_SPACE or self._waits_no_more:
            raise error
        delay_s = min(SPACE_WAIT_S_FIRST * 2 ** min(failures, 10), SPACE_WAIT_S_MAX)
        LOG.warning(
            "the journal in %s needs %d bytes for its next segment and the disk is full; nothing is acknowledged meanwhile, next attempt"
            " in %.2f s: %s",
            self.directory,
            self._segment_bytes,
            delay_s,
            error,
        )
        self._space_came.clear()
        self.waits_for_space = True
        self.on_full()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._space_came.wait(), delay_s)

    def stop_waiting(self) -> None:
        """The journal is being closed: a full disk is an error from now on."""
        self._waits_no_more = True
        self._space_came.set()

    async def make_live(self, spare: PurePath, generation: int) -> PurePath:
        """Give a spare whose opening frame is synced its place among the live segments, durably."""
        path = self.directory / live_name(generation)
        await self._disk.rename(spare, path)
        await self._disk.sync_directory(self.directory)
        self.waits_for_space = False
        return path

    def recycle(self, path: PurePath, segment_bytes: int) -> None:
        """Take back a live segment that nobody needs any more; in the background, oldest first."""
        self._recycling.append((path, segment_bytes == self._segment_bytes))
        self._space_came.set()
        self.maintain()

    def maintain(self) -> None:
        """Start the background work unless it runs."""
        if self._maintenance is None and not self._closed:
            self._maintenance = asyncio.get_running_loop().create_task(self._maintain(), name="journal-files")
            self._maintenance.add_done_callback(self._maintained)

    async def close(self) -> None:
        """Wait for the background work; what is not recycled yet stays live and is harmless."""
        self._closed = True
        if self._maintenance is not None:
            await asyncio.wait([self._maintenance])

    async def abandon(self) -> None:
        """Break the background work off, after an open that failed; the next start drops what it leaves."""
        self._closed = True
        if self._maintenance is not None:
            self._maintenance.cancel()
            await asyncio.wait([self._maintenance])

    def _maintained(self, task: asyncio.Task[None]) -> None:
        self._maintenance = None
        if not task.cancelled() and not isinstance(task.exception(), OSError | None):
            task.get_loop().call_exception_handler(
                {"message": "journal files", "exception": task.exception(), "task": task}
            )

    async def _maintain(self) -> None:
        """An OSError ends this round: nothing was lost, and the next rotation meets the error itself if it lasts."""
        while self._recycling and not self._closed:
            path, reusable = self._recycling[0]
            await self._give_back(path, reusable=reusable)
            self._recycling.popleft()
        if not self._spares and not self._closed:
            await self._fill()

    async def _give_back(self, path: PurePath, *, reusable: bool) -> None:
        # One durable step after the other: a crash must never leave a hole between live segments, nor bring back an old name for
        # a file that is in use again.
        if reusable and len(self._spares) < self._spares_max:
            spare = self.directory / spare_name(self.draw_number())
            await self._disk.rename(path, spare)
            await self._disk.sync_directory(self.directory)
            self._spares.append(spare)
        else:
            await self._disk.remove(path)
            await self._disk.sync_directory(self.directory)

    async def _fill(self) -> None:
        number = self.draw_number()
        filling = self.directory / f"{FILLING_PREFIX}{number:x}"
        file = await self._disk.open(filling, create=True, uncached=True)
        try:
            await self._write_zeros(file)
        except OSError:
            with contextlib.suppress(OSError):
                await self._disk.remove(filling)
            raise
        finally:
            await file.close()
        spare = self.directory / spare_name(number)
        await self._disk.rename(filling, spare)
        await self._disk.sync_directory(self.directory)
        self._spares.append(spare)

    async def _write_zeros(self, file: DiskFile) -> None:
        zeros = memoryview(bytes(min(FILL_CHUNK_BYTES, self._segment_bytes)))
        for position in range(0, self._segment_bytes, len(zeros)):
            await file.write_sync(position, [zeros[: self._segment_bytes - position]])

    async def _has_size(self, path: PurePath) -> bool:
        file = await self._disk.open(path)
        try:
            return await file.size() == self._segment_bytes
        finally:
            await file.close()


def _nobody() -> None:
    """Nobody wants to know."""
