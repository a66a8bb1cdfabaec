"""The file write-ahead log: recovery, space, and refusals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from ponor_journal.errors import JournalIdentityError
from ponor_runtime.identity import StreamEpoch, StreamId
from ponor_runtime.system_disk import SystemDisk
from ponor_runtime.telemetry import Telemetry
from s3stream.errors import StorageFailedError, WalCorruptError
from s3stream.file_wal import FileWal
from s3stream.records import StreamRecord
from s3stream.settings import KIB, MIB, StorageSettings

SETTINGS = StorageSettings(wal_bytes_max=2 * MIB, wal_queue_bytes_max=256 * KIB, log_cache_bytes_max=8 * MIB)


@pytest.fixture
async def disk() -> AsyncIterator[SystemDisk]:
    disk = SystemDisk()
    yield disk
    disk.close()


async def opened(disk: SystemDisk, path: Path, identity: bytes = bytes(16)) -> FileWal:
    return await FileWal.open(disk, path / "wal", identity=identity, settings=SETTINGS, telemetry=Telemetry())


def record(offset: int, payload: bytes) -> StreamRecord:
    return StreamRecord(StreamId(5), StreamEpoch(2), offset, 1, 77, payload)


def append(wal: FileWal, *records: StreamRecord) -> tuple[int, asyncio.Future[None]]:
    durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def settle(error: BaseException | None) -> None:
        durable.set_result(None) if error is None else durable.set_exception(error)

    parts = [part for each in records for part in (each.encode_header(), each.payload)]
    return wal.append(parts, settle), durable


async def test_records_are_recovered_in_order_with_their_entry(disk: SystemDisk, tmp_path: Path) -> None:
    wal = await opened(disk, tmp_path)
    assert wal.created
    append(wal, record(0, b"a"), record(1, b""))
    sequence, durable = append(wal, record(2, bytes(70 * KIB)))
    await durable
    await wal.close()
    again = await opened(disk, tmp_path)
    assert not again.created
    found = [each async for each in again.recover()]
    assert [(at, each.base_offset, len(each.payload)) for at, each in found] == [
        (0, 0, 1),
        (0, 1, 0),
        (sequence, 2, 70 * KIB),
    ]
    assert (found[0][1].stream_id, found[0][1].epoch, found[0][1].max_timestamp) == (5, 2, 77)
    await again.close()


async def test_room_shrinks_with_retained_bytes_and_grows_by_trimming(
    disk: SystemDisk, tmp_path: Path
) -> None:
    wal = await opened(disk, tmp_path)
    empty_room = wal.room_bytes
    durable: asyncio.Future[None]
    for number in range(30):
        sequence, durable = append(wal, record(number, bytes(60 * KIB)))
        await durable
    full_room = wal.room_bytes
    assert full_room < empty_room // 4
    assert wal.retained_bytes <= SETTINGS.wal_bytes_max
    wal.trim(sequence)
    assert wal.room_bytes > empty_room // 2
    await wal.close()


async def test_a_damaged_byte_is_named_and_nothing_is_changed(disk: SystemDisk, tmp_path: Path) -> None:
    wal = await opened(disk, tmp_path)
    for number in range(3):
        _, durable = append(wal, record(number, b"precious" * 100))
        await durable
    await wal.close()
    (segment,) = sorted((tmp_path / "wal").glob("segment-*"))
    intact = segment.read_bytes()
    data = bytearray(intact)
    data[data.index(b"precious")] ^= 1
    segment.write_bytes(data)
    for _ in range(2):
        with pytest.raises(WalCorruptError, match=segment.name):
            await opened(disk, tmp_path)
    segment.write_bytes(intact)
    again = await opened(disk, tmp_path)
    assert len([each async for each in again.recover()]) == 3
    await again.close()


async def test_the_log_of_another_node_and_a_second_process_are_refused(
    disk: SystemDisk, tmp_path: Path
) -> None:
    wal = await opened(disk, tmp_path)
    with pytest.raises(BlockingIOError):
        await opened(disk, tmp_path)
    await wal.close()
    with pytest.raises(JournalIdentityError):
        await opened(disk, tmp_path, bytes([1]) * 16)


async def test_a_closed_log_refuses_appends(disk: SystemDisk, tmp_path: Path) -> None:
    wal = await opened(disk, tmp_path)
    await wal.close()
    with pytest.raises(StorageFailedError):
        append(wal, record(0, b"late"))
