"""The records of a share group survive encoding, in Kafka's format."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ponor_broker.coordination.record_format import RecordFormatError
from ponor_broker.groups.consumer.assignment import CurrentAssignment
from ponor_broker.groups.consumer.member import ConsumerMember
from ponor_broker.groups.consumer.records import (
    CurrentEntry,
    CurrentKey,
    EpochEntry,
    EpochKey,
    GroupEpoch,
    MemberEntry,
    MemberKey,
    TargetEntry,
    TargetEpoch,
    TargetEpochEntry,
    TargetEpochKey,
    TargetKey,
)
from ponor_broker.groups.record_codec import decode_entry, encode_entry
from ponor_broker.groups.share.records import (
    ShareEntry,
    ShareGroupEntry,
    StatePartitionsEntry,
    StatePartitionsKey,
)
from ponor_broker.groups.share.state_partitions import StatePartitions, TopicStates

TEXT = st.text(max_size=5)
INT32 = st.integers(0, (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
TOPIC_IDS = st.binary(min_size=16, max_size=16)
INDEXES = st.frozensets(st.integers(0, 50), min_size=1)
MEMBERS = st.builds(
    ConsumerMember,
    member_id=st.just("m"),
    rack_id=st.none() | TEXT,
    client_id=TEXT,
    client_host=TEXT,
    topics=st.frozensets(TEXT, max_size=3),
)
TARGETS = st.dictionaries(TOPIC_IDS, INDEXES, max_size=3)
STATES = st.dictionaries(TOPIC_IDS, st.builds(TopicStates, TEXT, INDEXES), max_size=3)


@st.composite
def currents(draw: st.DrawFn) -> CurrentAssignment:
    epoch = draw(INT32)
    assigned = {topic: dict.fromkeys(sorted(each), epoch) for topic, each in draw(TARGETS).items()}
    return CurrentAssignment(epoch, draw(INT32), assigned=assigned)


INNER = st.one_of(
    st.builds(EpochEntry, st.builds(EpochKey, TEXT), st.none() | st.builds(GroupEpoch, INT32, INT64)),
    st.builds(MemberEntry, st.builds(MemberKey, TEXT, st.just("m")), st.none() | MEMBERS),
    st.builds(
        TargetEpochEntry, st.builds(TargetEpochKey, TEXT), st.none() | st.builds(TargetEpoch, INT32, INT64)
    ),
    st.builds(TargetEntry, st.builds(TargetKey, TEXT, TEXT), st.none() | TARGETS),
    st.builds(CurrentEntry, st.builds(CurrentKey, TEXT, TEXT), st.none() | currents()),
)
ENTRIES = st.builds(ShareEntry, INNER) | st.builds(
    StatePartitionsEntry,
    st.builds(StatePartitionsKey, TEXT),
    st.none() | st.builds(StatePartitions, STATES, STATES, st.dictionaries(TOPIC_IDS, TEXT, max_size=3)),
)


@given(ENTRIES)
def test_entries_survive_encoding(entry: ShareGroupEntry) -> None:
    key, value = encode_entry(entry)
    assert decode_entry(key, value) == entry
    assert (value is None) == (entry.value is None)


def test_the_bytes_are_those_of_kafka() -> None:
    """Version, compact strings and arrays, and 16 bytes of an id: the messages of Kafka 4.3.1 by hand."""
    topic_id = bytes(range(16))
    states = StatePartitions({}, {topic_id: TopicStates("t", frozenset({0, 1}))}, {})
    key, value = encode_entry(StatePartitionsEntry(StatePartitionsKey("g"), states))
    assert key == bytes.fromhex("000f 0001 67")
    rows = topic_id + bytes.fromhex("02 74 03 00000000 00000001 00")
    assert value == bytes.fromhex("0000 01 02") + rows + bytes.fromhex("01 00")
    key, value = encode_entry(ShareEntry(EpochEntry(EpochKey("g"), GroupEpoch(3, 5))))
    assert (key, value) == (bytes.fromhex("000b 0001 67"), bytes.fromhex("0000 00000003 0000000000000005 00"))


def test_a_member_state_of_consumer_groups_is_damage() -> None:
    key, value = encode_entry(ShareEntry(CurrentEntry(CurrentKey("g", "m"), CurrentAssignment(2, 1))))
    assert value is not None
    damaged = bytearray(value)
    damaged[10] = 1
    with pytest.raises(RecordFormatError, match="1 is not a state of a member of a share group"):
        decode_entry(key, damaged)
