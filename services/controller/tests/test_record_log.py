"""The record log on a real disk: what a restart finds, what it refuses, and that the old part goes."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from ponor.metadata.v1 import records_pb2
from ponor_controller.consensus.directory_identity import mark_formatted, open_identity
from ponor_controller.consensus.errors import RecordLogCorruptError, WrongDirectoryError
from ponor_controller.consensus.ports import LogEntry
from ponor_controller.consensus.record_log import RecordLog, RecordLogSettings
from ponor_controller.consensus.snapshot_files import Snapshot, SnapshotFiles, SnapshotHeader
from ponor_controller.formatting import format_records
from ponor_controller.recovery import recover
from ponor_controller.settings import ControllerSettings
from ponor_metadata import snapshot
from ponor_metadata.image import MetadataImage
from ponor_runtime.identity import ClusterOrdinal
from ponor_runtime.system import SystemRandomness
from ponor_runtime.system_disk import SystemDisk
from ponor_runtime.telemetry import Telemetry

DIRECTORY_ID = uuid.UUID(int=42)
SETTINGS = RecordLogSettings(segment_bytes=16 * 1024, queue_bytes_max=1024 * 1024)


@pytest.fixture
def disk() -> SystemDisk:
    return SystemDisk()


async def _open(disk: SystemDisk, path: Path) -> RecordLog:
    await disk.make_directories(path)
    return await RecordLog.open(disk, path, DIRECTORY_ID, SETTINGS, Telemetry())


class Writer:
    """Appends batches that put keys, and keeps the image that they lead to."""

    def __init__(self, log: RecordLog, image: MetadataImage) -> None:
        self.log = log
        self.image = image

    async def put(self, count: int) -> None:
        for _ in range(count):
            index = self.image.index + 1
            records = [records_pb2.Record(key_put=records_pb2.KeyPut(key=f"k{index % 50}", value=b"v" * 100))]
            if index == 1:
                records = format_records("c", ClusterOrdinal(1), SystemRandomness())
            batch = records_pb2.RecordBatch(index=index, term=1, cluster_time_ms=index, records=records)
            data = batch.SerializeToString()
            durable = self.log.append(LogEntry(index, batch, data))
            self.image.apply_committed(data, batch)
        await durable

    async def snapshot(self) -> None:
        header = SnapshotHeader(self.image.index, 1, self.image.cluster_time_ms, self.image.digest)
        await self.log.write_snapshot(Snapshot(header, snapshot.encode(self.image)))


async def _reopen(disk: SystemDisk, path: Path) -> tuple[Writer, int]:
    log = await _open(disk, path)
    recovered = await recover(log, ControllerSettings())
    return Writer(log, recovered.image), recovered.tail.begin_index


async def test_a_restart_finds_every_batch(disk: SystemDisk, tmp_path: Path) -> None:
    writer, _ = await _reopen(disk, tmp_path)
    await writer.put(30)
    await writer.log.close()
    again, begin = await _reopen(disk, tmp_path)
    assert (again.image.index, again.image.digest, begin) == (30, writer.image.digest, 0)
    await again.put(5)
    await again.log.close()
    third, _ = await _reopen(disk, tmp_path)
    assert (third.image.index, third.image.digest) == (35, again.image.digest)
    await third.log.close()


async def test_snapshot_and_tail_lead_to_the_same_image_as_the_whole_log_and_the_old_log_goes(
    disk: SystemDisk, tmp_path: Path
) -> None:
    writer, _ = await _reopen(disk, tmp_path)
    sizes = []
    for _ in range(6):
        await writer.put(200)
        await writer.snapshot()
        sizes.append(writer.log.retained_bytes)
    await writer.put(7)
    await writer.log.close()
    assert sizes[-1] < 4 * sizes[0], "the log is given back as snapshots are made"
    assert len(list((tmp_path / "snapshots").iterdir())) == 2

    again, begin = await _reopen(disk, tmp_path)
    assert (again.image.index, again.image.digest) == (1_207, writer.image.digest)
    assert snapshot.encode(again.image) == snapshot.encode(writer.image)
    assert begin == 1_000, "subscribers resume from the snapshot before the newest on"
    await again.put(300)
    await again.snapshot()
    await again.log.close()
    third, begin = await _reopen(disk, tmp_path)
    assert (third.image.digest, begin) == (again.image.digest, 1_200)
    await third.log.close()


@pytest.mark.parametrize("position", [0, 9, 15, 60, 70, 500, -1])
async def test_a_flipped_byte_in_a_snapshot_is_refused_by_name(
    disk: SystemDisk, tmp_path: Path, position: int
) -> None:
    writer, _ = await _reopen(disk, tmp_path)
    await writer.put(100)
    await writer.snapshot()
    await writer.log.close()
    (path,) = (tmp_path / "snapshots").iterdir()
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(bytes(data))
    with pytest.raises(RecordLogCorruptError) as refused:
        await _open(disk, tmp_path)
    assert str(path) in str(refused.value)
    assert "restore" in str(refused.value)


async def test_a_snapshot_cut_short_is_refused(disk: SystemDisk, tmp_path: Path) -> None:
    writer, _ = await _reopen(disk, tmp_path)
    await writer.put(100)
    await writer.snapshot()
    await writer.log.close()
    (path,) = (tmp_path / "snapshots").iterdir()
    for length in (10, 100):
        path.write_bytes(path.read_bytes()[:length])
        with pytest.raises(RecordLogCorruptError):
            await _open(disk, tmp_path)


async def test_a_flipped_byte_in_the_log_is_refused_with_file_and_position(
    disk: SystemDisk, tmp_path: Path
) -> None:
    writer, _ = await _reopen(disk, tmp_path)
    await writer.put(100)
    await writer.log.close()
    path = min((tmp_path / "log").glob("*"), key=lambda each: (each.stat().st_size == 0, each.name))
    data = bytearray(path.read_bytes())
    at = data.index(b"vvvv")
    data[at] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(RecordLogCorruptError) as refused:
        await _reopen(disk, tmp_path)
    assert path.name in str(refused.value)
    assert refused.value.position >= 0


async def test_a_log_that_ends_before_its_snapshot_is_refused(disk: SystemDisk, tmp_path: Path) -> None:
    writer, _ = await _reopen(disk, tmp_path)
    await writer.put(100)
    await writer.log.close()
    files = SnapshotFiles(disk, tmp_path / "snapshots")
    await files.open()
    await files.write(Snapshot(SnapshotHeader(101, 1, 1, bytes(16)), b""))
    log = await _open(disk, tmp_path)
    with pytest.raises(RecordLogCorruptError, match="ends at index 100"):
        async for _ in log.replay():
            pass
    await log.close()


async def test_leftovers_of_a_crash_are_removed_and_strangers_are_named(
    disk: SystemDisk, tmp_path: Path
) -> None:
    writer, _ = await _reopen(disk, tmp_path)
    await writer.put(10)
    await writer.log.close()
    leftover = tmp_path / "snapshots" / "snapshot-00000000000000000010.tmp"
    leftover.write_bytes(b"half")
    again, _ = await _reopen(disk, tmp_path)
    assert not leftover.exists()
    await again.log.close()
    (tmp_path / "snapshots" / "notes.txt").write_text("mine")
    with pytest.raises(RecordLogCorruptError, match=r"notes\.txt"):
        await _open(disk, tmp_path)


async def test_a_directory_keeps_its_identity(disk: SystemDisk, tmp_path: Path) -> None:
    first = await open_identity(disk, tmp_path, SystemRandomness(), "")
    again = await open_identity(disk, tmp_path, SystemRandomness(), "")
    assert again == first
    assert not first.formatted
    await mark_formatted(disk, tmp_path, first)
    assert (await open_identity(disk, tmp_path, SystemRandomness(), first.cluster_id)).formatted
    with pytest.raises(WrongDirectoryError, match="another"):
        await open_identity(disk, tmp_path, SystemRandomness(), "another")


async def test_a_damaged_or_missing_identity_is_refused(disk: SystemDisk, tmp_path: Path) -> None:
    await open_identity(disk, tmp_path, SystemRandomness(), "")
    path = tmp_path / "identity"
    data = bytearray(path.read_bytes())
    data[5] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(RecordLogCorruptError, match="checksum"):
        await open_identity(disk, tmp_path, SystemRandomness(), "")
    path.unlink()
    (tmp_path / "log").mkdir()
    with pytest.raises(WrongDirectoryError, match="restore that file"):
        await open_identity(disk, tmp_path, SystemRandomness(), "")
