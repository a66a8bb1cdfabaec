"""Compaction of a partition: content of the streams, reads, and crashes."""

from __future__ import annotations

import asyncio
import struct
from dataclasses import replace

import pytest
from crc32c import crc32c
from ponor_broker.handlers.offsets import offset_lookup
from ponor_broker.partitions.batch_validation import BatchValidator
from ponor_broker.partitions.cleaning import cleaned_segment, cleaner, rewriting
from ponor_broker.partitions.cleaning.cleaned_segment import CleanedSegment
from ponor_broker.partitions.cleaning.pace import Pace
from ponor_broker.partitions.handoff import partition_closing
from ponor_broker.partitions.maintenance.maintenance import PartitionMaintenance
from ponor_broker.partitions.maintenance.maintenance_schedule import MaintenanceSchedule
from ponor_broker.partitions.state.producer_entry import ProducerBatch
from ponor_kafka.compression import Codec
from ponor_kafka.errors import KafkaEncodeError
from ponor_kafka.record_batch import (
    ATTRIBUTES_POSITION,
    CRC_POSITION,
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    BatchView,
)
from ponor_kafka.record_builder import NewRecord, build_batch
from ponor_kafka.record_rules import INT64_MAX, INT64_MIN
from ponor_partition.log_meta import LogMeta
from ponor_runtime.telemetry import Telemetry

from services.broker.tests.partition_rig import turns
from services.broker.tests.partitions.cleaning.cleaning_kit import (
    COMPACTED,
    CleaningRig,
    example,
)

BASE_OFFSET_BYTES = 8
FIRST_TIMESTAMP_POSITION = 27


async def test_log_meta_of_a_cleaned_log() -> None:
    """The documented example: log meta before and after, content of the cleaned stream, and a fetch."""
    one = await example()
    assert [(s.base_offset, s.suffix, s.data.start, s.data.end) for s in one.log_meta.segments] == [
        (0, "", 0, 2),
        (2, "", 2, 5),
        (5, "", 5, -1),
    ]
    assert one.log_meta.streams == {"log": 100, "time": 101}

    assert await one.clean() == 1

    assert one.log_meta.streams == {"log": 100, "time": 101, "log.cleaned": 102, "time.cleaned": 103}
    restored = LogMeta()
    restored.restore(one.log_meta.snapshot())
    assert [(segment.base_offset, segment.suffix, segment.data) for segment in restored.segments] == [
        (0, ".cleaned", (0, 5)),
        (5, "", (5, -1)),
    ]
    stored = [(record.base_offset, record.count) for record in one.stream("log.cleaned").records]
    assert stored == [(0, 2), (2, 1), (3, 2)]
    assert [(found.offset, found.value) for found in await one.read()] == [
        (1, b"v1"),
        (2, b"v2"),
        (4, b"v4"),
        (5, b"v5"),
        (6, b"v6"),
    ]
    assert one.stream("log").start_offset == 5, "what the example's first two segments lay in is trimmed"
    (record, *_) = await one.partition.read(3, 1)  # type: ignore[union-attr]
    assert BatchView(memoryview(record.payload)).base_offset == 4, "a fetch at a hole returns the next batch"


async def test_the_log_reads_correctly_after_three_cleanings_and_moves() -> None:
    one = CleaningRig(replace(COMPACTED, segment_bytes=400))
    await one.open()
    newest: dict[bytes, tuple[int, bytes]] = {}
    for number in range(3):
        for at in range(40):
            key, value = b"key %d" % (at % 7), b"value %d of round %d" % (at, number)
            newest[key] = (await one.append([(number * 100 + at, key, value)]), value)
        await one.append([(999, b"filler", b"x" * 300)])  # fills a segment of its own, or begins one
        assert await one.clean() >= 1
        active_from = one.log_meta.active.base_offset
        expected = sorted((offset, key, value) for key, (offset, value) in newest.items())
        for _ in range(2):
            found = [(f.offset, f.key, f.value) for f in await one.read() if f.key != b"filler"]
            assert [f for f in found if f[0] < active_from] == [f for f in expected if f[0] < active_from]
            if one.partition is not None:
                await partition_closing.close(one.partition, turns())
            await one.open()
        assert [s.suffix for s in one.log_meta.segments[:-1]] == [".cleaned"] * (
            len(one.log_meta.segments) - 1
        )
        starts = [s.data.start for s in one.log_meta.segments[:-1]]
        assert one.stream("log.cleaned").start_offset == min(starts), "earlier slices are trimmed"
        assert one.log_meta.cleaned_to == one.log_meta.active.base_offset


