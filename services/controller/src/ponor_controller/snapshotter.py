"""When the image is written to disk, so that the log before it can go.

What lives here: the thresholds and the one background write. The image is encoded in one piece, at once, so that it is as of one index; writing it
blocks nobody.
"""

from __future__ import annotations

from collections.abc import Sequence

from ponor_runtime.tasks import BackgroundTasks
from ponor_runtime.telemetry import Telemetry

from ponor_controller.consensus.ports import LogEntry
from ponor_controller.consensus.record_log import RecordLog
from ponor_controller.consensus.snapshot_files import Snapshot, SnapshotHeader
from ponor_controller.settings import ControllerSettings
from ponor_controller.subscriptions.image_source import ImageSource


class Snapshotter:
    """Counts what was committed since the last snapshot."""

    def __init__(
        self,
        log: RecordLog,
        images: ImageSource,
        tasks: BackgroundTasks,
        settings: ControllerSettings,
        telemetry: Telemetry,
        *,
        term: int,
    ) -> None:
        self._log = log
        self._images = images
        self._tasks = tasks
        self._term = term
        self._settings = settings
        self._written = telemetry.counter("ponor_controller_snapshots_total")
        self._seen_batches = 0
        self._seen_bytes = 0
        self._writing = False

    def recovered(self, batches: int) -> None:
        """So many batches after the newest snapshot were replayed at the start."""
        self._seen_batches = batches

    def committed(self, entries: Sequence[LogEntry]) -> None:
        """Count, and begin a snapshot when it is due. To be called after the entries were applied to the image."""
        self._seen_batches += len(entries)
        self._seen_bytes += sum(len(entry.data) for entry in entries)
        due = (
            self._seen_batches >= self._settings.snapshot_batches
            or self._seen_bytes >= self._settings.snapshot_bytes
        )
        # Batches may still become durable while the controller stops; the next start replays them.
        if due and not self._writing and not self._tasks.is_closed:
            self._writing = True
            self._seen_batches = self._seen_bytes = 0
            image = self._images.fresh()
            header = SnapshotHeader(image.index, self._term, image.cluster_time_ms, image.digest)
            self._tasks.spawn(self._write(Snapshot(header, image.data)), f"snapshot-{image.index}")

    async def _write(self, snapshot: Snapshot) -> None:
        await self._log.write_snapshot(snapshot)
        self._written.add()
        self._writing = False
