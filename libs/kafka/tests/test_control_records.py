"""Markers of transactions: their bytes, and other control batches."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ponor_kafka.control_records import (
    ControlType,
    EndMarker,
    build_end_marker,
    control_type,
    read_end_marker,
)
from ponor_kafka.errors import KafkaWireError
from ponor_kafka.record_batch import BatchView
from ponor_kafka.record_builder import build_batch


def control(key: bytes, value: bytes) -> BatchView:
    batch = build_batch([(5, key, value)], producer_id=7, producer_epoch=1, transactional=True, control=True)
    return BatchView(memoryview(batch))


@pytest.mark.parametrize("kind", list(ControlType))
def test_a_marker_has_kafkas_bytes(kind: ControlType) -> None:
    batch = BatchView(memoryview(build_end_marker(7, 1, EndMarker(kind, 9), 5)))
    batch.check_crc()
    (record,) = batch.records(1_000)
    assert (record.key, record.value) == (bytes((0, 0, 0, kind)), bytes((0, 0, 0, 0, 0, 9)))
    assert (batch.is_transactional, batch.is_control, batch.base_sequence) == (True, True, -1)
    assert (batch.producer_id, batch.producer_epoch, batch.record_count) == (7, 1, 1)
    assert read_end_marker(batch) == EndMarker(kind, 9)


@given(
    producer_id=st.integers(0, (1 << 63) - 1),
    epoch=st.integers(0, (1 << 15) - 1),
    coordinator_epoch=st.integers(0, (1 << 31) - 1),
    kind=st.sampled_from(ControlType),
    timestamp_ms=st.integers(0, 1 << 50),
)
def test_a_marker_is_the_batch_of_its_record(
    producer_id: int, epoch: int, coordinator_epoch: int, kind: ControlType, timestamp_ms: int
) -> None:
    key, value = struct.pack(">hh", 0, kind), struct.pack(">hi", 0, coordinator_epoch)
    assert build_end_marker(
        producer_id, epoch, EndMarker(kind, coordinator_epoch), timestamp_ms
    ) == build_batch(
        [(timestamp_ms, key, value)],
        producer_id=producer_id,
        producer_epoch=epoch,
        transactional=True,
        control=True,
    )


def test_values_of_newer_versions_may_be_longer() -> None:
    assert read_end_marker(control(bytes((0, 1, 0, 1)), bytes((0, 1, 0, 0, 0, 9, 0)))) == EndMarker(
        ControlType.COMMIT, 9
    )


def test_other_control_batches_end_no_transaction() -> None:
    assert read_end_marker(control(bytes((0, 0, 0, 2)), b"")) is None
    assert (control_type(control(b"", b"")), read_end_marker(control(b"", b""))) == (-1, None)
    empty = build_batch([], producer_id=7, producer_epoch=1, transactional=True, control=True)
    assert control_type(BatchView(memoryview(empty))) is None
    assert read_end_marker(BatchView(memoryview(empty))) is None


def test_a_marker_with_a_short_value_is_malformed() -> None:
    with pytest.raises(KafkaWireError, match="5 bytes"):
        read_end_marker(control(bytes(4), bytes(5)))
