"""The records of a consumer group survive encoding, and old forms are read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ponor_broker.coordination.record_format import RecordFormatError
from ponor_broker.groups.consumer.assignment import CurrentAssignment, MemberState
from ponor_broker.groups.consumer.member import ConsumerMember
from ponor_broker.groups.consumer.records import (
    ConsumerEntry,
    CurrentEntry,
    CurrentKey,
    EpochEntry,
    EpochKey,
    ExpressionEntry,
    ExpressionKey,
    GroupEpoch,
    MemberEntry,
    MemberKey,
    ResolvedExpression,
    TargetEntry,
    TargetEpoch,
    TargetEpochEntry,
    TargetEpochKey,
    TargetKey,
)
from ponor_broker.groups.record_codec import decode_entry, encode_entry

TEXT = st.text(max_size=5)
INT32 = st.integers(0, (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
TOPIC_IDS = st.binary(min_size=16, max_size=16)
INDEXES = st.integers(0, 50)
EPOCHED = st.dictionaries(TOPIC_IDS, st.dictionaries(INDEXES, INT32, min_size=1), max_size=3)
NAMES = st.frozensets(TEXT, max_size=3)
MEMBERS = st.builds(
    ConsumerMember,
    member_id=st.just("m"),
    instance_id=st.none() | TEXT,
    rack_id=st.none() | TEXT,
    client_id=TEXT,
    client_host=TEXT,
    topics=NAMES,
    expression=st.none() | TEXT,
    rebalance_timeout_ms=INT32,
    assignor=st.none() | TEXT,
)
CURRENTS = st.builds(
    CurrentAssignment, st.integers(-2, 9), st.integers(-2, 9), st.sampled_from(MemberState), EPOCHED, EPOCHED
)
TARGETS = st.dictionaries(TOPIC_IDS, st.frozensets(INDEXES, min_size=1), max_size=3)
ENTRIES = st.one_of(
    st.builds(EpochEntry, st.builds(EpochKey, TEXT), st.none() | st.builds(GroupEpoch, INT32, INT64)),
    st.builds(MemberEntry, st.builds(MemberKey, TEXT, st.just("m")), st.none() | MEMBERS),
    st.builds(
        TargetEpochEntry, st.builds(TargetEpochKey, TEXT), st.none() | st.builds(TargetEpoch, INT32, INT64)
    ),
    st.builds(TargetEntry, st.builds(TargetKey, TEXT, TEXT), st.none() | TARGETS),
    st.builds(CurrentEntry, st.builds(CurrentKey, TEXT, TEXT), st.none() | CURRENTS),
    st.builds(
        ExpressionEntry,
        st.builds(ExpressionKey, TEXT, TEXT),
        st.none() | st.builds(ResolvedExpression, NAMES, INT64, INT64),
    ),
)


@given(ENTRIES)
def test_every_entry_survives_encoding(entry: ConsumerEntry) -> None:
    assert decode_entry(*encode_entry(entry)) == entry


def test_partitions_without_epochs_get_the_member_epoch() -> None:
    key, value = encode_entry(
        CurrentEntry(CurrentKey("g", "m"), CurrentAssignment(7, 6, MemberState.STABLE, {b"t" * 16: {2: 7}}))
    )
    assert value is not None
    tagged = bytes.fromhex("01000502000000 07".replace(" ", ""))
    assert tagged in value
    old = value.replace(tagged, b"\0")
    assert decode_entry(key, old) == CurrentEntry(
        CurrentKey("g", "m"), CurrentAssignment(7, 6, MemberState.STABLE, {b"t" * 16: {2: 7}})
    )


def test_an_unknown_member_state_is_refused() -> None:
    key, value = encode_entry(CurrentEntry(CurrentKey("g", "m"), CurrentAssignment()))
    assert value is not None
    damaged = bytearray(value)
    damaged[10] = 9
    with pytest.raises(RecordFormatError, match="9 is not a member state"):
        decode_entry(key, bytes(damaged))
