"""The bytes in `__transaction_state`, against bytes written out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ponor_broker.coordination.record_format import RecordFormatError
from ponor_broker.transactions.record_codec import decode_entry, encode_entry
from ponor_broker.transactions.records import TransactionEntry, TransactionRecord, TransactionState
from ponor_runtime.identity import ProducerId

KEY = "0000 0003 706179"
UPDATED_MS, STARTED_MS = 1_700_000_000_000, 1_699_999_999_000

RECORDED: list[tuple[TransactionEntry, str, str | None]] = [
    (
        # InitProducerId: partitions are null, not empty; no transaction began.
        TransactionEntry(
            "pay",
            TransactionRecord(
                ProducerId(4_000),
                0,
                60_000,
                TransactionState.EMPTY,
                UPDATED_MS,
                previous_producer_id=ProducerId(4_000),
            ),
        ),
        KEY,
        (
            "0001 0000000000000fa0 0000 0000ea60 00 00 0000018bcfe56800 ffffffffffffffff"
            "01 00 08 0000000000000fa0"
        ),
    ),
    (
        TransactionEntry(
            "pay",
            TransactionRecord(
                ProducerId(4_000),
                3,
                60_000,
                TransactionState.ONGOING,
                UPDATED_MS,
                STARTED_MS,
                frozenset({("b", 7), ("a", 1), ("a", 0)}),
                previous_producer_id=ProducerId(4_000),
                client_version=2,
            ),
        ),
        KEY,
        (
            "0001 0000000000000fa0 0003 0000ea60 01"
            "03 02 61 03 00000000 00000001 00 02 62 02 00000007 00"
            "0000018bcfe56800 0000018bcfe56418"
            "02 00 08 0000000000000fa0 02 02 0002"
        ),
    ),
    (
        # The commit that uses the last epoch: the next producer id is decided with it.
        TransactionEntry(
            "pay",
            TransactionRecord(
                ProducerId(4_000),
                32_767,
                60_000,
                TransactionState.PREPARE_COMMIT,
                UPDATED_MS,
                STARTED_MS,
                frozenset({("a", 0)}),
                previous_producer_id=ProducerId(4_000),
                next_producer_id=ProducerId(4_001),
                client_version=2,
            ),
        ),
        KEY,
        (
            "0001 0000000000000fa0 7fff 0000ea60 02 02 02 61 02 00000000 00"
            "0000018bcfe56800 0000018bcfe56418"
            "03 00 08 0000000000000fa0 01 08 0000000000000fa1 02 02 0002"
        ),
    ),
    (
        TransactionEntry(
            "pay",
            TransactionRecord(
                ProducerId(4_001),
                0,
                60_000,
                TransactionState.COMPLETE_COMMIT,
                UPDATED_MS,
                STARTED_MS,
                previous_producer_id=ProducerId(4_000),
                client_version=2,
            ),
        ),
        KEY,
        (
            "0001 0000000000000fa1 0000 0000ea60 04 01 0000018bcfe56800 0000018bcfe56418"
            "02 00 08 0000000000000fa0 02 02 0002"
        ),
    ),
    (TransactionEntry("pay", None), KEY, None),
]

READ_ONLY = [
    (
        # Version 0, of clusters with transaction.version 0.
        (
            "0000 0000000000000fa0 0003 0000ea60 01 00000001 0001 61 00000001 00000005"
            "0000018bcfe56800 0000018bcfe56418"
        ),
        TransactionRecord(
            ProducerId(4_000),
            3,
            60_000,
            TransactionState.ONGOING,
            UPDATED_MS,
            STARTED_MS,
            frozenset({("a", 5)}),
        ),
    ),
    (
        "0000 0000000000000fa0 0003 0000ea60 00 ffffffff 0000018bcfe56800 ffffffffffffffff",
        TransactionRecord(ProducerId(4_000), 3, 60_000, TransactionState.EMPTY, UPDATED_MS),
    ),
    (
        # Version 1 with a tag of a later release.
        "0001 0000000000000fa0 0003 0000ea60 04 01 0000018bcfe56800 0000018bcfe56418 01 09 02 0102",
        TransactionRecord(
            ProducerId(4_000), 3, 60_000, TransactionState.COMPLETE_COMMIT, UPDATED_MS, STARTED_MS
        ),
    ),
]

RECORDS = st.builds(
    TransactionRecord,
    producer_id=st.integers(0, 1 << 62).map(ProducerId),
    producer_epoch=st.integers(-1, 32_767),
    timeout_ms=st.integers(1, (1 << 31) - 1),
    state=st.sampled_from(list(TransactionState)[1:6]),
    update_ms=st.integers(0, 1 << 62),
    start_ms=st.integers(-1, 1 << 62),
    partitions=st.frozensets(st.tuples(st.text(max_size=5), st.integers(0, 1 << 30)), max_size=20),
    previous_producer_id=st.integers(-1, 1 << 62).map(ProducerId),
    next_producer_id=st.integers(-1, 1 << 62).map(ProducerId),
    client_version=st.integers(0, 2),
)


@pytest.mark.parametrize(("entry", "key", "value"), RECORDED)
def test_bytes_of_kafka(entry: TransactionEntry, key: str, value: str | None) -> None:
    value_bytes = None if value is None else bytes.fromhex(value)

    assert encode_entry(entry) == (bytes.fromhex(key), value_bytes)
    assert decode_entry(bytes.fromhex(key), value_bytes) == entry


@pytest.mark.parametrize(("value", "record"), READ_ONLY)
def test_other_versions_are_read(value: str, record: TransactionRecord) -> None:
    read = decode_entry(bytes.fromhex(KEY), bytes.fromhex(value))

    assert read == TransactionEntry("pay", record)


@given(st.text(max_size=20), RECORDS)
def test_every_record_round_trips(transactional_id: str, record: TransactionRecord) -> None:
    entry = TransactionEntry(transactional_id, record)

    assert decode_entry(*encode_entry(entry)) == entry


def test_other_kinds_of_records_are_skipped() -> None:
    assert decode_entry(bytes.fromhex("0001 0001 61"), b"\x00\x00") is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, None),
        ("00", None),
        ("0000 0009 61", None),
        (KEY, "00"),
        (KEY, "0002" + "00" * 40),
        (KEY, "0000 0000000000000fa0 0003 0000ea60 06 ffffffff 0000018bcfe56800 ffffffffffffffff"),
        (KEY, "0000 0000000000000fa0 0003 0000ea60 08 ffffffff 0000018bcfe56800 ffffffffffffffff"),
    ],
)
def test_damage_is_named(key: str | None, value: str | None) -> None:
    with pytest.raises(RecordFormatError, match="__transaction_state"):
        decode_entry(
            None if key is None else bytes.fromhex(key), None if value is None else bytes.fromhex(value)
        )
