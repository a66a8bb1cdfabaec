"""When the image is written, and that a controller which stops begins no snapshot any more."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from ponor.metadata.v1 import records_pb2
from ponor_controller.consensus.ports import LogEntry
from ponor_controller.consensus.record_log import RecordLog, RecordLogSettings
from ponor_controller.formatting import format_records
from ponor_controller.recovery import recover
from ponor_controller.settings import ControllerSettings
from ponor_controller.snapshotter import Snapshotter
from ponor_controller.subscriptions.image_source import ImageSource
from ponor_runtime.identity import ClusterOrdinal
from ponor_runtime.system import SystemRandomness
from ponor_runtime.system_disk import SystemDisk
from ponor_runtime.tasks import BackgroundTasks, report_to_loop
from ponor_runtime.telemetry import Telemetry


@pytest.mark.parametrize("stopping", [False, True])
async def test_a_batch_that_is_durable_while_the_controller_stops_begins_no_snapshot(
    tmp_path: Path, *, stopping: bool
) -> None:
    log = await RecordLog.open(
        SystemDisk(),
        tmp_path,
        uuid.UUID(int=1),
        RecordLogSettings(segment_bytes=16 * 1024, queue_bytes_max=1024 * 1024),
        Telemetry(),
    )
    settings = ControllerSettings(snapshot_batches=1)
    image = (await recover(log, settings)).image
    tasks = BackgroundTasks(report_to_loop)
    snapshotter = Snapshotter(log, ImageSource(image), tasks, settings, Telemetry(), term=1)
    records = format_records("c", ClusterOrdinal(1), SystemRandomness())
    batch = records_pb2.RecordBatch(index=1, term=1, cluster_time_ms=1, records=records)
    entry = LogEntry(1, batch, batch.SerializeToString())
    await log.append(entry)
    image.apply_committed(entry.data, batch)
    if stopping:
        await tasks.close()
    snapshotter.committed([entry])
    assert len(tasks) == (0 if stopping else 1)
    await tasks.close()
    await log.close()
