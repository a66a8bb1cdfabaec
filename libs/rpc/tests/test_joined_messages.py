"""Messages joined from encoded parts equal protobuf's own encoding."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ponor.controller.v1 import session_service_pb2 as wire
from ponor.metadata.v1.records_pb2 import KeyPut, Record, RecordBatch
from ponor_rpc.joined_messages import joined_messages, message_head, number_field, varint


@pytest.mark.parametrize(
    ("number", "encoded"),
    [
        (0, "00"),
        (127, "7f"),
        (128, "8001"),
        (2_047, "ff0f"),
        (2_048, "8010"),
        (1 << 63, "80808080808080808001"),
    ],
)
def test_varint_has_seven_bits_per_byte(number: int, encoded: str) -> None:
    assert varint(number).hex() == encoded


def test_negative_number_is_refused() -> None:
    with pytest.raises(AssertionError, match="negative"):
        varint(-(1 << 20))


@given(st.lists(st.binary(max_size=3_000), max_size=5), st.integers(0, (1 << 64) - 1))
def test_batch_of_records(values: list[bytes], index: int) -> None:
    whole = RecordBatch(index=index)
    parts = [number_field(RecordBatch.INDEX_FIELD_NUMBER, index)]
    for value in values:
        record = Record(key_put=KeyPut(key="k", value=value))
        whole.records.append(record)
        encoded = record.SerializeToString()
        parts += (message_head(RecordBatch.RECORDS_FIELD_NUMBER, len(encoded)), encoded)
    assert b"".join(parts) == whole.SerializeToString(deterministic=True)


@given(st.lists(st.integers(0, 1 << 63), max_size=400))
def test_frame_of_results(ids: list[int]) -> None:
    results = [wire.OperationResult(request_id=each, done=wire.Done()) for each in ids]
    parts = []
    for result in results:
        encoded = result.SerializeToString()
        parts += [message_head(wire.ResultBatch.RESULTS_FIELD_NUMBER, len(encoded)), encoded]
    frame = joined_messages(wire.SessionResponse.RESULTS_FIELD_NUMBER, sum(map(len, parts)), parts)
    expected = wire.SessionResponse(results=wire.ResultBatch(results=results))
    assert frame == expected.SerializeToString()


def test_appended_field_belongs_to_the_same_message() -> None:
    result = wire.OperationResult(request_id=7, key_held=wire.KeyHeld(value=b"v", created=True))
    stamp = number_field(wire.OperationResult.COMMIT_INDEX_FIELD_NUMBER, 300)
    stamped = wire.OperationResult.FromString(result.SerializeToString() + stamp)
    result.commit_index = 300
    assert stamped == result
    assert number_field(wire.OperationResult.COMMIT_INDEX_FIELD_NUMBER, 0) == b""
