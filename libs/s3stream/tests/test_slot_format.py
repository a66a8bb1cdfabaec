"""Encoding of slots: round trips, detection of damage, and the worked example of the documentation."""

from __future__ import annotations

import re
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ponor_runtime.disk import Buffer
from ponor_runtime.identity import NodeEpoch, NodeId, ObjectId, StreamEpoch, StreamId
from ponor_runtime.turns import at_once
from s3stream.errors import ObjectCorruptError
from s3stream.object_wal.slot import (
    LABEL_BYTES,
    NONCE_BYTES,
    Label,
    SlotKind,
    decode_label,
    records_in,
    slot_records,
)
from s3stream.object_wal.slot_keys import node_prefix, parse_slot_key, slot_key, wal_prefix
from s3stream.objects.writer import ObjectWriter
from s3stream.ports import WalName
from s3stream.records import StreamRecord

DOCUMENT = Path(__file__).parents[3] / "docs/formats/object-wal.md"
NAME = WalName("ponor-a", NodeId(65536), NodeEpoch(7))
NONCE = bytes(range(NONCE_BYTES))


def slot_of(records: list[StreamRecord], sequence: int = 3, acknowledged: int = 2) -> tuple[Label, bytes]:
    writer = ObjectWriter(ObjectId(sequence))
    writer.add_run(records)
    encoded = writer.finish()
    label = Label(SlotKind.DATA, NAME, sequence, acknowledged, NONCE, encoded.size_bytes)
    return label, b"".join([*encoded.buffers, label.encode()])


def example() -> tuple[Label, bytes]:
    return slot_of([StreamRecord(StreamId(7), StreamEpoch(3), 100, 2, 1_700_000_000_000, b"ab")])


def test_the_documented_bytes_match_the_code() -> None:
    blocks = re.findall(r"```hex\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    documented = [
        bytes.fromhex("".join(line.split(maxsplit=1)[1] for line in block.splitlines())) for block in blocks
    ]
    fence = Label(SlotKind.FENCE, NAME, 4, 0, NONCE, 0).encode()
    assert documented == [example()[1], fence]


def test_the_documented_keys_match_the_code() -> None:
    text = DOCUMENT.read_text()
    assert slot_key(NAME, 3) in text
    assert slot_key(NAME, 4) in text


@given(
    st.from_regex(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,62}", fullmatch=True),
    st.integers(0, (1 << 30) - 1),
    st.integers(0, 10**10 - 1),
    st.integers(0, (1 << 63) - 1),
)
def test_keys_survive_a_round_trip(namespace: str, node: int, epoch: int, sequence: int) -> None:
    name = WalName(namespace, NodeId(node), NodeEpoch(epoch))
    key = slot_key(name, sequence)
    assert parse_slot_key(key) == (name, sequence)
    assert key.startswith(wal_prefix(name))
    assert key.startswith(node_prefix(namespace, NodeId(node)))


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_keys_sort_by_sequence(one: int, other: int) -> None:
    assert (slot_key(NAME, one) < slot_key(NAME, other)) == (one < other)


@pytest.mark.parametrize(
    "key",
    [
        "84/ponor-a/562949953421317",
        "00/wal/ponor-a/65536/0000000007/00000000000000000003",
        slot_key(NAME, 3)[:-1],
        slot_key(NAME, 3) + "0",
        slot_key(NAME, 3).replace("/65536/", "/065536/"),
    ],
)
def test_other_keys_are_refused_as_slots(key: str) -> None:
    with pytest.raises(ValueError, match=re.escape(key.split("/", maxsplit=1)[0])):
        parse_slot_key(key)


records_of_a_slot = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 3), st.binary(max_size=200)), min_size=1, max_size=30
)


@given(records_of_a_slot)
def test_slots_survive_a_round_trip(parts: list[tuple[int, int, bytes]]) -> None:
    offsets: dict[int, int] = {}
    records: list[StreamRecord] = []
    for stream, count, payload in parts:
        offset = offsets.get(stream, 10)
        records.append(StreamRecord(StreamId(stream), StreamEpoch(2), offset, count, -1, payload))
        offsets[stream] = offset + count
    buffers = cast(list[Buffer], [part for each in records for part in (each.encode_header(), each.payload)])
    assert list(records_in(buffers)) == records
    ordered = sorted(records, key=lambda each: each.stream_id)
    label, data = slot_of(ordered)
    key = slot_key(NAME, 3)
    assert decode_label(key, NAME, 3, data) == label
    found = at_once(slot_records(key, label, data))
    assert [(each.stream_id, each.base_offset, each.count, bytes(each.payload)) for each in found] == [
        (each.stream_id, each.base_offset, each.count, each.payload) for each in ordered
    ]


def test_every_damaged_byte_is_detected() -> None:
    label, data = example()
    key = slot_key(NAME, 3)
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 0x10
        with pytest.raises(ObjectCorruptError, match=key):
            at_once(slot_records(key, decode_label(key, NAME, 3, damaged), bytes(damaged)))
    for length in range(len(data)):
        with pytest.raises(ObjectCorruptError, match=key):
            at_once(slot_records(key, decode_label(key, NAME, 3, data[:length]), data[:length]))
    assert at_once(slot_records(key, label, data))


def test_a_slot_under_the_key_of_another_is_refused() -> None:
    _, data = example()
    for name, sequence in ((NAME, 4), (WalName("ponor-b", NAME.node_id, NAME.epoch), 3)):
        key = slot_key(name, sequence)
        with pytest.raises(ObjectCorruptError, match="this is slot 3"):
            decode_label(key, name, sequence, data)


def test_a_fence_is_only_a_label_and_smaller_than_any_data() -> None:
    fence = Label(SlotKind.FENCE, NAME, 4, 0, NONCE, 0)
    assert len(fence.encode()) == LABEL_BYTES < len(example()[1])
    assert decode_label(slot_key(NAME, 4), NAME, 4, fence.encode()) == fence
