"""Log meta: the worked example, rolls as changes, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ponor_broker.partitions.log.meta_stream import MetaStream
from ponor_broker.partitions.log.partition_log import PartitionLog, RollRules
from ponor_broker.partitions.log.stream_port import PartitionStream
from ponor_broker.partitions.state.leader_epochs import LeaderEpochs
from ponor_kafka.record_batch import BatchView
from ponor_kafka.record_builder import build_batch
from ponor_partition.errors import PartitionCorruptError
from ponor_partition.log_meta import LogMeta
from ponor_partition.segment import DATA, TIME, Segment, Slice, encode_row
from ponor_runtime.identity import StreamId

from services.broker.tests.memory_streams import MemoryStream

RULES = RollRules(segment_bytes=1 << 30, segment_ms=1 << 60)


def written(log_meta: LogMeta, streams: dict[str, int], *segments: Segment) -> bytes:
    """Return the whole value of a log with these segments, valid or not."""
    log_meta.streams = {name: StreamId(stream_id) for name, stream_id in streams.items()}
    log_meta.segments = list(segments)
    log_meta._rows = bytearray().join(map(encode_row, segments[:-1]))
    return log_meta.snapshot()


def worked_example() -> LogMeta:
    """Segments [0,2), [2,5), [5,-1) of log=100, time=101; the first two were merged into log.cleaned=102."""
    log_meta = LogMeta()
    value = written(
        LogMeta(),
        {"log": 100, "time": 101, "log.cleaned": 102},
        Segment(0, ".cleaned", (("log", Slice(0, 5)),)),
        Segment(5, "", (("log", Slice(5)), ("time", Slice(2)))),
    )
    log_meta.restore(value)
    return log_meta


async def test_a_fetch_of_a_cleaned_segment_returns_kafka_offsets_1_2_4() -> None:
    plain, cleaned = MemoryStream(100), MemoryStream(102)
    for offset in range(7):
        await plain.append(
            build_batch([(offset, b"k", b"v")], base_offset=offset), count=1, max_timestamp=offset
        )
    # {offset 0, count 2}, {offset 2, count 1}, {offset 3, count 2}: the counts pad the holes.
    for kept, count in ((1, 2), (2, 1), (4, 2)):
        await cleaned.append(
            build_batch([(kept, b"k", b"kept")], base_offset=kept), count=count, max_timestamp=kept
        )
    streams: dict[str, PartitionStream] = {"log": plain, "time": MemoryStream(101), "log.cleaned": cleaned}
    log = PartitionLog(MetaStream(MemoryStream(1)), worked_example(), streams, RULES)

    found: list[int] = []
    offset = 0
    while offset < log.confirmed_offset:
        for record in await log.read(offset, 1 << 20):
            found += [one.offset for one in BatchView(memoryview(record.payload)).records(1 << 20)]
            offset = log.kafka_offset(offset, record) + record.count
    assert found == [1, 2, 4, 5, 6]
    # In the middle of a hole the batch that contains the offset comes back.
    (record, *_) = await log.read(3, 1)
    assert BatchView(memoryview(record.payload)).base_offset == 4


def test_offsets_map_both_ways() -> None:
    log_meta = worked_example()
    assert log_meta.segment_of(4).data_stream == "log.cleaned"
    assert log_meta.segment_of(5).data_stream == "log"
    assert log_meta.segment_of(4).stream_offset(4) == 4
    assert log_meta.segment_of(900).kafka_offset(900) == 900


@given(st.lists(st.tuples(st.integers(1, 50), st.booleans()), max_size=20))
def test_replayed_changes_equal_a_snapshot(rolls: list[tuple[int, bool]]) -> None:
    log_meta = LogMeta()
    changes = [LogMeta.stream_change(DATA, 100), LogMeta.roll_change(0, {DATA: 0}, 1)]  # type: ignore[arg-type]
    offset = entries = 0
    for count, adds_time in rolls:
        offset += count
        if adds_time and entries == 0:
            changes.append(LogMeta.stream_change(TIME, 101))  # type: ignore[arg-type]
            entries = 1
        ends = {DATA: offset, **({TIME: entries} if entries else {})}
        changes.append(LogMeta.roll_change(offset, ends, offset))
        entries += 1 if entries else 0
    for change in changes:
        log_meta.apply_change(change)
    again = LogMeta()
    again.restore(log_meta.snapshot())
    assert again.segments == log_meta.segments
    assert again.streams == log_meta.streams
    assert [segment.base_offset for segment in again.segments] == [0, *_running_sums(rolls)]
    assert again.active.data.end == -1


def _running_sums(rolls: list[tuple[int, bool]]) -> list[int]:
    sums, total = [], 0
    for count, _ in rolls:
        total += count
        sums.append(total)
    return sums


def test_a_roll_writes_a_change_whose_size_does_not_grow_with_the_log() -> None:
    log_meta = LogMeta()
    log_meta.apply_change(LogMeta.stream_change(DATA, 100))  # type: ignore[arg-type]
    log_meta.apply_change(LogMeta.roll_change(0, {DATA: 0}, 1))
    for number in range(1, 500):
        change = LogMeta.roll_change(number * 1000, {DATA: number * 1000}, 1)
        assert len(change) < 80
        log_meta.apply_change(change)
    assert log_meta.segment_of(123_456).data == Slice(123_000, 124_000)


LOG = {"log": 1}


@pytest.mark.parametrize(
    "value",
    [
        b"{",
        b"",
        written(LogMeta(), LOG, Segment(0, "", (("log", Slice(0)),)))[:-1],
        b"\x02" + written(LogMeta(), LOG, Segment(0, "", (("log", Slice(0)),)))[1:],
        written(LogMeta(), LOG, Segment(0, "", (("log", Slice(0, 5)),))),
        written(LogMeta(), {}, Segment(0, "", (("log", Slice(0)),))),
        written(
            LogMeta(), LOG, Segment(0, "", (("log", Slice(0, 4)),)), Segment(5, "", (("log", Slice(5)),))
        ),
        written(
            LogMeta(), LOG, Segment(5, "", (("log", Slice(0, 5)),)), Segment(0, "", (("log", Slice(5)),))
        ),
    ],
)
def test_invalid_changes_are_refused(value: bytes) -> None:
    with pytest.raises(PartitionCorruptError):
        LogMeta().restore(value)


def test_leader_epochs_answer_as_kafka() -> None:
    epochs = LeaderEpochs()
    assert epochs.end_offset(0, 10) == (-1, -1)
    assert epochs.assign(2, 0)
    assert epochs.assign(5, 100)
    assert not epochs.assign(5, 120)
    assert epochs.end_offset(1, 200) == (1, 0)
    assert epochs.end_offset(2, 200) == (2, 100)
    assert epochs.end_offset(4, 200) == (2, 100)
    assert epochs.end_offset(5, 200) == (5, 200)
    assert epochs.end_offset(6, 200) == (-1, -1)
    assert epochs.epoch_at(99) == 2
    assert epochs.epoch_at(100) == 5
    again = LeaderEpochs()
    again.restore(epochs.snapshot())
    assert again.entries == epochs.entries
    # An epoch without a record is replaced: the map grows with data, not with restarts.
    assert again.assign(6, 100)
    assert list(again.entries) == [(2, 0), (6, 100)]
    again.forget_before(150)
    assert list(again.entries) == [(6, 150)]
    with pytest.raises(PartitionCorruptError):
        LeaderEpochs().restore(epochs.snapshot()[:-1])
