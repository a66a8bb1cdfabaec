"""Decide when to write a snapshot of the image, and write it in the background.

The image is encoded as of one index while later batches are applied. If the disk is full, the snapshot is
retried. Until a snapshot succeeds, the log grows on disk and in memory, and a leader refuses proposals when
memory is full.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from ponor_journal.segment_files import NO_SPACE
from ponor_metadata.image.image import MetadataImage
from ponor_metadata.image.snapshot import SnapshotEncoding, begin_snapshot
from ponor_metadata.nouns.cluster import cluster_of
from ponor_raft.entry import SnapshotMeta
from ponor_raft.membership import Membership
from ponor_runtime.clock import Clock
from ponor_runtime.tasks import BackgroundTasks
from ponor_runtime.telemetry import Telemetry

from ponor_controller.consensus.ports import LogEntry
from ponor_controller.consensus.record_log import RecordLog
from ponor_controller.consensus.snapshot_format import DIGEST_BYTES, SnapshotHeader
from ponor_controller.settings import ControllerSettings

LOG = logging.getLogger(__name__)
RETRY_S: Final = 5.0


class Snapshotter:
    """Begins a snapshot after a number of committed batches or bytes since the last one."""

    def __init__(
        self,
        log: RecordLog,
        image: MetadataImage,
        tasks: BackgroundTasks,
        clock: Clock,
        settings: ControllerSettings,
        telemetry: Telemetry,
        *,
        membership: Callable[[], Membership],
        taken: Callable[[SnapshotMeta], None],
        has_room: Callable[[], bool],
    ) -> None:
        """Create a snapshotter.

        Args:
            log: stores snapshots.
            image: the content; batches continue to be applied during a write.
            tasks: runs the write.
            clock: clock for pauses between pieces.
            settings: the thresholds.
            telemetry: counters.
            membership: returns the membership in force at the newest applied index.
            taken: called with every durable snapshot.
            has_room: whether the log has room in memory for more entries; if not, a snapshot is due at once.
        """
        self._log = log
        self._image = image
        self._tasks = tasks
        self._clock = clock
        self._settings = settings
        self._membership = membership
        self._taken = taken
        self._has_room = has_room
        self._written = telemetry.counter("ponor_controller_snapshots_total")
        self._failed = telemetry.counter("ponor_controller_snapshots_without_space_total")
        self._seen_batches = 0
        self._seen_bytes = 0
        self._term = 0
        self._writing: asyncio.Task[int] | None = None
        self._waits_for_space = False

    def committed(self, entries: Sequence[LogEntry]) -> None:
        """Count entries that were applied to the image, and begin a snapshot if one is due."""
        self._seen_batches += len(entries)
        self._seen_bytes += sum(len(entry.data) for entry in entries)
        self._term = entries[-1].term
        self.begin_if_due()

    async def write_now(self) -> int:
        """Write a snapshot now, unless nothing was committed since the last. Returns the index of the
        newest.
        """
        while self._writing is not None:
            await asyncio.wait((self._writing,))
        if self._seen_batches == 0 and self._log.newest is not None:
            return self._log.newest.index
        return await asyncio.shield(self._begin())

    def begin_if_due(self) -> None:
        """Begin a snapshot if one is due. Also called when a compaction of the entries in memory ends."""
        if self._waits_for_space:
            return
        seen, settings = self._seen_batches, self._settings
        due = (
            seen >= settings.snapshot_batches
            or self._seen_bytes >= settings.snapshot_bytes
            or (seen > 0 and not self._has_room())
        )
        # No snapshot begins while the controller stops; the next start replays the batches from the log.
        if due and self._writing is None and not self._tasks.is_closed:
            self._begin()

    def restarted(self) -> None:
        """A received snapshot replaced the image."""
        self._seen_batches = self._seen_bytes = 0

    def _begin(self) -> asyncio.Task[int]:
        seen = self._seen_batches, self._seen_bytes
        self._seen_batches = self._seen_bytes = 0
        image = self._image
        cluster = cluster_of(image)
        header = SnapshotHeader(
            image.index,
            self._term,
            cluster.incarnation if cluster is not None else 0,
            image.cluster_time_ms,
            image.digest,
            bytes(DIGEST_BYTES),
            0,
            self._membership(),
        )
        encoding = begin_snapshot(image)
        self._writing = self._tasks.spawn(self._write(header, encoding, seen), f"snapshot-{image.index}")
        return self._writing

    async def _write(self, header: SnapshotHeader, encoding: SnapshotEncoding, seen: tuple[int, int]) -> int:
        try:
            complete = await self._log.write_snapshot(header, encoding, self._clock)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            self._failed.add()
            LOG.critical(
                "could not write the snapshot at index %d: %s; free space on the disk. The next attempt is in"
                " %g s",
                header.index,
                error,
                RETRY_S,
            )
            self._seen_batches += seen[0]
            self._seen_bytes += seen[1]
            self._retry_later()
            return self._log.newest.index if self._log.newest is not None else 0
        finally:
            self._writing = None
        self._written.add()
        self._taken(complete.meta)
        return complete.index

    def _retry_later(self) -> None:
        if not self._waits_for_space and not self._tasks.is_closed:
            self._waits_for_space = True
            self._tasks.spawn(self._retry(), "snapshot-retry")

    async def _retry(self) -> None:
        await self._clock.sleep(RETRY_S)
        self._waits_for_space = False
        self.begin_if_due()
