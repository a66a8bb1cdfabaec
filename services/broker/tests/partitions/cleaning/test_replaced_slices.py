"""Slices that a cleaning replaced, and readers of them."""

from __future__ import annotations

import asyncio

import pytest
from ponor_kafka.record_batch import (
    BatchView,
)
from s3stream.records import StreamRecord

from services.broker.tests.partitions.cleaning.cleaning_kit import example


async def test_a_crash_before_the_segment_list_is_durable_keeps_the_log() -> None:
    one = await example()
    cleaner = one.cleaner
    partition = one.partition
    assert partition is not None
    await one.rig.owned.add_cleaned_streams(partition)
    before = await one.read()
    one.stream("log.cleaned").hold = True
    running = asyncio.ensure_future(cleaner.round())
    for _ in range(20):
        await asyncio.sleep(0)
    one.stream("log.cleaned").confirm(2)  # so much of it became durable
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert partition.log.trims.is_cleaning is False

    await one.open()
    assert await one.read() == before
    assert await one.clean() == 1
    assert [f.offset for f in await one.read()] == [1, 2, 4, 5, 6]
    assert [(r.base_offset, r.count) for r in one.stream("log.cleaned").records][-3:] == [
        (3, 2),
        (5, 1),
        (6, 2),
    ]
    assert one.stream("log.cleaned").start_offset == 3, "what the first attempt left is trimmed"


async def test_replaced_slices_stay_until_the_new_segment_list_is_durable() -> None:
    one = await example()
    partition = one.partition
    assert partition is not None
    await one.rig.owned.add_cleaned_streams(partition)
    await one.rig.streams.force_upload()
    one.stream("meta").hold = True
    running = asyncio.ensure_future(one.cleaner.round())
    while one.log_meta.segments[0].suffix != ".cleaned":
        await asyncio.sleep(0)
    await one.rig.streams.force_upload()
    await partition.log.trim(0)
    assert one.stream("log").start_offset == 0
    one.stream("meta").fail()
    await running
    await partition.log.trim(0)
    assert one.stream("log").start_offset == 0, "the list that a later open finds is the old one"
    again = await one.open()
    assert [s.suffix for s in again.log.log_meta.segments] == ["", "", ""]
    assert [f.offset for f in await one.read()] == [0, 1, 2, 3, 4, 5, 6]


async def test_a_running_read_continues_in_the_cleaned_segment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = await example()
    partition = one.partition
    assert partition is not None
    plain, gate = one.stream("log"), asyncio.Event()
    plain.is_cold = True
    fetch = plain.fetch

    async def slow(start_offset: int, max_bytes: int) -> list[StreamRecord]:
        await gate.wait()
        return await fetch(start_offset, max_bytes)

    with monkeypatch.context() as patched:
        patched.setattr(plain, "fetch", slow)
        reading = asyncio.ensure_future(partition.read(0, 1))
        await asyncio.sleep(0)
    assert await one.clean() == 1
    gate.set()
    (record,) = await reading
    assert BatchView(memoryview(record.payload)).base_offset == 1


async def test_replaced_slices_are_trimmed_after_the_upload() -> None:
    one = await example()
    partition = one.partition
    assert partition is not None
    assert await one.cleaner.round()
    one.touched.clear()
    assert partition.log.is_trimmed(0), "nothing is forced into objects for it"
    assert not await one.cleaner.round()
    assert not one.touched
    await one.rig.streams.force_upload()
    assert not await one.cleaner.round()
    assert one.touched == [partition]
    await partition.log.trim(0)
    assert one.stream("log").start_offset == 5


async def test_replaced_slices_stay_until_the_new_segment_list_is_in_objects() -> None:
    """A small Meta stream is carried to the next upload; until then readers of objects find the old segment
    list.
    """
    one = await example()
    partition = one.partition
    assert partition is not None
    assert await one.cleaner.round()
    for kind in ("log", "log.cleaned"):
        one.stream(kind).committed_offset = one.stream(kind).confirmed_offset
    assert one.stream("meta").committed_offset < one.stream("meta").confirmed_offset
    await partition.log.trim(0)
    assert one.stream("log").start_offset == 0
    await one.rig.streams.force_upload()
    await partition.log.trim(0)
    assert one.stream("log").start_offset == 5