async def test_a_cleaning_after_the_horizon_removes_tombstones() -> None:
    one = CleaningRig()
    await one.open()
    await one.append([(5, b"a", b"1"), (6, b"b", b"1"), (7, b"a", None)])
    one.roll()
    await one.append([(8, b"c", b"1")])
    await one.clean()
    assert [(f.offset, f.timestamp, f.value) for f in await one.read()] == [
        (1, 6, b"1"),
        (2, 7, None),
        (3, 8, b"1"),
    ]
    (record, *_) = await one.partition.read(0, 1)  # type: ignore[union-attr]
    assert BatchView(memoryview(record.payload)).delete_horizon_ms == one.rig.clock.now_ms + 1_000
    for expected in ([1, 2, 3, 4], [1, 3, 4, 5]):
        one.roll()
        await one.append([(9, b"d%d" % expected[-1], b"1")])
        await one.clean()
        assert [f.offset for f in await one.read()] == expected
        one.rig.clock.now_ms += 1_000


@pytest.mark.parametrize("timestamp_ms", [INT64_MIN, -5, -1, 7, INT64_MAX])
@pytest.mark.parametrize("retention_ms", [1_000_000, INT64_MAX])
async def test_tombstones_with_any_timestamp_are_kept_for_any_retention(
    timestamp_ms: int, retention_ms: int
) -> None:
    """The delete horizon, or its difference to the timestamp, had more than 64 bits: the broker stopped."""
    one = CleaningRig(replace(COMPACTED, delete_retention_ms=retention_ms))
    await one.open()
    await one.append([(timestamp_ms, b"a", b"1"), (timestamp_ms, b"a", None)])
    for number in range(3):
        one.roll()
        await one.append([(8, b"c%d" % number, b"1")])
        await one.clean()
        one.rig.clock.now_ms += 1_000
    assert (1, timestamp_ms, None) in [(f.offset, f.timestamp, f.value) for f in await one.read()]


@pytest.mark.parametrize("first", [INT64_MIN, INT64_MAX])
async def test_timestamps_beyond_64_bits_wrap_as_in_kafka(first: int) -> None:
    """A producer may set any first timestamp if it sets one time for all records, and any deltas. The largest
    timestamp of the remaining records had more than 64 bits: the broker stopped.
    """
    one = CleaningRig()
    await one.open()
    sent = build_batch([(0, b"a", b"1"), (-9, b"a", b"2"), (9, b"b", None)], log_append_time_ms=5)
    struct.pack_into(">q", sent, FIRST_TIMESTAMP_POSITION, first)
    struct.pack_into(">I", sent, CRC_POSITION, crc32c(sent[ATTRIBUTES_POSITION:]))
    validator = BatchValidator(decompressed_batch_bytes_max=1 << 20)
    accepted = validator.validate(memoryview(sent), 9, COMPACTED, one.rig.clock.now_ms).batch
    assert one.partition is not None
    await one.partition.append_batch(bytearray(accepted.view))
    for number in range(2):
        one.roll()
        await one.append([(8, b"c%d" % number, b"1")])
        await one.clean()
    below, above = (INT64_MAX - 8, first + 9) if first < 0 else (first - 9, INT64_MIN + 8)
    assert [(f.offset, f.timestamp) for f in await one.read()][:2] == [(1, below), (2, above)]
    one.rig.clock.now_ms += 2_000  # past the delete horizon
    one.roll()
    await one.append([(8, b"d", b"1")])
    await one.clean()
    assert [(f.offset, f.timestamp) for f in await one.read()][:2] == [(1, below), (3, 8)]


