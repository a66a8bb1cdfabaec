"""Tests of a query's start and end: Spark's rules for offsets, times, data loss and limits."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ponor_kafka.compression import Codec
from ponor_spark.errors import DataLossError, OptionError
from ponor_spark.offsets import (
    OffsetRange,
    batch_ranges,
    initial_offsets,
    latest_offsets,
    limited,
    ranges_between,
)
from ponor_spark.options import AtOffsets, AtTime, AtTimes, Edge, Tail
from ponor_spark.snapshot import PartitionSnapshot, SegmentSlice, Snapshot

from spark.tests.stored_batches import Kept, Kind, stored_batch
from spark.tests.stored_snapshots import TOPIC, TOPIC_ID, Store, Written, options, partition_of

LOG, CLEANED = 100, 200


def empty(*bounds: tuple[int, int]) -> Snapshot:
    """Return partitions with these offsets, which are not read."""
    return Store(Path("nowhere")).snapshot(
        *(
            PartitionSnapshot(TOPIC, TOPIC_ID, number, start, end, ())
            for number, (start, end) in enumerate(bounds)
        )
    )


def at(offset: int, option: str = "startingOffsets") -> AtOffsets:
    return AtOffsets({TOPIC: {0: offset}}, option)


def test_a_batch_reads_from_the_log_start_to_the_end() -> None:
    found = batch_ranges(empty((3, 9), (0, 0), (5, 6)), options())
    assert found == (OffsetRange(TOPIC, 0, 3, 9), OffsetRange(TOPIC, 2, 5, 6))


def test_named_offsets_and_their_signs() -> None:
    chosen = options(
        start=AtOffsets({TOPIC: {0: -2, 1: 4}}, "startingOffsets"),
        end=AtOffsets({TOPIC: {0: 7, 1: -1}}, "endingOffsets"),
    )
    assert batch_ranges(empty((3, 9), (0, 8)), chosen) == (
        OffsetRange(TOPIC, 0, 3, 7),
        OffsetRange(TOPIC, 1, 4, 8),
    )


def test_every_partition_has_to_be_named_and_no_other() -> None:
    with pytest.raises(OptionError, match=r"^startingOffsets: t 1 is not named"):
        batch_ranges(empty((0, 9), (0, 9)), options(start=at(1)))
    with pytest.raises(OptionError, match=r"^endingOffsets: u 0 is not read by this query"):
        batch_ranges(empty((0, 9)), options(end=AtOffsets({TOPIC: {0: 1}, "u": {0: 1}}, "endingOffsets")))


def test_a_start_below_the_log_start_is_data_loss_and_not_a_reset() -> None:
    snapshot = empty((3, 9))
    with pytest.raises(DataLossError, match=r"failOnDataLoss: t 0 begins at 3, above the requested offset 1"):
        batch_ranges(snapshot, options(start=at(1)))
    skipped = batch_ranges(snapshot, options(start=at(1), fail_on_data_loss=False))
    assert skipped == (OffsetRange(TOPIC, 0, 3, 9),)


def test_an_end_beyond_the_log_is_data_loss_too() -> None:
    snapshot = empty((3, 9))
    beyond = options(end=at(12, "endingOffsets"))
    with pytest.raises(DataLossError, match=r"t 0 ends at 9, below the requested offset 12 .*tail=broker"):
        batch_ranges(snapshot, beyond)
    assert batch_ranges(snapshot, options(end=at(12), fail_on_data_loss=False)) == (
        OffsetRange(TOPIC, 0, 3, 9),
    )
    with_tail = snapshot.with_tails({(TOPIC, 0): 12})
    assert batch_ranges(with_tail, options(end=at(12), tail=Tail.BROKER)) == (OffsetRange(TOPIC, 0, 3, 12),)
    with pytest.raises(DataLossError, match=r"t 0 ends at 9, below the requested offset 20"):
        batch_ranges(snapshot, options(start=at(20)))
    assert batch_ranges(snapshot, options(start=at(20), fail_on_data_loss=False)) == ()


def test_a_start_behind_the_end_is_nothing() -> None:
    assert batch_ranges(empty((3, 9)), options(start=at(8), end=at(5))) == ()


# Times


def timed(directory: Path) -> Snapshot:
    """Kafka offsets 10 to 19: two batches of a cleaned segment at another distance, with gaps, then two
    objects of a plain one.
    """
    store = Store(directory, block_bytes_max=1)
    kept = [
        Written(
            0, 3, 130, stored_batch([Kept(0, 100, b"a", b"x"), Kept(1, 130, b"b", b"x")], base_offset=11)
        ),
        Written(3, 2, 120, stored_batch([Kept(0, 120, b"c", b"x")], base_offset=14)),
    ]
    store.put((CLEANED, kept))
    plain = [
        Written(
            15,
            2,
            160,
            stored_batch(
                [Kept(0, 160, b"d", None), Kept(1, 110, b"e", None)], Kind(Codec.ZSTD), base_offset=15
            ),
        ),
        Written(17, 1, 150, stored_batch([Kept(0, 90, b"f", None)], Kind(append_time=150), base_offset=17)),
    ]
    store.put((LOG, plain))
    store.put(
        (
            LOG,
            [
                Written(
                    18,
                    2,
                    200,
                    stored_batch([Kept(0, 180, b"g", b"x"), Kept(1, 200, b"h", b"x")], base_offset=18),
                )
            ],
        )
    )
    segments = [SegmentSlice(CLEANED, 10, 15, 10, 130), SegmentSlice(LOG, 15, 20, 0)]
    return store.snapshot(partition_of(segments))


@pytest.mark.parametrize(
    ("time_ms", "offset"),
    [(0, 11), (100, 11), (101, 12), (130, 12), (131, 15), (160, 15), (161, 18), (181, 19), (200, 19)],
)
def test_a_time_is_the_first_offset_that_is_not_older(tmp_path: Path, time_ms: int, offset: int) -> None:
    snapshot = timed(tmp_path)
    assert initial_offsets(snapshot, options(start=AtTime(time_ms, "startingTimestamp"))) == {
        TOPIC: {0: offset}
    }
    ended = options(end=AtTimes({TOPIC: {0: time_ms}}, "endingOffsetsByTimestamp"))
    assert batch_ranges(snapshot, ended) == ((OffsetRange(TOPIC, 0, 10, offset),))


def test_a_time_after_all_records(tmp_path: Path) -> None:
    snapshot = timed(tmp_path)
    late = AtTime(201, "startingTimestamp")
    with pytest.raises(
        OptionError,
        match=r"^startingTimestamp: no record of t 0 is at or after 201.*startingOffsetsByTimestampStrategy",
    ):
        batch_ranges(snapshot, options(start=late))
    assert initial_offsets(snapshot, options(start=late, no_match_is_latest=True)) == {TOPIC: {0: 20}}
    ended = options(end=AtTime(201, "endingTimestamp"))
    assert batch_ranges(snapshot, ended) == (OffsetRange(TOPIC, 0, 10, 20),), (
        "an end in the future is the end"
    )
    tailed = snapshot.with_tails({(TOPIC, 0): 25})
    with pytest.raises(OptionError, match=r"^endingTimestamp: .*not uploaded yet are not searched"):
        batch_ranges(tailed, options(end=AtTime(201, "endingTimestamp"), tail=Tail.BROKER))


def test_time_in_a_segment_that_begins_within_a_batch(tmp_path: Path) -> None:
    store = Store(tmp_path)
    batch = stored_batch(
        [Kept(0, 50, None, b"x"), Kept(1, 60, None, b"x"), Kept(2, 55, None, b"x")], base_offset=0
    )
    store.put((LOG, [Written(0, 3, 60, batch)]))
    snapshot = store.snapshot(partition_of([SegmentSlice(LOG, 2, 3, 0)]))
    assert initial_offsets(snapshot, options(start=AtTime(52, "startingTimestamp"))) == {TOPIC: {0: 2}}, (
        "DeleteRecords took two"
    )


# Micro-batches


def test_micro_batch_lies_between_two_offsets() -> None:
    snapshot = empty((0, 9), (0, 5))
    found = ranges_between(snapshot, {TOPIC: {0: 2, 1: 5}}, {TOPIC: {0: 7, 1: 5}}, options())
    assert found == (OffsetRange(TOPIC, 0, 2, 7),)


def test_a_new_partition_begins_at_its_log_start() -> None:
    found = ranges_between(empty((0, 9), (0, 5)), {TOPIC: {0: 9}}, {TOPIC: {0: 9, 1: 5}}, options())
    assert found == (OffsetRange(TOPIC, 1, 0, 5),)
    late = empty((0, 9), (2, 5))
    with pytest.raises(DataLossError, match=r"t 1 is new and begins at 2 instead of 0"):
        ranges_between(late, {TOPIC: {0: 9}}, {TOPIC: {0: 9, 1: 5}}, options())


def test_offsets_deleted_by_retention_between_batches_are_reported() -> None:
    snapshot = empty((6, 9))
    start, end = {TOPIC: {0: 2}}, {TOPIC: {0: 9}}
    with pytest.raises(DataLossError, match=r"t 0 begins at 6, above the requested offset 2"):
        ranges_between(snapshot, start, end, options())
    assert ranges_between(snapshot, start, end, options(fail_on_data_loss=False)) == (
        OffsetRange(TOPIC, 0, 6, 9),
    )
    assert ranges_between(snapshot, start, {TOPIC: {0: 2}}, options()) == (), (
        "nothing was wanted of what is gone"
    )


def test_deleted_or_recreated_partition_is_reported() -> None:
    with pytest.raises(DataLossError, match=r"t 1 no longer exists"):
        ranges_between(empty((0, 9)), {TOPIC: {0: 1, 1: 1}}, {TOPIC: {0: 2}}, options())
    with pytest.raises(DataLossError, match=r"t 0 ends at 2, below the query's offset 5"):
        ranges_between(empty((0, 9)), {TOPIC: {0: 5}}, {TOPIC: {0: 2}}, options())


def test_latest_is_the_readable_end() -> None:
    snapshot = empty((0, 9), (4, 4))
    assert latest_offsets(snapshot) == {TOPIC: {0: 9, 1: 4}}
    assert latest_offsets(snapshot.with_tails({(TOPIC, 1): 6})) == {TOPIC: {0: 9, 1: 6}}
    assert initial_offsets(snapshot, options(start=Edge.LATEST)) == {TOPIC: {0: 9, 1: 4}}


@given(
    st.lists(st.tuples(st.integers(0, 1_000), st.integers(0, 1_000)), min_size=1, max_size=8),
    st.integers(1, 500),
)
def test_limits_are_shared_without_starvation(sizes: list[tuple[int, int]], offsets_max: int) -> None:
    start = {TOPIC: {number: begin for number, (begin, _) in enumerate(sizes)}}
    latest = {TOPIC: {number: begin + size for number, (begin, size) in enumerate(sizes)}}
    end = limited(start, latest, offsets_max)[TOPIC]
    taken = {number: end[number] - start[TOPIC][number] for number in end}
    for number, (_, size) in enumerate(sizes):
        assert 0 <= taken[number] <= size
        assert (taken[number] > 0) == (size > 0), "a small partition beside a large one moves on too"
    assert sum(taken.values()) <= max(offsets_max, 0) + len(sizes)
    assert sum(taken.values()) >= min(sum(size for _, size in sizes), offsets_max) - len(sizes)


def test_stream_logs_each_loss_once_and_batches_every_time(caplog: pytest.LogCaptureFixture) -> None:
    """Spark asks a stream a hundred times a second; a worker plans consecutive batches."""
    snapshot, lenient, logged = empty((0, 9)), options(fail_on_data_loss=False), set[str]()
    for _ in range(3):
        ranges_between(snapshot, {TOPIC: {0: 1, 1: 1}}, {TOPIC: {0: 2}}, lenient, logged=logged)
    assert [record.message for record in caplog.records] == [
        f"failOnDataLoss is false: {TOPIC} 1 no longer exists; its rows are skipped"
    ]
    caplog.clear()
    for _ in range(2):
        batch_ranges(empty((3, 9)), options(start=at(1), fail_on_data_loss=False))
    assert len(caplog.records) == 2
