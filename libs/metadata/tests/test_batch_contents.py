"""Contents of encoded batches: compiled code returns what protobuf returns, or leaves the batch to
protobuf.
"""

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from ponor.metadata.v1.records_pb2 import Record, RecordBatch
from ponor_metadata.image.batches import KINDS, UNKNOWN_KIND, contents_of, decoded_contents_of
from ponor_metadata.image.registry import RULES

UINT64 = st.integers(0, (1 << 64) - 1)


def record_of(kind: str) -> Record:
    record = Record()
    getattr(record, kind).SetInParent()
    return record


@given(st.lists(st.sampled_from(sorted(RULES))), UINT64, UINT64, st.integers(0, (1 << 63) - 1))
def test_compiled_contents_equal_those_of_protobuf(
    kinds: list[str], index: int, term: int, time_ms: int
) -> None:
    batch = RecordBatch(index=index, term=term, cluster_time_ms=time_ms, records=map(record_of, kinds))
    encoded = batch.SerializeToString(deterministic=True)
    found = contents_of(encoded)
    assert found == decoded_contents_of(encoded)
    assert found[:2] == (index, term)
    assert {KINDS[number]: count for number, count in found[2].items()} == {
        kind: kinds.count(kind) for kind in kinds
    }
    assert list(found[2]) == sorted(found[2])


@given(st.binary(max_size=64))
def test_invalid_bytes_are_refused_or_have_the_contents_of_protobuf(encoded: bytes) -> None:
    try:
        expected = decoded_contents_of(encoded)
    except DecodeError:
        # Compiled code reads only the first tag of each record; applying the batch finds damage behind it.
        return
    if UNKNOWN_KIND not in expected[2]:
        assert contents_of(encoded)[:2] == expected[:2]


def test_a_record_of_an_unknown_kind_is_counted_as_unknown() -> None:
    newer = bytes.fromhex("2204") + b"\xfa\x7f\x01\x00"  # field 2047 of Record, one byte
    encoded = RecordBatch(index=5, term=2).SerializeToString() + newer
    assert contents_of(encoded) == (5, 2, {UNKNOWN_KIND: 1})


def test_truncated_bytes_are_refused() -> None:
    encoded = RecordBatch(index=5, term=2, records=[record_of("key_put")]).SerializeToString()
    with pytest.raises(DecodeError):
        contents_of(encoded[:-1])
