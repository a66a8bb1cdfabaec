"""Varints and tag buffers, byte by byte."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ponor_kafka.errors import KafkaEncodeError, KafkaWireError
from ponor_kafka.primitives import (
    append_varlong,
    decode_unsigned_varint,
    decode_varlong,
    encode_compact_string_length,
    encode_unsigned_varint,
    skip_tagged_fields,
)


@pytest.mark.parametrize(
    ("value", "wire"),
    [
        (0, "00"),
        (1, "01"),
        (127, "7f"),
        (128, "8001"),
        (300, "ac02"),
        (16384, "808001"),
        (2**31 - 1, "ffffffff07"),
    ],
)
def test_unsigned_varints(value: int, wire: str) -> None:
    assert encode_unsigned_varint(value).hex() == wire
    assert decode_unsigned_varint(bytes.fromhex(wire) + b"!", 0) == (value, len(wire) // 2)


@pytest.mark.parametrize(
    ("value", "wire"),
    [
        (0, "00"),
        (-1, "01"),
        (1, "02"),
        (63, "7e"),
        (-64, "7f"),
        (64, "8001"),
        (2**63 - 1, "feffffffffffffffff01"),
    ],
)
def test_zigzag_varlongs(value: int, wire: str) -> None:
    out = bytearray()
    append_varlong(out, value)
    assert out.hex() == wire
    assert decode_varlong(out, 0, len(out)) == (value, len(out))


@given(st.integers(min_value=-(2**63), max_value=2**63 - 1))
def test_every_long_round_trips(value: int) -> None:
    out = bytearray(b"ab")
    append_varlong(out, value)
    assert decode_varlong(out, 2, len(out)) == (value, len(out))
    with pytest.raises(KafkaWireError):
        decode_varlong(out, 2, len(out) - 1)


@given(st.integers(min_value=0, max_value=2**31 - 1))
def test_every_length_round_trips(value: int) -> None:
    wire = encode_unsigned_varint(value)
    assert decode_unsigned_varint(wire, 0) == (value, len(wire))


@pytest.mark.parametrize("wire", ["", "80", "ffffffff", "ffffffff08", "ffffffffff01", "808080808000"])
def test_malformed_unsigned_varints_are_refused(wire: str) -> None:
    with pytest.raises(KafkaWireError):
        decode_unsigned_varint(bytes.fromhex(wire), 0)


def test_varlong_longer_than_ten_bytes_is_refused() -> None:
    with pytest.raises(KafkaWireError):
        decode_varlong(b"\x80" * 11, 0, 11)


def test_values_out_of_range_are_refused() -> None:
    for value in (-1, 2**31):
        with pytest.raises(KafkaEncodeError):
            encode_unsigned_varint(value)
    for value in (2**63, -(2**63) - 1):
        with pytest.raises(KafkaEncodeError):
            append_varlong(bytearray(), value)
    assert encode_compact_string_length(32768) == encode_unsigned_varint(32768)
    with pytest.raises(KafkaEncodeError):
        encode_compact_string_length(32769)


def test_tag_buffers_are_skipped_by_size() -> None:
    wire = bytes((2, 0, 1, 9, 200, 1, 2, 8, 8))
    assert skip_tagged_fields(wire + b"!", 0, len(wire)) == len(wire)
    for cut in range(len(wire)):
        with pytest.raises(KafkaWireError):
            skip_tagged_fields(wire[:cut], 0, cut)
