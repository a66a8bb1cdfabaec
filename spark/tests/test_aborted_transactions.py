"""Aborted transactions as brokers write them, read from Txn streams."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest
from ponor_partition.txn_entry import TxnEntry
from ponor_runtime.identity import StreamEpoch, StreamId
from ponor_spark import meta_reading
from ponor_spark.clip import AbortedRange
from ponor_spark.errors import StoredDataError
from ponor_spark.meta_reading import read_aborted
from ponor_spark.partition_layout import CommittedRange
from s3stream.records import StreamRecord

STREAM = CommittedRange(103, 4, 6)


def read(monkeypatch: pytest.MonkeyPatch, payloads: list[bytes]) -> list[AbortedRange]:
    """Read records with these payloads as a Txn stream."""

    def records(*_: object) -> Iterator[StreamRecord]:
        for offset, payload in enumerate(payloads, STREAM.start_offset):
            yield StreamRecord(StreamId(STREAM.stream_id), StreamEpoch(0), offset, 1, -1, payload)

    monkeypatch.setattr(meta_reading, "read_records", records)
    return read_aborted(STREAM, {}, (), cast("Any", None))


def test_entries_of_brokers_become_ranges_of_producers(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [TxnEntry(7, 3, 9, 4), TxnEntry(8, 4, 12, 13)]
    assert read(monkeypatch, [entry.encode() for entry in entries]) == [
        AbortedRange(7, 3, 9),
        AbortedRange(8, 4, 12),
    ]


def test_an_entry_of_another_size_names_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = TxnEntry(7, 3, 9, 4).encode()
    with pytest.raises(StoredDataError, match="txn stream 103, offset 5: an entry has 32 bytes, found 24"):
        read(monkeypatch, [whole, whole[:24]])
