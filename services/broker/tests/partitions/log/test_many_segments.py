"""A partition with many segments: rolls, opens, reads and retention have bounded costs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ponor_broker.partitions.log import partition_log
from ponor_broker.partitions.log.meta_stream import CHANGES_BYTES_MAX, ENTRY_HEAD_BYTES
from ponor_broker.partitions.maintenance import maintenance, retention
from ponor_broker.partitions.maintenance.maintenance_schedule import MaintenanceSchedule
from ponor_broker.partitions.partition import Partition
from ponor_broker.partitions.state.producer_entry import ROW_BYTES_MAX
from ponor_broker.partitions.topics.topic_config import TopicConfig
from ponor_kafka.record_builder import build_batch
from ponor_partition import log_meta, meta_entry
from ponor_partition.errors import PartitionCorruptError
from ponor_partition.log_meta import CHANGES_PER_STEP, ROWS_PER_STEP, LogMeta
from ponor_partition.segment import CLEANED, DATA, ROW_BYTES, Content, Segment, Slice
from ponor_runtime.identity import StreamId
from ponor_runtime.telemetry import Telemetry
from ponor_runtime.turns import STEPS_PER_TURN

from services.broker.tests.memory_streams import MemoryStream
from services.broker.tests.partition_rig import PartitionRig

EVERY_BATCH_A_SEGMENT = TopicConfig(segment_bytes=1, retention_ms=-1)


class PairsChecked:
    """Number of checked pairs of neighbouring segments."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        check = log_meta._check_pair

        def counted(before: Segment, after: Segment) -> None:
            self.count += 1
            check(before, after)

        monkeypatch.setattr(log_meta, "_check_pair", counted)


@pytest.fixture
def pairs(monkeypatch: pytest.MonkeyPatch) -> PairsChecked:
    return PairsChecked(monkeypatch)


def rolled(segments: int) -> LogMeta:
    """Return a log with this many closed segments of ten offsets and one byte each."""
    log = LogMeta()
    log.apply_change(LogMeta.stream_change(DATA, StreamId(1)))
    log.apply_change(LogMeta.roll_change(0, {DATA: 0}, 1))
    for number in range(1, segments + 1):
        content = Content(1, number, number * 10 - 10)
        log.apply_change(LogMeta.roll_change(number * 10, {DATA: number * 10}, 1, content))
    return log


async def append(partition: Partition, times: int = 1) -> None:
    for _ in range(times):
        await partition.append_batch(build_batch([(5, b"key", b"value")]))


# The model


def test_a_change_is_checked_only_against_its_neighbours(pairs: PairsChecked) -> None:
    log = rolled(500)
    log.apply_change(LogMeta.stream_change(DATA + CLEANED, StreamId(2)))
    changes = {
        LogMeta.roll_change(5_010, {DATA: 5_010}, 1, Content(1, 1, 1)): 1,
        LogMeta.drop_change(1_000): 0,
        LogMeta.clean_change(Segment(2_000, CLEANED, ((DATA, Slice(0, 50)),), 1, Content(1, 1, 1))): 2,
    }
    for change, checks in changes.items():
        pairs.count = 0
        log.apply_change(change)
        assert pairs.count == checks
    with pytest.raises(PartitionCorruptError, match=r"not in order|the next one begins"):
        log.apply_change(LogMeta.roll_change(7, {DATA: 9_999}, 1))


CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["roll", "roll", "roll", "drop", "clean"]), st.integers(0, 30), st.integers(0, 9)
    ),
    max_size=40,
)


@given(CHANGES)
def test_totals_rows_and_lookups_stay_correct_after_any_changes(changes: list[tuple[str, int, int]]) -> None:
    log = rolled(3)
    log.apply_change(LogMeta.stream_change(DATA + CLEANED, StreamId(2)))
    cleaned_end = 0
    for kind, choice, timestamp in changes:
        closed = log.segments[:-1]
        if kind == "roll":
            base = log.active.base_offset + choice + 1
            content = Content(choice, timestamp, log.active.base_offset)
            log.apply_change(LogMeta.roll_change(base, {DATA: log.active.stream_offset(base)}, 1, content))
        elif kind == "drop":
            log.apply_change(LogMeta.drop_change(log.segments[0].base_offset + choice))
        elif closed:
            first = choice % len(closed)
            group = closed[first : first + 3]
            length = group[-1].end_offset - group[0].base_offset
            part = Slice(cleaned_end, cleaned_end + length)
            cleaned_end += length
            content = Content(choice, timestamp, group[0].base_offset)
            log.apply_change(
                LogMeta.clean_change(Segment(group[0].base_offset, CLEANED, ((DATA, part),), 1, content))
            )
        assert log.closed_bytes == sum(segment.size_bytes for segment in log.segments[:-1])
        reaching = [s for s in log.segments[:-1] if s.content and s.content.max_timestamp >= timestamp]
        assert log.first_reaching(timestamp) is (reaching[0] if reaching else log.active)
    again = LogMeta()
    again.restore(log.snapshot())
    assert (again.segments, again.streams, again.closed_bytes) == (
        log.segments,
        log.streams,
        log.closed_bytes,
    )
    assert again.snapshot() == log.snapshot()


# The Meta stream