async def test_lengths_of_more_than_32_bits_wrap_as_in_kafka() -> None:
    """The broker accepted them in Produce requests, and the cleaner did not: it failed for good."""

    def wide(value: int) -> bytes:
        zigzag = value << 1
        return bytes(zigzag >> shift & 0x7F | 0x80 for shift in (0, 7, 14, 21)) + b"\x70"  # bits 32 to 34

    one = CleaningRig()
    await one.open()
    assert one.partition is not None
    body = bytes(2) + wide(0) + wide(1) + b"a" + wide(1) + b"1" + wide(0)
    empty = build_batch([(8, b"a", b"1")])[:HEADER_BYTES]
    for _ in range(2):
        sent = empty + wide(len(body)) + body
        struct.pack_into(">i", sent, BASE_OFFSET_BYTES, len(sent) - LENGTH_PREFIX_BYTES)
        struct.pack_into(">I", sent, CRC_POSITION, crc32c(sent[ATTRIBUTES_POSITION:]))
        validator = BatchValidator(decompressed_batch_bytes_max=1 << 20)
        accepted = validator.validate(memoryview(sent), 9, COMPACTED, one.rig.clock.now_ms).batch
        await one.partition.append_batch(bytearray(accepted.view))
    one.roll()
    await one.append([(8, b"b", b"2")])
    await one.clean()
    assert [(f.offset, f.key, f.value) for f in await one.read()] == [(1, b"a", b"1"), (2, b"b", b"2")]


@pytest.mark.parametrize("error", [KafkaEncodeError("bits"), OverflowError("bits"), struct.error("bits")])
async def test_a_batch_that_cannot_be_processed_does_not_stop_the_cleaner(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(timestamp: int) -> int:
        raise error

    one = CleaningRig()
    await one.open()
    await one.append([(8, b"a", b"1"), (9, b"b", b"1")])
    await one.append([(8, b"a", b"2")])
    one.roll()
    await one.append([(8, b"c", b"1")])
    monkeypatch.setattr(rewriting, "wrapped_timestamp", fail)
    assert await one.clean() == 1
    assert one.telemetry.counter("ponor_cleaner_passes_total", result="failed").value == 1
    monkeypatch.undo()
    one.rig.clock.now_ms += cleaner.RETRY_MS + 1
    await one.clean()
    assert [(f.offset, f.key) for f in await one.read()] == [(1, b"b"), (2, b"a"), (3, b"c")]


@pytest.mark.parametrize("value", [b"1", None])
async def test_the_loop_may_run_others_after_each_record(
    monkeypatch: pytest.MonkeyPatch, value: bytes | None
) -> None:
    """A batch of 900 KB with 300,000 tombstones was rewritten in one turn of 540 ms."""
    records = 50
    one = CleaningRig()
    await one.open()
    await one.append([(8, b"k%d" % number, value) for number in range(records)])
    await one.append([(8, b"k0", b"2")])  # so that the first batch is rewritten
    one.roll()
    await one.append([(8, b"c", b"1")])
    steps: list[None] = []
    monkeypatch.setattr(Pace, "step", lambda _: steps.append(None))
    await one.clean()
    assert len(await one.read()) == records + 1
    # to index the records, to decide, and to build the new batch
    assert len(steps) >= 3 * (records - 1)


async def test_cleaning_keeps_codecs_headers_and_null_values() -> None:
    one = CleaningRig()
    await one.open()
    headers = (("h", b"1"), ("h", None), ("ü", b""))
    for codec in Codec:
        name = codec.name.encode()
        records = [
            NewRecord(100, name, b"old"),
            NewRecord(50, name, b"new" * 50, headers),
            NewRecord(70, name + b"-gone", None, headers),
            NewRecord(60, b"shared", name),
        ]
        await one.append(records, codec=codec)
    one.roll()
    await one.append([(1, b"last", b"")])
    before = {f.offset: f for f in await one.read()}
    await one.clean()
    after = await one.read()
    assert [f.offset for f in after] == [1, 2, 5, 6, 9, 10, 13, 14, 17, 18, 19, 20]
    assert after == [before[f.offset] for f in after]


async def test_the_newest_batch_of_a_producer_stays_as_a_header() -> None:
    one = CleaningRig()
    partition = await one.open()
    producer = {"producer_id": 7, "producer_epoch": 2}
    await one.append([(1, b"a", b"1"), (2, b"a", b"2")], **producer, base_sequence=0)
    await one.append([(3, b"a", b"3")], **producer, base_sequence=2)
    await one.append([(4, b"a", b"4")])
    one.roll()
    await one.append([(5, b"b", b"5")])
    await one.clean()
    assert [f.offset for f in await one.read()] == [3, 4]
    (record, *_) = await partition.read(0, 1)
    header = BatchView(memoryview(record.payload))
    assert (header.base_offset, header.record_count, header.last_sequence) == (2, 0, 2)
    again = await one.open()
    assert again.producers.find_duplicate(ProducerBatch(7, 2, 2, 1)) is not None
    assert again.producers.find_duplicate(ProducerBatch(7, 2, 0, 2)) is not None, "the checkpoint went before"


async def test_a_map_that_is_too_small_takes_several_passes() -> None:
    one = CleaningRig(map_bytes_max=24 * 10)
    await one.open()
    for number in range(3):
        await one.append([(1, b"key %d" % at, b"%d" % number) for at in range(30)])
    one.roll()
    await one.append([(1, b"end", b"")])
    assert await one.clean() > 3
    assert [f.offset for f in await one.read()] == [*range(60, 90), 90]


async def test_a_move_stops_the_cleaning_and_the_target_restarts_it() -> None:
    one = await example()
    partition = one.partition
    assert partition is not None
    await one.rig.owned.add_cleaned_streams(partition)
    one.stream("log.cleaned").hold = True
    running = asyncio.ensure_future(one.cleaner.round())
    for _ in range(20):
        await asyncio.sleep(0)
    partition_closing.begin_move(partition)
    await partition_closing.persist_for_move(partition, turns())
    one.stream("log.cleaned").confirm()
    await running
    assert one.telemetry.counter("ponor_cleaner_passes_total", result="stopped").value == 1
    assert [s.suffix for s in one.log_meta.segments] == ["", "", ""]
    await one.open()
    one.rig.clock.now_ms += 60_000
    assert await one.clean() == 1
    assert [f.offset for f in await one.read()] == [1, 2, 4, 5, 6]


async def test_offsets_by_time_are_correct_after_a_cleaning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaned_segment, "TIME_ENTRY_EVERY_BYTES", 200)
    one = CleaningRig(replace(COMPACTED, segment_bytes=2_000))
    partition = await one.open()
    await one.rig.owned.add_time_streams([partition])
    times = [100 + (37 * at) % 400 for at in range(80)]
    for at, time in enumerate(times):
        await one.append([(time, b"k%d" % (at % 50), b"v" * 20)])
        partition.before_upload()
    await one.clean()
    assert one.stream("time.cleaned").records
    for _ in range(2):
        records = await one.read()
        partition = one.partition  # type: ignore[assignment]
        for wanted in range(90, 510, 7):
            expected = next(((f.offset, f.timestamp) for f in records if f.timestamp >= wanted), None)
            assert await offset_lookup.first_at_or_after(partition, wanted) == expected
        largest = max(f.timestamp for f in records)
        assert await offset_lookup.largest(partition) == next(
            (f.offset, f.timestamp) for f in records if f.timestamp == largest
        )
        await one.open()


