"""The records of `__share_group_state`, byte by byte."""

from __future__ import annotations

from uuid import UUID

import pytest
from ponor_broker.coordination.record_format import RecordFormatError
from ponor_broker.coordination.share_persister import DeliveryState, SharePartitionKey, StateBatch
from ponor_broker.share_state.record_codec import decode_entry, encode_entry
from ponor_broker.share_state.records import ShareEntry, ShareSnapshot, ShareUpdate

KEY = SharePartitionKey("g", UUID(int=0x0102), 7)
BATCHES = (StateBatch(5, 5, DeliveryState.ACKNOWLEDGED, 1), StateBatch(7, 8, DeliveryState.ARCHIVED, 5))
SNAPSHOT = ShareSnapshot(3, 2, 9, 5, 3, 1_000, 2_000, BATCHES)
UPDATE = ShareUpdate(3, 9, -1, -1, BATCHES[:1])
KEY_HEX = "0001" + "67" + "00000000000000000000000000000102" + "00000007"
BATCH_HEX = "0000000000000005" + "0000000000000005" + "02" + "0001" + "00"


def test_the_bytes_of_a_snapshot() -> None:
    key, value = encode_entry(ShareEntry(KEY, SNAPSHOT))
    assert value is not None
    assert key.hex() == "0000" + KEY_HEX
    assert value.hex() == (
        "0000" + "00000003" + "00000002" + "00000009" + "0000000000000005"
        "00000000000003e8" + "00000000000007d0"
        "03" + BATCH_HEX + "0000000000000007" + "0000000000000008" + "04" + "0005" + "00"
        "01" + "00" + "04" + "00000003"
    )  # fmt: skip


def test_the_bytes_of_an_update() -> None:
    key, value = encode_entry(ShareEntry(KEY, UPDATE))
    assert value is not None
    assert key.hex() == "0001" + KEY_HEX
    assert value.hex() == "0000" + "00000003" + "00000009" + "f" * 16 + "02" + BATCH_HEX + "00"


@pytest.mark.parametrize("value", [SNAPSHOT, UPDATE, None])
def test_entries_return(value: ShareSnapshot | ShareUpdate | None) -> None:
    entry = ShareEntry(KEY, value)
    assert decode_entry(*encode_entry(entry)) == entry


def test_other_kinds_are_skipped() -> None:
    assert decode_entry(bytes.fromhex("0007"), b"") is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, "0000"),
        ("00", "0000"),
        ("0000" + KEY_HEX, "0009"),
        ("0000" + KEY_HEX[:-2], "0000"),
        ("0001" + KEY_HEX, None),
        ("0001" + KEY_HEX, "0000" + "0" * 32 + "02" + BATCH_HEX.replace("020001", "010001") + "00"),
    ],
)
def test_malformed_records(key: str | None, value: str | None) -> None:
    with pytest.raises(RecordFormatError):
        decode_entry(
            None if key is None else bytes.fromhex(key), None if value is None else bytes.fromhex(value)
        )