async def test_changes_of_the_log_are_folded_however_often_a_partition_rolls() -> None:
    rig = PartitionRig(config=TopicConfig(segment_bytes=1, retention_ms=-1))
    partition = await rig.open()
    longest = 0
    for number in range(1_500):
        await append(partition)
        if number % 100 == 0:
            partition.log.drop_before(partition.high_watermark - 5)
        if number % 500 == 499:
            values = await type(partition.meta_stream)(rig.stream("meta")).replay()
            longest = max(longest, sum(map(len, values[meta_entry.LOG].changes)))
    assert longest <= CHANGES_BYTES_MAX
    again = await rig.open()
    assert again.log.log_meta.segments == partition.log.log_meta.segments


async def test_a_meta_stream_of_rolls_and_drops_is_rewritten_and_trimmed() -> None:
    rig = PartitionRig(config=EVERY_BATCH_A_SEGMENT)
    partition = await rig.open()
    meta = rig.stream("meta")
    for number in range(2_000):
        await append(partition)
        if number % 50 == 0:
            partition.before_upload()
            partition.log.drop_before(partition.high_watermark - 5)
            for stream in partition.streams:
                stream.committed_offset = stream.confirmed_offset  # type: ignore[misc]
            await partition.meta_stream.trim_rewritten()
    held = sum(len(record.payload) for record in meta.records if record.base_offset >= meta.start_offset)
    assert held < 8 * CHANGES_BYTES_MAX


async def test_an_open_yields_to_the_event_loop_between_steps(pairs: PairsChecked) -> None:
    rig = PartitionRig(config=EVERY_BATCH_A_SEGMENT)
    partition = await rig.open()
    await append(partition, 6_000)
    longest, done = 0, False

    async def watch() -> None:
        nonlocal longest
        while not done:
            before = pairs.count
            await asyncio.sleep(0)
            longest = max(longest, pairs.count - before)

    watching = asyncio.ensure_future(watch())
    await asyncio.sleep(0)
    again = await rig.open()
    done = True
    await watching
    assert len(again.log.log_meta.segments) == 6_000
    assert pairs.count > 6_000
    assert longest <= STEPS_PER_TURN * max(ROWS_PER_STEP, CHANGES_PER_STEP) + 1


# Rolls, reads, retention


async def test_at_the_bound_the_active_segment_grows_until_retention_makes_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(partition_log, "SEGMENTS_MAX", 10)
    partition = await PartitionRig(config=EVERY_BATCH_A_SEGMENT).open()
    await append(partition, 30)
    log = partition.log
    assert len(log.log_meta.segments) == 10
    monkeypatch.setattr(partition_log, "LARGE_SEGMENT_BYTES", log.active_bytes)
    await append(partition)
    assert len(log.log_meta.segments) == 11, "a large segment is closed all the same"
    monkeypatch.undo()
    monkeypatch.setattr(partition_log, "SEGMENTS_MAX", 10)
    log.drop_before(log.log_meta.active.base_offset)
    await append(partition)
    assert len(log.log_meta.segments) == 2


async def test_a_partition_has_no_more_rows_than_a_record_of_the_log_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(MemoryStream, "payload_bytes_max", ENTRY_HEAD_BYTES + 10 * ROW_BYTES)
    partition = await PartitionRig(config=EVERY_BATCH_A_SEGMENT).open()
    await append(partition, 30)
    assert len(partition.log.log_meta.segments) == 10
    for producer_id in range(30):
        await partition.append_batch(
            build_batch([(5, b"key", b"value")], producer_id=producer_id, producer_epoch=0, base_sequence=0)
        )
    assert len(partition.producers) == 10 * ROW_BYTES // ROW_BYTES_MAX


async def test_a_read_checks_only_the_segments_of_its_records(monkeypatch: pytest.MonkeyPatch) -> None:
    partition = await PartitionRig(config=EVERY_BATCH_A_SEGMENT).open()
    await append(partition, 200)
    looks = 0
    after = LogMeta.segments_after

    def counted(self: LogMeta, segment: Segment) -> Iterator[Segment]:
        nonlocal looks
        for one in after(self, segment):
            looks += 1
            yield one

    monkeypatch.setattr(LogMeta, "segments_after", counted)
    records = await partition.read(20, 3 * 73)
    assert [record.base_offset for record in records][:2] == [20, 21]
    assert looks <= len(records) + 1


async def test_retention_drops_many_segments_in_several_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "SEGMENTS_PER_LOOK", 10)
    rig = PartitionRig(config=TopicConfig(segment_bytes=1, retention_ms=1_000))
    schedule = MaintenanceSchedule(rig.clock)
    rig.opener._attend = schedule.touch
    keeper = maintenance.PartitionMaintenance(
        None,  # type: ignore[arg-type]  # every partition is writable
        rig.owned,
        schedule,
        rig.clock,
        Telemetry(),
        interval_ms=5_000,
        producer_expiration_ms=10_000,
    )
    partition = await rig.open()
    await append(partition, 35)
    rig.clock.now_ms += 10_000
    starts = [0]
    for _ in range(6):
        await keeper.round()
        starts.append(partition.log_start_offset)
    assert starts == [0, 10, 20, 30, 35, 35, 35]
    assert all(after - before <= 10 for before, after in pairwise(starts))
    assert retention.extents(partition.log, 5) == []