async def test_compact_and_delete_together() -> None:
    one = CleaningRig(replace(COMPACTED, deletes_old=True, retention_ms=50_000, segment_bytes=200))
    partition = await one.open()
    schedule = MaintenanceSchedule(one.rig.clock)
    housekeeping = PartitionMaintenance(
        one,  # type: ignore[arg-type]  # it asks nothing of the manager here
        one.rig.owned,
        schedule,
        one.rig.clock,
        Telemetry(),
        interval_ms=1,
        producer_expiration_ms=10_000_000,
    )
    partition._attend = schedule.touch
    schedule.touch(partition)
    begin_ms = one.rig.clock.now_ms
    for at in range(12):
        await one.append([(begin_ms + at * 10_000, b"k%d" % (at % 3), b"v" * 20)])
    await one.clean()
    kept = [f.offset for f in await one.read()]
    one.rig.clock.now_ms = begin_ms + 135_000  # what was produced in the first 85 s is too old
    schedule.touch(partition)
    await housekeeping.round()
    assert partition.log_start_offset > 0
    assert [f.offset for f in await one.read()] == [
        offset for offset in kept if offset >= partition.log_start_offset
    ]
    one.rig.clock.now_ms += 1_000_000
    schedule.touch(partition)
    await housekeeping.round()
    await one.rig.streams.force_upload()
    schedule.touch(partition)
    await housekeeping.round()
    assert await one.read() == []
    assert one.stream("log.cleaned").start_offset == one.stream("log.cleaned").next_offset
    again = await one.open()
    assert again.log_start_offset == again.high_watermark == 12


