"""The files of a journal: live segments, spares, and the background task that keeps one spare ready.

The background task fills a new file with zeros once, because overwriting allocated blocks costs a quarter of
appending to a file (docs/design/storage-and-write-path.md#one-journal). Then the file alternates between
spare and live and is never cleared, because the generation in every CRC invalidates its old frames.
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
"""Errors that a retry can overcome once space is free."""

SPACE_WAIT_S_FIRST: Final = 0.25
SPACE_WAIT_S_MAX: Final = 5.0
FILL_CHUNK_BYTES: Final = 1024 * 1024
"""Each chunk of zeros is synced separately, so that a group commit never waits for a whole segment."""


class SegmentFiles:
    """Manages the names in the journal's directory.

    Generations and spare names are unique numbers from one counter.
    """

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
        self.on_full: Callable[[], None] = _ignore_full
        """Called whenever a segment is needed and the disk is full."""
        self._space_came = asyncio.Event()

    @property
    def spare_count(self) -> int:
        """Number of files ready for use."""
        return len(self._spares)

    def draw_number(self) -> int:
        """Return a number larger than all numbers seen in this directory."""
        self._number += 1
        return self._number

    def saw_number(self, number: int) -> None:
        """Note a number in use, so that `draw_number` returns larger ones."""
        self._number = max(self._number, number)

    async def adopt(self) -> list[tuple[int, PurePath]]:
        """Scan the directory at start-up: keep usable spares, delete leftovers, return the live segments by
        generation.
        """
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
        # The last process may have renamed files without a sync of the directory: make its renames durable.
        await self._disk.sync_directory(self.directory)
        return sorted(live)

    async def take_spare(self) -> PurePath:
        """Return a file for the next segment; wait while one is being filled and while the disk is full.

        Raises:
            OSError: there is no spare and none can be created.
        """
        failures = 0
        while not self._spares:
            self.maintain()
            maintenance = self._maintenance
            if maintenance is None:
                raise OSError(
                    errno.ENOSPC, f"the journal in {self.directory} is closing and has no spare segment"
                )
            await asyncio.wait([maintenance])
            error = maintenance.exception()
            # The first failure may belong to work that began before this call, so try again. A second failure
            # is raised, unless the disk is full.
            if isinstance(error, OSError) and (failures or error.errno in NO_SPACE):
                await self.wait_for_space(error, failures)
            failures += error is not None
        return self._spares.popleft()

    def return_spare(self, spare: PurePath) -> None:
        """Put back a spare that was not made live; the next segment uses it."""
        self._spares.appendleft(spare)

    async def wait_for_space(self, error: OSError, failures: int) -> None:
        """Pause before the next attempt, longer after every failure.

        Raises:
            OSError: `error`, if its cause is not a lack of space or if the journal is closing.
        """
        if error.errno not in NO_SPACE or self._waits_no_more:
            raise error
        delay_s = min(SPACE_WAIT_S_FIRST * 2 ** min(failures, 10), SPACE_WAIT_S_MAX)
        LOG.warning(
            "journal in %s: disk full, the next segment needs %d bytes; no append is acknowledged, next"
            " attempt in %.2f s: %s",
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
        """End the waits for space because the journal is closing; from now on a full disk raises an error."""
        self._waits_no_more = True
        self._space_came.set()

    async def make_live(self, spare: PurePath, generation: int) -> PurePath:
        """Durably rename a spare, whose opening frame is synced, to its name as a live segment."""
        path = self.directory / live_name(generation)
        await self._disk.rename(spare, path)
        await self._disk.sync_directory(self.directory)
        self.waits_for_space = False
        return path

    def recycle(self, path: PurePath, segment_bytes: int) -> None:
        """Recycle a live segment in the background. Call it for the oldest segment first."""
        self._recycling.append((path, segment_bytes == self._segment_bytes))
        self._space_came.set()
        self.maintain()

    def maintain(self) -> None:
        """Start the background task unless it runs."""
        if self._maintenance is None and not self._closed:
            self._maintenance = asyncio.get_running_loop().create_task(self._maintain(), name="journal-files")
            self._maintenance.add_done_callback(self._maintained)

    async def close(self) -> None:
        """Wait for the background task. Segments that are not recycled yet stay live, which is harmless."""
        self._closed = True
        if self._maintenance is not None:
            await asyncio.wait([self._maintenance])

    async def abandon(self) -> None:
        """Cancel the background task after a failed open; the next start deletes its leftovers."""
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
        """Recycle released segments, then create a spare if there is none.

        An OSError ends the task without data loss. If the error persists, the next rotation raises it.
        """
        while self._recycling and not self._closed:
            path, reusable = self._recycling[0]
            await self._release(path, reusable=reusable)
            self._recycling.popleft()
        if not self._spares and not self._closed:
            await self._fill()

    async def _release(self, path: PurePath, *, reusable: bool) -> None:
        # Each step is durable before the next: a crash must neither leave a gap between live segments nor
        # restore the old name of a file that is in use again.
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


def _ignore_full() -> None:
    """Default of `on_full`."""
