"""When the image is written, and that a stopping controller begins no snapshot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ponor.metadata.v1 import records_pb2
from ponor_controller.consensus.ports import LogEntry
from ponor_controller.kernel.snapshotter import Snapshotter
from ponor_controller.settings import ControllerSettings
from ponor_raft.entry import SnapshotMeta
from ponor_runtime.system import SystemClock
from ponor_runtime.tasks import BackgroundTasks, report_to_loop
from ponor_runtime.telemetry import Telemetry

from services.controller.tests.log_writer import MEMBERSHIP, LogWriter, entry_of


class Written:
    """A log with a snapshotter on it."""

    def __init__(self, writer: LogWriter, **settings: Any) -> None:
        self.writer = writer
        self.tasks = BackgroundTasks(report_to_loop)
        self.taken: list[SnapshotMeta] = []
        self.snapshotter = Snapshotter(
            writer.log,
            writer.image,
            self.tasks,
            SystemClock(),
            ControllerSettings(**settings),
            Telemetry(),
            membership=lambda: MEMBERSHIP,
            taken=self.taken.append,
            has_room=lambda: True,
        )

    async def commit(self, count: int = 1) -> None:
        for _ in range(count):
            entry = entry_of(self.writer.image.index + 1, 1)
            await self.writer.put(1)
            batch = records_pb2.RecordBatch.FromString(entry.data)
            self.snapshotter.committed([LogEntry(entry.index, batch.term, entry.data)])

    async def close(self) -> None:
        await self.tasks.close()
        await self.writer.log.close()


@pytest.mark.parametrize("stopping", [False, True])
async def test_a_batch_that_becomes_durable_during_the_stop_begins_no_snapshot(
    tmp_path: Path, *, stopping: bool
) -> None:
    written = Written(await LogWriter.open(tmp_path), snapshot_batches=1)
    if stopping:
        await written.tasks.close()
    await written.commit()
    assert len(written.tasks) == (0 if stopping else 1)
    await written.close()


async def test_a_snapshot_is_of_the_index_at_which_it_began(tmp_path: Path) -> None:
    written = Written(await LogWriter.open(tmp_path), snapshot_batches=1_000)
    await written.commit(20)
    index = written.snapshotter.write_now()
    taking = written.tasks.spawn(index, "take")
    await written.commit(15)
    assert await taking in range(20, 36)
    assert [meta.index for meta in written.taken] == [taking.result()]
    assert written.taken[0].membership == MEMBERSHIP
    assert await written.snapshotter.write_now() == 35
    assert await written.snapshotter.write_now() == 35, "nothing was committed since"
    await written.close()
    again = await LogWriter.open(tmp_path)
    assert (again.snapshot_index, again.image.digest) == (35, written.writer.image.digest)
    await again.log.close()
