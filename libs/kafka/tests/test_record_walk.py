"""The compiled and the Python record validation agree on every input, and with Kafka."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from ponor_kafka import record_walk
from ponor_kafka.errors import KafkaWireError
from ponor_kafka.primitives import append_varlong
from ponor_kafka.record_batch import HEADER_BYTES
from ponor_kafka.record_builder import NewRecord, build_batch
from ponor_kafka.record_rules import INT64_MAX, INT64_MIN, RecordFault
from ponor_kafka.records import append_record

from libs.kafka.tests import record_walk_oracle

T0 = 1_700_000_000_000
ANY_TIME = (INT64_MIN, INT64_MAX, 100)

int64s = st.integers(INT64_MIN, INT64_MAX)
timestamps = st.one_of(st.integers(-1, 20), st.integers(T0, T0 + 50), int64s)
contents = st.one_of(st.none(), st.binary(max_size=200))
headers = st.lists(st.tuples(st.text(max_size=5), st.one_of(st.none(), st.binary(max_size=5))), max_size=3)
records = st.lists(st.builds(NewRecord, timestamps, contents, contents, headers), min_size=1, max_size=20)


@st.composite
def encoded(draw: st.DrawFn) -> tuple[bytes, int]:
    """Generate encoded records with deltas that may wrap, and their count."""
    out = bytearray()
    drawn = draw(records)
    for index, record in enumerate(drawn):
        append_record(
            out,
            timestamp_delta=record.timestamp,
            offset_delta=index,
            key=record.key,
            value=record.value,
            headers=record.headers,
        )
    return bytes(out), len(drawn)


def outcome(function: Callable[..., Any], *arguments: Any) -> object:
    try:
        return function(*arguments)
    except KafkaWireError as error:
        return str(error)


def agree(data: bytes, count: int, *rest: Any) -> None:
    native = outcome(record_walk.walk_records, data, count, *rest)
    assert native == outcome(record_walk_oracle.walk_records, data, count, *rest)


@given(encoded(), int64s, st.booleans(), st.booleans(), timestamps, timestamps, st.integers(0, 5))
def test_good_records(
    batch: tuple[bytes, int], base: int, is_fixed: bool, keys: bool, low: int, high: int, faults_max: int
) -> None:
    agree(batch[0], batch[1], base, is_fixed, keys, low, high, faults_max)


@given(encoded(), st.data())
def test_records_with_one_byte_changed(batch: tuple[bytes, int], data: st.DataObject) -> None:
    broken = bytearray(batch[0])
    at = data.draw(st.integers(0, len(broken) - 1))
    broken[at] = data.draw(st.integers(0, 255))
    agree(bytes(broken), batch[1], T0, False, True, *ANY_TIME)


@given(encoded(), st.integers(-3, 30), st.integers(-20, 20))
def test_truncated_extended_or_miscounted_records(batch: tuple[bytes, int], count: int, change: int) -> None:
    data = batch[0] + bytes(change) if change >= 0 else batch[0][:change]
    agree(data, count, T0, False, True, *ANY_TIME)


@given(st.binary(max_size=300), st.integers(0, 40))
@example(b"\xff" * 12, 1)
@example(b"\xff\xff\xff\xff\x0f\x00", 1)
@example(b"\x80\x80\x80\x80\x80\x00", 1)
@example(b"\x00", 1)
def test_any_bytes(data: bytes, count: int) -> None:
    agree(data, count, T0, False, True, *ANY_TIME)
    for timestamp in (0, T0, INT64_MAX):
        native = outcome(record_walk.first_at_or_after, data, count, T0, timestamp, 3)
        assert native == outcome(record_walk_oracle.first_at_or_after, data, count, T0, timestamp, 3)
    for delta_min in (-1, 3):
        native = outcome(record_walk.newest, data, count, T0, delta_min)
        assert native == outcome(record_walk_oracle.newest, data, count, T0, delta_min)


@given(encoded(), int64s, timestamps, st.integers(-5, 25))
def test_searches_by_time(batch: tuple[bytes, int], base: int, timestamp: int, delta_min: int) -> None:
    native = record_walk.first_at_or_after(*batch, base, timestamp, delta_min)
    assert native == record_walk_oracle.first_at_or_after(*batch, base, timestamp, delta_min)
    native = record_walk.newest(*batch, base, delta_min)
    assert native == record_walk_oracle.newest(*batch, base, delta_min)


@pytest.mark.parametrize("module", [record_walk, record_walk_oracle])
def test_walk_result(module: Any) -> None:
    batch = build_batch([(T0 + 5, b"k", None), (T0 + 9, None, b"v"), (T0 + 9, b"", b"v"), (T0, b"k", b"")])
    body = memoryview(batch)[HEADER_BYTES:]
    assert module.walk_records(body, 4, T0 + 5, False, False, *ANY_TIME) == (T0 + 9, 1, 0, 0, [], T0)
    walk = module.walk_records(body, 4, T0 + 5, False, True, T0 + 1, INT64_MAX, 9)
    assert walk == (T0 + 9, 1, 1, 1, [RecordFault(1, True, T0 + 9), RecordFault(3, False, T0)], T0)
    assert module.walk_records(body, 4, T0, True, False, T0, T0, 9) == (T0, 0, 0, 0, [], T0)
    assert module.walk_records(body, 4, 4, False, False, *ANY_TIME).min_timestamp == -1, (
        "-1 means no timestamp"
    )
    assert module.walk_records(body, 4, -T0, False, False, *ANY_TIME)[0::5] == (-1, -T0 - 5)
    assert module.walk_records(b"", 0, T0, False, False, *ANY_TIME).min_timestamp == INT64_MAX
    assert module.first_at_or_after(body, 4, T0 + 5, T0 + 6, 0) == (1, T0 + 9)
    assert module.first_at_or_after(body, 4, T0 + 5, T0, 2) == (2, T0 + 9)
    assert module.first_at_or_after(body, 4, T0 + 5, T0 + 10, 0) is None
    assert module.newest(body, 4, T0 + 5, 0) == (1, T0 + 9)
    assert module.newest(body, 4, T0 + 5, 3) == (3, T0)
    assert module.newest(body, 4, T0 + 5, 4) is None


@pytest.mark.parametrize("module", [record_walk, record_walk_oracle])
@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ([0, 0, 1, 1, 0], "offset delta 1"),
        ([0, 0, 0, 7, 0], "key of record 0 claims 7"),
        ([0, 0, 0, -1, 9, 0], "value of record 0 claims 9"),
        ([0, 0, 0, -1, -1, -1], "claims -1 headers"),
        ([0, 0, 0, -1, -1, 5], "claims 5 headers in 0 bytes"),
        ([0, 0, 0, -1, -1, 1, -1, 0], "header key of record 0 claims -1"),
        ([0, 0, 0, -1, -1, 1, 0, 3], "header value of record 0 claims 3"),
        ([0, 0, 0, -1, -1, 0, 0], "1 bytes are left after the headers"),
        ([0, 0, 0, -1], "runs past the record's end"),
    ],
)
def test_error_messages(module: Any, fields: list[int], words: str) -> None:
    body = bytearray()
    for number in fields:
        append_varlong(body, number)
    data = bytearray()
    append_varlong(data, len(body))
    with pytest.raises(KafkaWireError, match=words):
        module.walk_records(data + body, 1, 0, False, False, *ANY_TIME)
