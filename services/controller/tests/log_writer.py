"""Writes a record log as the Raft driver does, and applies its committed batches to an image."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from pathlib import Path

from ponor.metadata.v1 import records_pb2
from ponor_controller.consensus.members import Member, membership_of
from ponor_controller.consensus.record_log import RecordLog, RecordLogSettings
from ponor_controller.consensus.snapshot_format import SnapshotHeader
from ponor_controller.domains.quorum.first_records import format_records
from ponor_controller.settings import ControllerSettings
from ponor_controller.startup.recovery import Recovered, recover
from ponor_metadata.image.image import MetadataImage
from ponor_metadata.image.snapshot import begin_snapshot
from ponor_raft.entry import Entry, HardState
from ponor_raft.stored import StoredState
from ponor_runtime.identity import ClusterOrdinal, NodeId
from ponor_runtime.system import SystemClock, SystemRandomness
from ponor_runtime.system_disk import SystemDisk
from ponor_runtime.telemetry import Telemetry

DIRECTORY_ID = uuid.UUID(int=42)
MEMBERS = (Member(NodeId(3_000), DIRECTORY_ID.bytes, "c:1", "c:2"),)
MEMBERSHIP = membership_of(MEMBERS)
SETTINGS = RecordLogSettings(segment_bytes=16 * 1024, queue_bytes_max=1024 * 1024, trailing_entries=50)


def entry_of(index: int, term: int, value: bytes = b"v" * 100) -> Entry:
    """An entry whose batch puts a key."""
    records = [records_pb2.Record(key_put=records_pb2.KeyPut(key=f"k{index % 50}", value=value))]
    if index == 1:
        records = format_records("c", ClusterOrdinal(1), SystemRandomness(), MEMBERS)
    batch = records_pb2.RecordBatch(index=index, term=term, cluster_time_ms=index, records=records)
    return Entry(index, term, batch.SerializeToString(), MEMBERSHIP if index == 1 else None)


async def open_log(path: Path, settings: RecordLogSettings = SETTINGS) -> RecordLog:
    """A log that is open and not recovered."""
    disk = SystemDisk()
    await disk.make_directories(path)
    return await RecordLog.open(disk, path, DIRECTORY_ID, settings, Telemetry())


async def persist(log: RecordLog, hard_state: HardState | None, entries: Sequence[Entry] = ()) -> None:
    """Persist, and wait until it is durable."""
    durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    log.persist(hard_state, entries, lambda error: durable.set_result(None))
    await durable


class LogWriter:
    """A log, the image of its entries, and the result of its last opening."""

    def __init__(self, log: RecordLog, stored: StoredState, recovered: Recovered) -> None:
        self.log = log
        self.stored = stored
        self.recovered = recovered
        self.image: MetadataImage = recovered.image
        self.term = max(1, stored.hard_state.term)
        self.snapshot_index = recovered.image.index
        for entry in stored.entries:
            if entry.index > self.image.index:
                self.image.apply_committed(entry.data)

    @classmethod
    async def open(cls, path: Path, settings: RecordLogSettings = SETTINGS) -> LogWriter:
        """Open and recover."""
        log = await open_log(path, settings)
        try:
            stored = await log.recover(MEMBERSHIP)
            return cls(log, stored, recover(log, stored, ControllerSettings()))
        except BaseException:
            await log.close()
            raise

    async def put(self, count: int) -> None:
        """Append batches."""
        for _ in range(count):
            entry = entry_of(self.image.index + 1, self.term)
            hard_state = HardState(self.term, None) if entry.index == 1 else None
            self.log.persist(hard_state, [entry], lambda error: None)
            self.image.apply_committed(entry.data)
        await persist(self.log, HardState(self.term, None))

    async def snapshot(self) -> SnapshotHeader:
        """Create a snapshot of everything."""
        image = self.image
        header = SnapshotHeader(
            image.index, self.term, 0, image.cluster_time_ms, image.digest, bytes(16), 0, MEMBERSHIP
        )
        return await self.log.write_snapshot(header, begin_snapshot(image), SystemClock())
