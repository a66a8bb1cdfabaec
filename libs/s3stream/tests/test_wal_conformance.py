"""Conformance of every write-ahead log, on a disk or in the object store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from random import Random

import pytest
from ponor_runtime.identity import StreamEpoch, StreamId
from s3stream.errors import StorageFailedError
from s3stream.records import StreamRecord
from s3stream.settings import KIB

from libs.s3stream.tests.wal_rigs import SETTINGS, FileWalRig, ObjectWalRig, WalRig, append


@pytest.fixture(params=["file", "object"])
async def rig(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[WalRig]:
    rig: WalRig = FileWalRig(tmp_path) if request.param == "file" else ObjectWalRig()
    yield rig
    await rig.end()


def record(offset: int, payload: bytes, stream: int = 5) -> StreamRecord:
    return StreamRecord(StreamId(stream), StreamEpoch(2), offset, 1, 77, payload)


def key(each: StreamRecord) -> tuple[int, int, int, int, bytes]:
    return each.stream_id, each.epoch, each.base_offset, each.max_timestamp, bytes(each.payload)


async def test_acknowledged_entries_are_recovered(rig: WalRig) -> None:
    wal = await rig.opened()
    chance = Random(1)
    appended: list[StreamRecord] = []
    told: list[asyncio.Future[None]] = []
    for number in range(40):
        records = [
            record(number, chance.randbytes(chance.choice((0, 3, 5_000))), stream) for stream in (5, 3)
        ]
        appended += records
        told.append(append(wal, *records)[1])
    await asyncio.gather(*told)
    await wal.close()
    found = await rig.left()
    for stream in (3, 5):
        assert [key(each) for each in found if each.stream_id == stream] == [
            key(each) for each in appended if each.stream_id == stream
        ]


async def test_every_callback_runs_once_and_in_order(rig: WalRig) -> None:
    wal = await rig.opened()
    order: list[int] = []
    sequences: list[int] = []
    last: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def tell(number: int, error: BaseException | None) -> None:
        assert error is None
        order.append(number)
        if number == 49:
            last.set_result(None)

    for number in range(50):
        each = record(number, bytes(200))
        sequences.append(wal.append([each.encode_header(), each.payload], partial(tell, number)))
        assert number not in order, "never from within the call"
    await last
    assert order == list(range(50))
    assert sequences == sorted(sequences)
    await wal.close()


async def test_a_callback_may_append(rig: WalRig) -> None:
    wal = await rig.opened()
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def again(number: int, error: BaseException | None) -> None:
        assert error is None
        if number == 5:
            done.set_result(None)
            return
        each = record(number, b"x")
        wal.append([each.encode_header(), each.payload], partial(again, number + 1))

    again(0, None)
    await done
    await wal.close()
    assert [each.base_offset for each in await rig.left()] == [0, 1, 2, 3, 4]


async def test_trimming_frees_space_and_drops_entries(rig: WalRig) -> None:
    wal = await rig.opened()
    empty_room = wal.room_bytes
    sequences = []
    for number in range(30):
        sequence, durable = append(wal, record(number, bytes(60 * KIB)))
        await durable
        sequences.append(sequence)
    assert wal.room_bytes < empty_room // 4
    assert 29 * 60 * KIB <= wal.retained_bytes <= SETTINGS.wal_bytes_max
    assert not wal.may_carry
    wal.trim(sequences[-1], recorded_sequence=sequences[-1])
    assert wal.room_bytes > empty_room // 2
    await wal.close()


async def test_a_closed_log_refuses_appends(rig: WalRig) -> None:
    wal = await rig.opened()
    await append(wal, record(0, b"in time"))[1]
    await wal.close()
    with pytest.raises(StorageFailedError):
        append(wal, record(1, b"late"))
    assert [bytes(each.payload) for each in await rig.left()] == [b"in time"]


async def test_close_finishes_pending_entries(rig: WalRig) -> None:
    wal = await rig.opened()
    told = [append(wal, record(number, bytes(1_000)))[1] for number in range(20)]
    await wal.close()
    assert all(each.done() and each.exception() is None for each in told)
    assert len(await rig.left()) == 20


async def test_an_empty_log_is_recovered_as_empty(rig: WalRig) -> None:
    wal = await rig.opened()
    assert wal.retained_bytes <= 4 * KIB
    assert not wal.needs_upload
    assert wal.may_carry
    wal.hurry()
    await wal.close()
    assert await rig.left() == []