async def test_holes_at_the_end_are_empty_batches_and_too_large_ones_are_split() -> None:
    one = await example()
    partition = one.partition
    assert partition is not None
    await one.rig.owned.add_cleaned_streams(partition)
    out = CleanedSegment(partition.log, one.rig.clock, 100, created_ms=1, count_max=10)
    kept = BatchView(memoryview(build_batch([(5, b"k", b"v"), (6, b"l", b"w")], base_offset=125)))
    await out.add(kept)
    segment = await out.finish(139)
    records = one.stream("log.cleaned").records
    assert [(r.base_offset, r.count) for r in records] == [(0, 10), (10, 10), (20, 7), (27, 10), (37, 2)]
    assert segment.end_offset == 139
    views = [BatchView(memoryview(r.payload)) for r in records]
    assert [(v.base_offset, v.next_offset, v.record_count) for v in views] == [
        (100, 110, 0),
        (110, 120, 0),
        (125, 127, 2),
        (127, 137, 0),
        (137, 139, 0),
    ]
    assert [r.max_timestamp for r in records] == [-1, -1, 6, -1, -1]
    for view in views:
        view.check_crc()


async def test_young_active_and_uncompacted_segments_are_not_cleaned() -> None:
    one = await example()
    await one.settings(min_compaction_lag_ms=5_000)
    partition = one.partition
    assert partition is not None
    one.rig.clock.now_ms = 5_002
    assert await one.clean() == 1
    assert [segment.suffix for segment in one.log_meta.segments] == [".cleaned", "", ""], (
        "the second one has a record of the time 4"
    )
    await one.settings(min_compaction_lag_ms=0, is_compacted=False)
    assert not await one.cleaner.round()
    await one.settings(is_compacted=True, min_cleanable_ratio=1.0)
    assert not await one.cleaner.round()
    await one.settings(max_compaction_lag_ms=1)
    one.rig.clock.now_ms = 2_000_000
    assert await one.cleaner.round()
    assert not await one.cleaner.round()


async def test_a_full_log_cache_makes_the_cleaner_wait() -> None:
    one = await example()
    partition = one.partition
    assert partition is not None
    await one.rig.owned.add_cleaned_streams(partition)
    one.stream("log.cleaned").is_full = True
    assert await one.cleaner.round()
    assert one.telemetry.counter("ponor_cleaner_passes_total", result="failed").value == 1
    assert [s.suffix for s in one.log_meta.segments] == ["", "", ""]
    one.stream("log.cleaned").is_full = False
    assert not await one.cleaner.round(), "it rests after a failure"
    one.rig.clock.now_ms += 60_001
    assert await one.cleaner.round()
    assert [f.offset for f in await one.read()] == [1, 2, 4, 5, 6]


async def test_a_batch_too_large_for_the_log_stops_only_its_partition(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one = CleaningRig()
    partition = await one.open()
    for _ in range(3):
        await one.append([(1, b"key", b"v" * 500)])
    one.roll()
    await one.append([(2, b"key", b"v")])
    await one.rig.owned.add_cleaned_streams(partition)
    cleaned = one.stream("log.cleaned")
    append_to_cleaned = cleaned.append

    def append(payload: bytes, *, count: int, max_timestamp: int) -> asyncio.Future[None]:
        if len(payload) > 300:
            raise ValueError("a record exceeds what the log can take; raise wal_bytes_max")
        return append_to_cleaned(payload, count=count, max_timestamp=max_timestamp)

    with monkeypatch.context() as smaller:
        smaller.setattr(cleaned, "append", append)
        assert await one.cleaner.round()
        assert "raise wal_bytes_max" in caplog.text
        assert [s.suffix for s in one.log_meta.segments] == ["", ""]
        one.rig.clock.now_ms += cleaner.RETRY_MS
        assert not await one.cleaner.round(), "each try would read everything up to the batch again"
    one.rig.clock.now_ms += cleaner.TOO_LARGE_RETRY_MS
    assert await one.clean() == 1
    assert [found.offset for found in await one.read()] == [2, 3]
