"""Tests of layouts from a lagging Meta stream and stream rows.

tests/scenarios/test_cold_layout.py searches the whole rule.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from ponor_partition import meta_entry
from ponor_partition.errors import PartitionCorruptError
from ponor_partition.log_meta import LogMeta
from ponor_partition.meta_entry import MetaEntry, MetaValues, fold
from ponor_partition.segment import Content
from ponor_runtime.identity import StreamId
from ponor_spark.partition_layout import CommittedRange, PartitionBehindError, lay_out, stable_layout
from ponor_spark.snapshot import SegmentSlice

LOG = CommittedRange(100, 0, 12)
KEPT = CommittedRange(102, 0, 5)
CLEANED = {"cleaned": {"base": 0, "suffix": ".cleaned", "content": [9, 70, 3], "log": [0, 5]}}


def two_segments() -> MetaEntry:
    log_meta = LogMeta()
    log_meta.apply_change(LogMeta.stream_change("log", StreamId(100)))
    log_meta.apply_change(LogMeta.roll_change(0, {"log": 0}, created_ms=1))
    log_meta.apply_change(LogMeta.roll_change(5, {"log": 5}, created_ms=2, content=Content(9, 77, 3)))
    log_meta.apply_change(LogMeta.stream_change("log.cleaned", StreamId(102)))
    return MetaEntry(meta_entry.LOG, log_meta.snapshot())


def values(*changes: dict[str, Any], partition: dict[str, Any] | None = None) -> MetaValues:
    entries = [two_segments()]
    entries += [MetaEntry(meta_entry.LOG, json.dumps(change).encode(), is_change=True) for change in changes]
    if partition is not None:
        entries.append(MetaEntry(meta_entry.PARTITION, json.dumps(partition).encode()))
    return fold(entries)


def test_segments_are_slices_of_committed_streams() -> None:
    found = lay_out(values(partition={"start": 2, "recover": 12, "clean": False}), {"log": LOG})
    assert (found.log_start_offset, found.committed_end_offset) == (2, 12)
    assert found.segments == (SegmentSlice(100, 2, 5, 0, 77), SegmentSlice(100, 5, 12, 0, None))


def test_new_partition_without_committed_meta_entries_has_the_layout_of_its_first_open() -> None:
    found = lay_out({}, {"log": LOG, "meta": CommittedRange(99, 0, 0)})
    assert found.segments == (SegmentSlice(100, 0, 12, 0, None),)


def test_unopened_partition_is_empty() -> None:
    found = lay_out({}, {})
    assert (found.log_start_offset, found.committed_end_offset, found.segments) == (0, 0, ())


def test_uncommitted_log_start_follows_from_trimmed_slices() -> None:
    found = lay_out(values(), {"log": CommittedRange(100, 7, 12)})
    assert found.log_start_offset == 7
    assert found.segments == (SegmentSlice(100, 7, 12, 0, None),)


def test_log_start_beyond_the_committed_end_gives_an_empty_partition() -> None:
    found = lay_out(values(partition={"start": 20, "recover": 20, "clean": False}), {"log": LOG})
    assert (found.log_start_offset, found.committed_end_offset, found.segments) == (20, 20, ())


def test_cleaned_segment_is_read_without_its_old_slice() -> None:
    streams = {"log": CommittedRange(100, 5, 12), "log.cleaned": CommittedRange(102, 0, 5)}
    found = lay_out(values(CLEANED), streams)
    assert found.segments == (SegmentSlice(102, 0, 5, 0, 70), SegmentSlice(100, 5, 12, 0, None))
    assert found.log_start_offset == 0, (
        "that the slice behind begins at the trimmed offset does not say that the log does"
    )


def test_a_cleaned_segment_that_is_not_committed_yet_is_no_hole() -> None:
    streams = {"log": CommittedRange(100, 5, 12), "log.cleaned": CommittedRange(102, 0, 3)}
    with pytest.raises(PartitionBehindError, match="offsets 3 to 4 are not committed yet"):
        lay_out(values(CLEANED), streams)


def test_readers_of_committed_records_end_at_the_last_stable_offset() -> None:
    known = values(partition={"start": 0, "recover": 12, "clean": False, "stable": 9, "stable_txn": 2})
    layout = lay_out(known, {"log": LOG})
    assert layout.committed_end_offset == 12
    stable = stable_layout(layout, known, {"log": LOG, "txn": CommittedRange(103, 0, 2)})
    assert stable.committed_end_offset == 9
    assert stable.segments == (SegmentSlice(100, 0, 5, 0, 77), SegmentSlice(100, 5, 9, 0, None))
    with pytest.raises(PartitionBehindError, match="aborted transactions below 9"):
        stable_layout(layout, known, {"log": LOG, "txn": CommittedRange(103, 0, 1)})
    assert stable_layout(layout, values(), {"log": LOG}) == layout, "without transactions all is stable"


def test_a_meta_stream_that_breaks_its_format_is_named() -> None:
    with pytest.raises(PartitionCorruptError, match="PARTITION value"):
        lay_out(fold([two_segments(), MetaEntry(meta_entry.PARTITION, b"[]")]), {"log": LOG})
    with pytest.raises(PartitionCorruptError, match="no list of segments"):
        lay_out(fold([MetaEntry(meta_entry.PARTITION, b"{}")]), {"log": LOG})
