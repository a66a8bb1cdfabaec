"""The bytes in `__consumer_offsets`, against bytes written out by hand and against the generic codec."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ponor_broker.coordination.record_format import RecordFormatError, fits_record
from ponor_broker.groups.record_codec import Entry, decode_entry, encode_entry
from ponor_broker.groups.records import (
    CommittedOffset,
    GroupEntry,
    GroupKey,
    GroupRecord,
    MemberRecord,
    OffsetEntry,
    OffsetKey,
)
from ponor_kafka.codec import decode_versioned
from ponor_kafka.messages.group_coordinator_records import GroupMetadataValue, OffsetCommitValue

TOPIC_ID = bytes(range(16))

RECORDED: list[tuple[Entry, str, str | None]] = [
    (
        OffsetEntry(OffsetKey("g1", "orders", 5), CommittedOffset(1_000, 3, "hi", 1_700_000_000_000)),
        "0001 0002 6731 0006 6f7264657273 00000005",
        "0004 00000000000003e8 00000003 03 6869 0000018bcfe56800 00",
    ),
    (
        OffsetEntry(OffsetKey("g1", "t", 0), CommittedOffset(7, -1, "", 1, topic_id=TOPIC_ID)),
        "0001 0002 6731 0001 74 00000000",
        "0004 0000000000000007 ffffffff 01 0000000000000001 01 00 10 000102030405060708090a0b0c0d0e0f",
    ),
    (
        OffsetEntry(OffsetKey("g1", "t", 0), CommittedOffset(7, -1, "m", 1, expire_timestamp_ms=86_400_001)),
        "0001 0002 6731 0001 74 00000000",
        "0001 0000000000000007 0001 6d 0000000000000001 0000000005265c01",
    ),
    (OffsetEntry(OffsetKey("", "t", 9), None), "0001 0000 0001 74 00000009", None),
    (
        GroupEntry(
            GroupKey("g"),
            GroupRecord(
                "consumer",
                4,
                "range",
                "a-1",
                258,
                (MemberRecord("a-1", "i", "a", "/127.0.0.1", 300_000, 45_000, b"\x00\x01", b"\x00\x02\x03"),),
            ),
        ),
        "0002 0001 67",
        # protocol type, generation, protocol, leader, state timestamp; one member: ids, client id and host,
        # both timeouts, two blobs
        (
            "0003 0008 636f6e73756d6572 00000004 0005 72616e6765 0003 612d31 0000000000000102 "
            "00000001 0003 612d31 0001 69 0001 61 000a 2f3132372e302e302e31 000493e0 0000afc8 "
            "00000002 0001 00000003 000203"
        ),
    ),
    (
        GroupEntry(GroupKey("g"), GroupRecord("consumer", 5, None, None, -1)),
        "0002 0001 67",
        "0003 0008 636f6e73756d6572 00000005 ffff ffff ffffffffffffffff 00000000",
    ),
    (GroupEntry(GroupKey("g"), None), "0002 0001 67", None),
]


@pytest.mark.parametrize(("entry", "key", "value"), RECORDED)
def test_entries_have_kafkas_bytes(entry: Entry, key: str, value: str | None) -> None:
    encoded = encode_entry(entry)
    assert encoded == (bytes.fromhex(key), None if value is None else bytes.fromhex(value))
    assert decode_entry(*encoded) == entry


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0000 0000000000000009 0001 6d 0000000000000005", CommittedOffset(9, -1, "m", 5)),
        ("0002 0000000000000009 0001 6d 0000000000000005", CommittedOffset(9, -1, "m", 5)),
        ("0003 0000000000000009 00000002 0001 6d 0000000000000005", CommittedOffset(9, 2, "m", 5)),
    ],
)
def test_older_versions_of_a_commit_are_read(value: str, expected: CommittedOffset) -> None:
    key = OffsetKey("g", "t", 1)
    for kind in (0, 1):
        raw_key = struct.pack(">hh1sh1si", kind, 1, b"g", 1, b"t", 1)
        assert decode_entry(raw_key, bytes.fromhex(value)) == OffsetEntry(key, expected)


def test_a_group_of_version_0_has_the_session_timeout_for_both() -> None:
    value = bytes.fromhex(
        "0000 0001 63 00000001 ffff ffff 00000001 0001 61 0001 62 0001 63 00001770 00000000 00000000"
    )
    entry = decode_entry(bytes.fromhex("0002 0001 67"), value)
    assert isinstance(entry, GroupEntry)
    assert entry.value == GroupRecord(
        "c", 1, None, None, -1, (MemberRecord("a", None, "b", "c", 6_000, 6_000, b"", b""),)
    )


def test_the_generic_codec_reads_what_is_written() -> None:
    _, value = encode_entry(RECORDED[1][0])
    assert value is not None
    message, version = decode_versioned(OffsetCommitValue, value)
    assert (version, message.offset, message.topic_id) == (4, 7, TOPIC_ID)
    _, value = encode_entry(RECORDED[4][0])
    assert value is not None
    group, version = decode_versioned(GroupMetadataValue, value)
    assert (version, group.generation, group.members[0].group_instance_id) == (3, 4, "i")


def test_records_of_other_group_protocols_are_skipped() -> None:
    assert decode_entry(bytes.fromhex("0004 0001 67"), b"\x00\x00anything") is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, None),
        (b"", None),
        (b"\x00", None),
        (b"\xff\xff\x00\x01g", None),
        (bytes.fromhex("0001 0009 67"), None),
        (bytes.fromhex("0002 0001 67"), b""),
        (bytes.fromhex("0002 0001 67"), b"\x00\x63rest"),
        (bytes.fromhex("0002 0001 67"), b"\x00\x03\x00"),
    ],
)
def test_damage_is_reported_with_its_key(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(RecordFormatError, match="__consumer_offsets"):
        decode_entry(key, value)


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
PLAIN_COMMITS = st.builds(
    CommittedOffset,
    INT64,
    INT32,
    TEXT,
    INT64,
    topic_id=st.none() | st.binary(min_size=16, max_size=16).filter(any),
)
EXPIRING_COMMITS = st.builds(
    CommittedOffset,
    INT64,
    metadata=TEXT,
    commit_timestamp_ms=INT64,
    expire_timestamp_ms=INT64.filter(lambda t: t != -1),
)
MEMBERS = st.builds(
    MemberRecord,
    TEXT,
    st.none() | TEXT,
    TEXT,
    TEXT,
    INT32,
    INT32,
    st.binary(max_size=9),
    st.binary(max_size=9),
)
GROUPS = st.builds(
    GroupRecord,
    TEXT,
    INT32,
    st.none() | TEXT,
    st.none() | TEXT,
    INT64,
    st.lists(MEMBERS, max_size=3).map(tuple),
)
ENTRIES = st.builds(
    OffsetEntry, st.builds(OffsetKey, TEXT, TEXT, INT32), st.none() | PLAIN_COMMITS | EXPIRING_COMMITS
) | st.builds(GroupEntry, st.builds(GroupKey, TEXT), st.none() | GROUPS)


@given(ENTRIES)
def test_every_entry_round_trips(entry: Entry) -> None:
    assert decode_entry(*encode_entry(entry)) == entry


@given(ENTRIES, st.data())
def test_truncated_values_are_refused(entry: Entry, data: st.DataObject) -> None:
    key, value = encode_entry(entry)
    if value is not None:
        cut = value[: data.draw(st.integers(0, len(value) - 1))]
        with pytest.raises(RecordFormatError):
            decode_entry(key, cut)


@pytest.mark.parametrize(
    ("text", "fits"),
    [("x" * 32_767, True), ("x" * 32_768, False), ("é" * 16_384, False), ("é" * 16_383, True)],
)
def test_which_texts_fit_a_record(text: str, fits: bool) -> None:
    assert fits_record(text) is fits
